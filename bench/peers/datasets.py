"""Hugging Face datasets: Arrow files with the pixels in a binary column, the fastest of its ways."""

import shutil
from collections.abc import Iterator
from typing import Any

import datasets
import numpy as np
import torch
from torch.utils.data import DataLoader

from bench.peers.common import BATCH, SIDE, Epoch, Task, main, raw_items

datasets.disable_progress_bars()


def rows(task: Task) -> Iterator[dict[str, Any]]:
    for image, label in raw_items(task):
        yield {"x": image, "y": label}


def prepare(task: Task) -> None:
    columns = datasets.Features(x=datasets.Value("large_binary"), y=datasets.Value("int64"))
    cache = task["out"] + ".tmp"
    made = datasets.Dataset.from_generator(rows, gen_kwargs={"task": task}, features=columns, cache_dir=cache)
    made.save_to_disk(task["out"])
    shutil.rmtree(cache)


def together(samples: list[dict[str, Any]]) -> tuple[torch.Tensor, torch.Tensor]:
    images = np.stack([np.frombuffer(row["x"], np.uint8).reshape(SIDE, SIDE, 3) for row in samples])
    return torch.from_numpy(images), torch.tensor([row["y"] for row in samples])


def open_epochs(task: Task) -> Epoch:
    data = datasets.load_from_disk(task["path"])
    workers = task["workers"]
    loader = DataLoader(
        data, BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0, collate_fn=together
    )
    return lambda: loader


if __name__ == "__main__":
    main(prepare, open_epochs, datasets.__version__)
