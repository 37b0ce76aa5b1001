"""Samples that follow from a rule: the bricks of volumes, and the chunks that they are taken from."""
