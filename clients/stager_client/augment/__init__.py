"""Crops, flips and colours, applied by the loader's threads between the shard and the batch."""

from stager_client.augment.transforms import (
    Augment,
    CentreCrop,
    ColourJitter,
    HorizontalFlip,
    RandomCrop,
    RandomResizedCrop,
)

__all__ = ["Augment", "CentreCrop", "ColourJitter", "HorizontalFlip", "RandomCrop", "RandomResizedCrop"]
