"""Train with Lightning on a staged data set, and resume: python examples/train_lightning.py DATASET

Stop it with Ctrl-C and start it again: it goes on at the batch of its last checkpoint, with the pixels that
would have come next. It needs `pip install lightning`. `--devices 2` trains with two processes.
"""

import argparse
from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

from stager_client.augment import HorizontalFlip, RandomResizedCrop
from stager_client.torch import Normalise, StagedDataset, StagedLoader

CHECKPOINT = Path("checkpoints/last.ckpt")


class Classifier(lightning.LightningModule):
    """A network, its loss and its optimizer."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []  # three convolutions, for a CPU: put your own network here
        for inputs, outputs in ((3, 16), (16, 32), (32, 64)):
            layers += [nn.Conv2d(inputs, outputs, 3, 2, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
        layers += [nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(64, classes)]
        self.net = nn.Sequential(*layers)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05)

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> torch.Tensor:
        images, labels = batch
        self.loss = nn.functional.cross_entropy(self.net(images), labels)
        return self.loss

    def on_train_epoch_end(self) -> None:
        print(f"epoch {self.current_epoch}: loss {self.loss:.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("dataset", help="a data set of stager.toml, or one that was prefetched by URL")
    parser.add_argument("--classes", type=int, help="this many classes, drawn by the seed (default: all)")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--devices", type=int, default=1, help="this many processes, each with its part")
    options = parser.parse_args()

    data = StagedDataset(options.dataset, options.classes)
    loader = StagedLoader(
        data, 32, shuffle=True, drop_last=True,
        augment=[RandomResizedCrop(64), HorizontalFlip()], transform=Normalise([0.5] * 3, [0.25] * 3),
    )  # fmt: skip
    trainer = lightning.Trainer(
        max_epochs=options.epochs, accelerator="cpu", devices=options.devices, logger=False,
        enable_progress_bar=False,
        # Lightning saves the loader's state in its checkpoints, and loads it from them.
        callbacks=[ModelCheckpoint(CHECKPOINT.parent, save_last=True, every_n_train_steps=10)],
    )  # fmt: skip
    resumed = str(CHECKPOINT) if CHECKPOINT.exists() else None
    trainer.fit(Classifier(len(data.classes)), loader, ckpt_path=resumed)


if __name__ == "__main__":
    main()
