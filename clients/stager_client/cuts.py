"""What a loader takes of each sample at read time, for its `cut`."""

from stager.reader.cuts import Cut, RandomCrop

__all__ = ["Cut", "RandomCrop"]
