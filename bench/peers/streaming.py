"""MosaicML Streaming: MDS shards, local or on S3, in a StreamingDataLoader."""

from pathlib import Path
from typing import Any

import torch

try:
    import torchvision  # noqa: F401
except RuntimeError:  # a build for CUDA beside a torch for the CPU; Streaming imports it and we do not use it
    _missing = torch.library.Library("torchvision", "DEF")
    for _name in ("nms", "qnms"):
        _missing.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

import streaming
from streaming import MDSWriter, StreamingDataLoader, StreamingDataset

from bench.peers.common import BATCH, SIDE, Epoch, Task, jpeg_items, main, raw_items
from bench.peers.torch_batches import DECODE

SHARD_BYTES = 1 << 26  # its default
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108


def prepare(task: Task) -> None:
    import numpy as np

    raw = task["store"] == "raw"
    columns = {"x": f"ndarray:uint8:{SIDE},{SIDE},3" if raw else "bytes", "y": "int"}
    with MDSWriter(out=task["out"], columns=columns, size_limit=SHARD_BYTES, progress_bar=False) as writer:
        if raw:
            for image, label in raw_items(task):
                writer.write({"x": np.frombuffer(image, np.uint8).reshape(SIDE, SIDE, 3), "y": label})
        else:
            for image, label in jpeg_items(task):
                writer.write({"x": image, "y": label})


class Samples(StreamingDataset):
    """Samples as (tensor, label)."""

    def __init__(self, store: str, **options: Any) -> None:
        super().__init__(**options)
        self.store = store

    def __getitem__(self, index: Any) -> tuple[torch.Tensor, int]:
        sample = super().__getitem__(index)
        return DECODE[self.store](sample["x"]), sample["y"]


def open_epochs(task: Task) -> Epoch:
    for left in SHARED_MEMORY.glob("[0-9]" * 6 + "_*"):  # by a run that was killed: its own clean-up
        left.unlink()  # stops at the first number that has none
    if "remote" in task:
        where = {"remote": task["remote"], "local": str(Path(task["cache"]) / "mds")}
    else:
        where = {"local": task["path"]}
    data = Samples(task["store"], batch_size=BATCH, shuffle=True, num_canonical_nodes=1, **where)
    workers = task["workers"]
    loader = StreamingDataLoader(data, batch_size=BATCH, num_workers=workers, persistent_workers=workers > 0)
    if "remote" in task:
        # Forked workers would share the parent's connection, and hang.
        for stream in data.streams:
            stream._downloader.clean_up()
    return lambda: loader


if __name__ == "__main__":
    main(prepare, open_epochs, streaming.__version__)
