"""Batches, put together: ahead of use, in buffers that are used again."""
