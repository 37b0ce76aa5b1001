"""WebDataset: tar shards, local or over HTTP."""

from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import webdataset

from bench.peers.common import BATCH, Epoch, Task, jpeg_items, main, raw_items
from bench.peers.torch_batches import DECODE

SHARD_SAMPLES = 256
SHUFFLE_SAMPLES = 1000


def prepare(task: Task) -> None:
    out = Path(task["out"])
    out.mkdir(parents=True)
    with webdataset.ShardWriter(f"{out}/%05d.tar", maxcount=SHARD_SAMPLES, verbose=0) as writer:
        items = raw_items(task) if task["store"] == "raw" else jpeg_items(task)
        for number, (image, label) in enumerate(items):
            writer.write({"__key__": f"{number:06d}", "x.bin": image, "cls": label})


def together(samples: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.stack([image for image, _ in samples]), torch.tensor([label for _, label in samples])


def open_epochs(task: Task) -> Epoch:
    shards = task.get("urls") or [str(path) for path in sorted(Path(task["path"]).glob("*.tar"))]
    data = webdataset.WebDataset(shards, shardshuffle=100, empty_check=False).shuffle(SHUFFLE_SAMPLES)
    data = data.to_tuple("x.bin", "cls").map_tuple(DECODE[task["store"]], int)
    data = data.batched(BATCH, collation_fn=together, partial=True)
    workers = task["workers"]
    loader = webdataset.WebLoader(data, batch_size=None, num_workers=workers, persistent_workers=workers > 0)
    return lambda: loader


if __name__ == "__main__":
    main(prepare, open_epochs, version("webdataset"))
