"""All that a client loads: where samples lie, and how they are read."""
