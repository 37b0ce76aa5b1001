"""Data sets that are watched: when to look at a source again, and when to leave it alone."""
