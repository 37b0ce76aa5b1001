"""FFCV: a .beton of raw or JPEG images, read by compiled loops in threads of this process."""

from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from ffcv.fields import IntField, RGBImageField
from ffcv.fields.basics import IntDecoder
from ffcv.fields.rgb_image import RandomResizedCropRGBImageDecoder, SimpleRGBImageDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.transforms import RandomHorizontalFlip, ToTensor
from ffcv.writer import DatasetWriter

from bench.peers.common import BATCH, SIDE, Epoch, Task, centre_crop, main, paths, pixels

QUALITY = 90  # as stager's recipe has it


class FromJpegs:
    """What a user gives to the writer: an indexed data set that decodes."""

    def __init__(self, task: Task) -> None:
        self.items = paths(task)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        path, label = self.items[index]
        return centre_crop(path), label


class FromPixels:
    """The pixels that stager staged, so that both store the same ones."""

    def __init__(self, task: Task) -> None:
        self.images, self.labels = pixels(task)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        return np.ascontiguousarray(self.images[index]), int(self.labels[index])


def prepare(task: Task) -> None:
    Path(task["out"]).parent.mkdir(parents=True, exist_ok=True)
    # max_resolution bounds the longer side and would store fewer pixels than the others have: it is not set.
    mode = (
        {"write_mode": "jpg", "jpeg_quality": QUALITY} if task["store"] == "jpeg" else {"write_mode": "raw"}
    )
    writer = DatasetWriter(task["out"], {"x": RGBImageField(**mode), "y": IntField()}, num_workers=2)
    writer.from_indexed_dataset(FromPixels(task) if "pixels" in task else FromJpegs(task))


def open_epochs(task: Task) -> Epoch:
    if task["augment"]:
        images: list[Any] = [RandomResizedCropRGBImageDecoder((SIDE, SIDE)), RandomHorizontalFlip()]
    else:
        images = [SimpleRGBImageDecoder()]
    loader = Loader(
        task["path"],
        batch_size=BATCH,
        num_workers=task["workers"],
        os_cache=True,
        drop_last=False,
        order=OrderOption.RANDOM,
        pipelines={"x": [*images, ToTensor()], "y": [IntDecoder(), ToTensor()]},
    )
    return lambda: loader


if __name__ == "__main__":
    main(prepare, open_epochs, version("ffcv"))
