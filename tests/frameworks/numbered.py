"""Images that say which they are, and who saw which of them, in which epoch."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
from PIL import Image

NAME: Final = "pets"
SAMPLES, CLASSES, SIDE = 60, 6, 16
SEEN_IN: Final = "STAGER_SEEN_IN"  # the folder for what is seen


def pixels_of(number: int) -> npt.NDArray[np.uint8]:
    """An image whose first value is its number."""
    pixels = np.random.default_rng(number).integers(0, 256, (SIDE, SIDE, 3), np.uint8)
    pixels[0, 0, 0] = number
    return pixels


def label_of(number: int) -> int:
    return number * CLASSES // SAMPLES


def make_source(root: Path) -> str:
    """Write the images, and return their table of the config."""
    for number in range(SAMPLES):
        path = root / f"class{label_of(number)}" / f"{number:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels_of(number)).save(path)
    return f'[datasets.{NAME}]\nsource = "{root}"\nrecipe = {{crop = {SIDE}}}\n'


class Seen:
    """What one rank saw: the samples of each epoch. Each must have the pixels and the label of its source."""

    run: ClassVar[str]  # what this process does now

    def __init__(self, rank: int = 0) -> None:
        self.rank = rank
        self.epochs: dict[int, list[int]] = {}

    def add(self, epoch: int, images: Any, labels: Any) -> None:
        """A batch of uint8 images, NCHW or NHWC, and their labels; tensors or arrays of any kind."""
        images = np.asarray(images)
        assert images.dtype == np.uint8
        if images.shape[1] == 3:
            images = images.transpose(0, 2, 3, 1)
        for image, label in zip(images, np.asarray(labels).tolist(), strict=True):
            number = int(image[0, 0, 0])
            assert np.array_equal(image, pixels_of(number)), f"sample {number} has other pixels"
            assert label == label_of(number), f"sample {number} has label {label}"
            self.epochs.setdefault(epoch, []).append(number)

    def save(self) -> None:
        with (Path(os.environ[SEEN_IN]) / f"{self.run}.{self.rank}.json").open("x") as file:
            json.dump(self.epochs, file)


def main(*runs: Callable[[], None]) -> None:
    """What each of these programs does: the runs that are named, one after the other."""
    by_name = {run.__name__: run for run in runs}
    for name in sys.argv[1:]:
        Seen.run = name
        by_name[name]()
