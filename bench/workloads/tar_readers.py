"""Who reads the tars and Parquet files of the workload: stager, WebDataset, HF datasets.

Each in its own environment. Two epochs, shuffled: the first one from nothing, the second in the same process.
The label of a sample is the number of its file: so the order of labels tells how well files are mixed.
"""

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.peers.common import BATCH, Epoch, Task, centre_crop, cold, say

BUFFER = 1000  # samples that are shuffled where only a buffer can be
WORKERS = 2


def webdataset_tars(task: Task) -> Epoch:
    import webdataset

    data = webdataset.WebDataset(files(task, "tar"), shardshuffle=100, empty_check=False).shuffle(BUFFER)
    data = data.to_tuple("jpg", "cls").map_tuple(centre_crop, int)
    data = data.batched(BATCH, collation_fn=together, partial=True)
    loader = webdataset.WebLoader(data, batch_size=None, num_workers=WORKERS, persistent_workers=True)
    return lambda: loader


def datasets_tars(task: Task) -> Epoch:
    """Streamed, as one reads tars."""
    import datasets

    data = datasets.load_dataset("webdataset", data_files=files(task, "tar"), split="train", streaming=True)
    data = data.cast_column("jpg", datasets.Image(decode=False)).shuffle(seed=0, buffer_size=BUFFER)
    data = data.map(lambda row: {"pixels": centre_crop(row["jpg"]["bytes"]), "y": int(row["cls"])})
    return loaded(data.select_columns(["pixels", "y"]), shuffle=False)


def datasets_parquet(task: Task) -> Epoch:
    """Made to Arrow files first, which it then reads anywhere."""
    import datasets

    data = datasets.load_dataset("parquet", data_files=files(task, "parquet"), split="train")
    data.set_transform(
        lambda rows: {"pixels": [centre_crop(one["bytes"]) for one in rows["image"]], "y": rows["label"]}
    )
    return loaded(data, shuffle=True)


def loaded(data: Any, shuffle: bool) -> Epoch:
    loader = torch.utils.data.DataLoader(
        data, BATCH, shuffle=shuffle, num_workers=WORKERS, persistent_workers=True,
        collate_fn=lambda rows: together([(row["pixels"], row["y"]) for row in rows]),
    )  # fmt: skip
    return lambda: loader


def staged(task: Task) -> Epoch:
    from stager_client.torch import StagedDataset, StagedLoader

    loader = StagedLoader(StagedDataset(task["dataset"]), BATCH, shuffle=True, threads=WORKERS)

    def epoch() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for images, labels in loader:
            yield images.permute(0, 2, 3, 1), labels

    return epoch


READERS = {
    "WebDataset, tars": webdataset_tars,
    "HF datasets, tars": datasets_tars,
    "HF datasets, Parquet": datasets_parquet,
    "stager, tars": staged,
    "stager, Parquet": staged,
}


def files(task: Task, ending: str) -> list[str]:
    return sorted(map(str, Path(task["folder"], ending).glob(f"*.{ending}")))


def together(samples: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    images = np.stack([np.asarray(image, np.uint8) for image, _ in samples])
    return torch.from_numpy(images), torch.tensor([label for _, label in samples])


def mixed(labels: np.ndarray) -> float:
    """How many different files a batch comes from, of what a draw from all samples would give."""
    count = int(labels.max()) + 1
    batches = [labels[at : at + BATCH] for at in range(0, len(labels) - BATCH + 1, BATCH)]
    expected = count * (1 - (1 - 1 / count) ** BATCH)
    return float(np.mean([len(np.unique(batch)) for batch in batches]) / expected)


def act(task: Task) -> dict[str, Any]:
    order: list[np.ndarray] = []

    def opened(task: Task) -> Epoch:
        epoch = READERS[task["who"]](task)

        def noted() -> Iterable[tuple[Any, Any]]:
            order.clear()
            for images, labels in epoch():
                order.append(np.asarray(labels))
                yield images, labels

        return noted

    answer = cold(opened, task)
    return {**answer, "mixed": mixed(np.concatenate(order))}


if __name__ == "__main__":
    say(act(json.loads(sys.argv[1])))
