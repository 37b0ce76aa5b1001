"""Images and augmentations for tests."""

import numpy as np

from stager_client.augment import Augment, ColourJitter, HorizontalFlip, RandomResizedCrop
from stager_client.augment.transforms import Chain, Image


def image_of(height: int, width: int, channels: int = 3) -> Image:
    image = np.random.default_rng(height * width).integers(0, 256, (height, width, channels), dtype=np.uint8)
    image.flags.writeable = False  # nobody may change it
    return image


def applied(augments: list[Augment], image: Image, uniforms: list[float]) -> Image:
    chain = Chain(augments, image.shape)
    out = np.full(chain.out_shape, 77, np.uint8)
    chain.apply(image, uniforms, out)
    return out


def usual() -> list[Augment]:
    return [RandomResizedCrop(24), HorizontalFlip(), ColourJitter(0.4, 0.4, 0.4)]
