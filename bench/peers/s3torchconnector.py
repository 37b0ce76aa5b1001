"""s3torchconnector: an object a sample, straight from S3, decoded in DataLoader workers."""

from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from s3torchconnector import S3ClientConfig, S3MapDataset
from torch.utils.data import DataLoader

from bench.peers.common import BATCH, Epoch, Task, main
from bench.peers.torch_batches import from_jpeg


def prepare(task: Task) -> None:
    raise NotImplementedError("it reads the objects as they are")


def keys_of(task: Task) -> list[list[str]]:
    """Keys and labels, from a file: thousands of them are too many for a command line."""
    return [line.split("\t") for line in Path(task["keys"]).read_text().splitlines()]


class Sample:
    """An object and its label, which is in its key."""

    def __init__(self, task: Task) -> None:
        self.labels = {key: int(label) for key, label in keys_of(task)}

    def __call__(self, reader: Any) -> tuple[torch.Tensor, int]:
        return from_jpeg(reader.read()), self.labels[reader.key]


def open_epochs(task: Task) -> Epoch:
    data = S3MapDataset.from_objects(
        [f"s3://{task['bucket']}/{key}" for key, _ in keys_of(task)],
        region="us-east-1",
        endpoint=task["endpoint_url"],
        transform=Sample(task),
        s3client_config=S3ClientConfig(force_path_style=True),
    )
    loader = DataLoader(data, BATCH, shuffle=True, num_workers=task["workers"], persistent_workers=True)
    return lambda: loader


if __name__ == "__main__":
    main(prepare, open_epochs, version("s3torchconnector"))
