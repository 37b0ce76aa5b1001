"""The durable record: all the SQL there is."""
