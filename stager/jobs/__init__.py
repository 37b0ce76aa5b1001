"""Requests to stage something: begun, planned, staged, ended."""
