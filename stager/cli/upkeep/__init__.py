"""Verbs about whole data sets: they are removed."""
