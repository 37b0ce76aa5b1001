"""Predict a volume patch by patch, and blend what overlaps: python examples/predict_volumes.py DATASET OUT

OUT is a Zarr array that is written, with the volume's shape. The network here is a stand-in: a mean of 3x3x3.
"""

import argparse
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import zarr
from torch import nn

from stager_client.torch import Floats, GridPatch, StagedDataset, StagedLoader

Sums = npt.NDArray[np.float32]


def network() -> nn.Conv3d:
    """What a training would have made: load it here."""
    mean = nn.Conv3d(1, 1, 3, padding=1, padding_mode="replicate", bias=False)
    nn.init.constant_(mean.weight, 1 / 27)
    return mean.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("dataset", help="a data set of stager.toml with one volume")
    parser.add_argument("out", type=Path, help="the Zarr array to write")
    parser.add_argument("--field", default="scan", help="what is predicted from")
    parser.add_argument("--size", type=int, nargs=3, default=[32, 48, 48])
    parser.add_argument("--overlap", type=int, default=8)
    options = parser.parse_args()
    cut = GridPatch(tuple(options.size), options.overlap, floats={options.field: Floats(mean=0.0, std=255.0)})
    loader = StagedLoader(StagedDataset(options.dataset), 2, cut=cut, columns=[options.field])
    shape = loader.volumes[0]
    predicted: Sums = np.zeros(shape, np.float32)
    weight: Sums = np.zeros(shape, np.float32)
    model = network()
    with torch.inference_mode():
        for number, (batch, where) in enumerate(loader):
            for patch, (_, *corner) in zip(model(batch[options.field]).numpy(), where.tolist(), strict=True):
                here = tuple(slice(at, at + side) for at, side in zip(corner, options.size, strict=True))
                predicted[here] += patch[0] * cut.weights
                weight[here] += cut.weights
            print(f"batch {number + 1} of {len(loader)}", end="\r", flush=True)
    zarr.create_array(str(options.out), data=predicted / weight, chunks=(64, 64, 64))
    print(f"{options.out}: {list(shape)}, from {len(loader)} batches")


if __name__ == "__main__":
    main()
