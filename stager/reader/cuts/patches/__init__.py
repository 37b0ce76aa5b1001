"""Patches of volumes: boxes that lie in several bricks."""
