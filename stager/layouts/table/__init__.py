"""Tables of samples: where a table is, how it is read, and how its rows become samples."""
