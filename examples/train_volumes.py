"""Train a tiny 3-D U-Net on random patches of a volume: python examples/train_volumes.py DATASET

Without one at hand: --make FOLDER writes noise with bright balls, and their mask.
"""

import argparse
import time
from pathlib import Path

import torch
from torch import nn

from stager_client.torch import RandomPatch, StagedDataset, StagedLoader

CONFIG = """[datasets.balls]
source = "{folder}"
layout = "volume"
volumes = {{ scan = "scan.zarr", mask = "mask.zarr" }}
[datasets.balls.recipe]
kind = "volume"
fields = {{ scan = "uint8", mask = "uint8" }}
brick = [16, 16, 16]"""


class UNet(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv3d(1, width, 3, padding=1), nn.ReLU())
        self.deep = nn.Sequential(nn.MaxPool3d(2), nn.Conv3d(width, width, 3, padding=1), nn.ReLU())
        self.up, self.out = nn.Upsample(scale_factor=2), nn.Conv3d(2 * width, 1, 1)

    def forward(self, scan: torch.Tensor) -> torch.Tensor:
        down = self.down(scan / 255)
        return torch.as_tensor(self.out(torch.cat([down, self.up(self.deep(down))], 1)))


def make(folder: Path, side: int = 128, balls: int = 80) -> None:
    """Write a volume of noise with balls in it, and where they are."""
    import numpy as np
    import zarr

    rng = np.random.default_rng(0)
    scan, mask = rng.integers(0, 120, (side,) * 3, np.uint8), np.zeros((side,) * 3, np.uint8)
    axes = np.ogrid[:side, :side, :side]
    for *centre, radius in rng.integers([0, 0, 0, 5], [side, side, side, 14], (balls, 4)):
        mask |= (sum((axis - at) ** 2 for axis, at in zip(axes, centre, strict=True)) < radius**2).view("u1")
    for name, array in (("scan", scan + 90 * mask), ("mask", mask)):
        zarr.create_array(str(folder / f"{name}.zarr"), data=array, chunks=(64, 64, 64))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("dataset", nargs="?", help="a data set of stager.toml")
    parser.add_argument("--make", type=Path, metavar="FOLDER", help="write a volume to train on, and stop")
    options = parser.parse_args()
    if options.make:
        make(options.make)
        print(CONFIG.format(folder=options.make.resolve()))
        return
    data, cut = StagedDataset(options.dataset), RandomPatch((16, 24, 24))
    loader = StagedLoader(data, 2, seed=0, cut=cut, length=160)
    torch.set_num_threads(1)  # for a net so small, more of them cost more than they bring
    torch.manual_seed(0)
    model, loss = UNet(), nn.BCEWithLogitsLoss(pos_weight=torch.tensor(3.0))  # there is more noise than balls
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(3):
        began, dice = time.perf_counter(), 0.0
        for batch, _ in loader:
            wanted, scores = batch["mask"].float(), model(batch["scan"])
            optimizer.zero_grad()
            loss(scores, wanted).backward()
            optimizer.step()
            found = scores > 0
            dice += float(2 * (found * wanted).sum() / (found.sum() + wanted.sum() + 1e-9)) / len(loader)
        print(f"epoch {epoch}: Dice {dice:.2f}, {time.perf_counter() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main()
