"""LitData: optimize() and a StreamingDataLoader, local or on S3."""

from importlib.metadata import version
from pathlib import Path
from typing import Any

import litdata
import numpy as np
import torch

from bench.peers.common import BATCH, Epoch, Task, centre_crop, main, paths, pixels
from bench.peers.torch_batches import DECODE


def raw_sample(item: tuple[str, int]) -> dict[str, Any]:
    path, label = item
    return {"x": np.ascontiguousarray(centre_crop(path)), "y": label}


def jpeg_sample(item: tuple[str, int]) -> dict[str, Any]:
    path, label = item
    return {"x": Path(path).read_bytes(), "y": label}


class PixelSample:
    """One of the samples that stager staged, by number."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.images: Any = None

    def __call__(self, number: int) -> dict[str, Any]:
        if self.images is None:
            self.images, self.labels = pixels(self.task)
        return {"x": np.ascontiguousarray(self.images[number]), "y": int(self.labels[number])}

    def __getstate__(self) -> dict[str, Any]:
        return {"task": self.task, "images": None}


def prepare(task: Task) -> None:
    sample: Any = jpeg_sample if task["store"] == "jpeg" else raw_sample
    inputs: Any = paths(task)
    if "pixels" in task:
        sample, inputs = PixelSample(task), list(range(task["samples"]))
    litdata.optimize(sample, inputs, output_dir=task["out"], chunk_bytes="64MB", num_workers=2)


class Samples(litdata.StreamingDataset):
    """Samples as (tensor, label)."""

    store = "raw"

    def __getitem__(self, index: Any) -> tuple[torch.Tensor, int]:
        sample = super().__getitem__(index)
        return DECODE[self.store](sample["x"]), sample["y"]


def open_epochs(task: Task) -> Epoch:
    where: dict[str, Any] = {"input_dir": task.get("path")}
    if "remote" in task:
        from litdata.streaming import downloader

        # It cannot be told to take a plain http endpoint.
        options = getattr(downloader, "_OBSTORE_CLIENT_OPTIONS", None) or {}
        downloader._OBSTORE_CLIENT_OPTIONS = {**options, "allow_http": True}
        where = {
            "input_dir": task["remote"],
            "cache_dir": str(Path(task["cache"]) / "litdata"),
            "storage_options": {"endpoint_url": task["endpoint_url"]},
        }
    # Without batch_decode=False, a shuffled epoch of raw samples is eight times slower.
    data = Samples(shuffle=True, drop_last=False, batch_decode=False, **where)
    data.store = task["store"]
    workers = task["workers"]
    loader = litdata.StreamingDataLoader(
        data, batch_size=BATCH, num_workers=workers, persistent_workers=workers > 0
    )
    return lambda: loader


if __name__ == "__main__":
    main(prepare, open_epochs, version("litdata"))
