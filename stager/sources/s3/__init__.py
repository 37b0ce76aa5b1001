"""Buckets: listed by boto3's credentials, read by libcurl, every byte checked."""
