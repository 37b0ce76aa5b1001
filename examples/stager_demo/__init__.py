"""stager from nothing, on this machine: `stager demo`, or `make demo` in a checkout."""
