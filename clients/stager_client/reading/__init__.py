"""One reader of a data set: where it lies, its session with the service, and rows from open shards."""
