"""A worker process: scans, and shards that are built."""
