"""Results of functions that are kept in the cache: their keys, their records and their files."""
