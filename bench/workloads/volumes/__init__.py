"""Volumes: random patches of a volume in chunks, by stager and by the ways people have."""
