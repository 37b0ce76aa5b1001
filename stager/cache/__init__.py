"""One cache directory and its one owner."""
