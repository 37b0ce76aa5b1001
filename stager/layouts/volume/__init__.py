"""The layout of volumes: bricks of arrays that lie in chunks."""
