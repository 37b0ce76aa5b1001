"""Augmentation of whole batches in torch: the definitions of `augment`, whatever the device."""

import numpy as np
import pytest
import torch

from augmenting import applied, image_of
from stager_client.augment import (
    Augment,
    CentreCrop,
    ColourJitter,
    HorizontalFlip,
    RandomCrop,
    RandomResizedCrop,
)
from stager_client.augment.torch import augment_batch, can_augment
from stager_client.augment.transforms import Chain

JITTERS = [ColourJitter(0.5), ColourJitter(contrast=0.5), ColourJitter(saturation=(0.0, 2.5))]


def both(augments: list[Augment], sides: tuple[int, int], channels: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Some images, augmented a batch at a time by torch, and one by one."""
    images = [np.roll(image_of(*sides, channels), number, axis=1) for number in range(32)]
    uniforms = Chain(augments, images[0].shape).uniforms(np.arange(32, dtype=np.uint64), 1, 2)
    batch = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2)
    found = augment_batch(augments, batch, uniforms)
    assert found.dtype == torch.uint8
    assert found.is_contiguous(memory_format=torch.channels_last)
    singly = [applied(augments, image, row) for image, row in zip(images, uniforms, strict=True)]
    return found.permute(0, 2, 3, 1).numpy().astype(int), np.stack(singly).astype(int)


@pytest.mark.parametrize(
    "augments",
    [
        [CentreCrop((9, 12))],
        [RandomCrop(20, padding=4)],
        [RandomCrop((8, 30), padding=9)],
        [HorizontalFlip()],
        [RandomCrop(12), HorizontalFlip(0.3), CentreCrop(8)],
    ],
)
@pytest.mark.parametrize("channels", [1, 3])
def test_what_moves_pixels_gives_the_same_pixels(augments: list[Augment], channels: int) -> None:
    batch, singly = both(augments, (19, 23), channels)
    assert (batch == singly).all()


@pytest.mark.parametrize("size", [(16, 16), (40, 37)])
def test_a_box_is_resized_as_by_opencv_but_for_rounding(size: tuple[int, int]) -> None:
    batch, singly = both([RandomResizedCrop(size), HorizontalFlip()], (25, 31))
    assert np.abs(batch - singly).max() <= 1


@pytest.mark.parametrize("jitter", JITTERS)
def test_a_colour_step_is_the_same_but_for_rounding(jitter: ColourJitter) -> None:
    batch, singly = both([jitter], (19, 23))
    assert np.abs(batch - singly).max() <= 2


def test_colour_steps_come_in_the_order_drawn() -> None:
    batch, singly = both([ColourJitter(0.4, 0.4, 0.4)], (19, 23))
    assert np.abs(batch - singly).max() <= 4


def test_an_augmentation_of_the_users_own_is_left_to_the_threads() -> None:
    class Own(HorizontalFlip):
        pass

    assert can_augment([CentreCrop(4), HorizontalFlip()])
    assert not can_augment([CentreCrop(4), Own()])
