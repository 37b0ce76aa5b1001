"""Bytes become pixels, and pixels others."""
