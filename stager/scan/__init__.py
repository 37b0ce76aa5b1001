"""A scan becomes a manifest: what is found, and the numbers that its samples get."""
