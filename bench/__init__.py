"""Measurements behind the figures we state: `make bench`."""
