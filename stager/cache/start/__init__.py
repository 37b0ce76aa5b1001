"""What is done before a cache is used: its lock, what a crash left, a lost catalog, an older version."""
