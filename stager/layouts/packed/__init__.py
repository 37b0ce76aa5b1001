"""Objects that hold many samples each: tars and Parquet files, read in place."""
