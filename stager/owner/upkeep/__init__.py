"""What becomes of whole data sets: removed, renamed, looked at each day."""
