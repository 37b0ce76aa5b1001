"""A watcher's process: it looks at one source, and hints at what may have changed."""
