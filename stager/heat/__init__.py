"""How hot samples are: what was read, what is likely to be, and what of it is worth keeping."""
