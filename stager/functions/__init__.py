"""A person's Python function, run in processes of its own: it may do what it likes there."""
