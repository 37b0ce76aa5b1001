"""Train in the manner of Lightning, and resume: python examples/train_lightning.py DATASET --classes 10

`Module` has the methods of a LightningModule, and `fit` does what its Trainer does. Stop it with Ctrl-C and
start it again: it goes on at the batch it was at, with the pixels it would have seen.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from stager_client.augment import HorizontalFlip, RandomResizedCrop
from stager_client.torch import Normalise, StagedDataset, StagedLoader


class Module(nn.Module):
    """A network, its loss, its optimizer and its data."""

    def __init__(self, data: StagedDataset) -> None:
        super().__init__()
        self.loader = StagedLoader(
            data, 32, shuffle=True, drop_last=True,
            augment=[RandomResizedCrop(64), HorizontalFlip()], transform=Normalise([0.5] * 3, [0.25] * 3),
        )  # fmt: skip
        layers: list[nn.Module] = []  # three convolutions, for a CPU: put your own network here
        for inputs, outputs in ((3, 16), (16, 32), (32, 64)):
            layers += [nn.Conv2d(inputs, outputs, 3, 2, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
        layers += [nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(64, len(data.classes))]
        self.net = nn.Sequential(*layers)

    def train_dataloader(self) -> StagedLoader:
        return self.loader

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05)

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> torch.Tensor:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["loader"] = json.dumps(self.loader.state_dict())

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.loader.load_state_dict(json.loads(str(checkpoint.pop("loader"))))


def fit(module: Module, epochs: int, path: Path) -> None:
    """Train up to so many epochs, from the checkpoint if there is one, and leave one behind."""
    loader, optimizer = module.train_dataloader(), module.configure_optimizers()
    if path.exists():
        saved = dict(np.load(path))
        module.on_load_checkpoint(saved)
        module.load_state_dict({name: torch.from_numpy(array) for name, array in saved.items()})
    try:
        while (epoch := loader.state_dict()["epoch"]) < epochs:
            for number, batch in enumerate(loader):
                loss = module.training_step(batch, number)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            told = {name: round(value, 1) for name, value in loader.stats().items()}
            print(f"epoch {epoch}: loss {loss:.3f}, {told}", flush=True)
    finally:
        saved = {name: tensor.numpy() for name, tensor in module.state_dict().items()}
        module.on_save_checkpoint(saved)
        np.savez(path, **saved)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("dataset", help="a data set of stager.toml, or one that was prefetched by URL")
    parser.add_argument("--classes", type=int, help="this many classes, drawn by the seed (default: all)")
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    fit(Module(StagedDataset(options.dataset, options.classes)), options.epochs, Path("checkpoint.npz"))
