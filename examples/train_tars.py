"""Train on WebDataset tars, globally shuffled: python examples/train_tars.py DATASET --where "fold != 1"

Without tars at hand: python examples/train_tars.py --make FOLDER. It writes eight tars of photos, each with a
class and a fold, and the tables for stager.toml.
"""

import argparse
import io
import json
import tarfile
import time
from pathlib import Path

import torch
from torch import nn

from stager_client.torch import StagedDataset, StagedLoader

CONFIG = """[datasets.shapes]
source = "{folder}"
layout = "tar"
[datasets.shapes.recipe]
kind = "image"
resize = 64
crop = 64"""


def make(folder: Path, tars: int = 8, samples: int = 250) -> None:
    """Write tars of look-alike photos: those of class 1 have a bright square."""
    import numpy as np
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for number in range(tars):
        with tarfile.open(folder / f"train-{number:03}.tar", "w") as tar:
            for sample in range(samples):
                label = int(rng.integers(2))
                pixels = rng.integers(0, 120, (96, 128, 3), dtype=np.uint8)
                pixels[30:60, 40:70] += np.uint8(100 * label)
                photo = io.BytesIO()
                Image.fromarray(pixels).save(photo, "JPEG", quality=85)
                told = json.dumps({"fold": sample % 4}).encode()
                members = {"jpg": photo.getvalue(), "cls": str(label).encode(), "json": told}
                for ending, data in members.items():
                    info = tarfile.TarInfo(f"{number * samples + sample:06}.{ending}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("dataset", nargs="?", help="a data set of stager.toml")
    parser.add_argument("--make", type=Path, metavar="FOLDER", help="write tars to train on, and stop")
    parser.add_argument("--where", help='which samples, as "fold != 1"')
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    if options.make:
        make(options.make)
        print(CONFIG.format(folder=options.make.resolve()))
        return
    loader = StagedLoader(StagedDataset(options.dataset, where=options.where), 64, shuffle=True, seed=0)
    layers = nn.Conv2d(3, 16, 5, 4), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(16, 2)
    model = nn.Sequential(*layers)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(options.epochs):
        began, right, seen = time.perf_counter(), 0, 0
        for images, labels in loader:
            scores = model(images.float() / 255)
            optimizer.zero_grad()
            nn.functional.cross_entropy(scores, labels).backward()
            optimizer.step()
            right, seen = right + int((scores.argmax(1) == labels).sum()), seen + len(labels)
        seconds = time.perf_counter() - began
        print(f"epoch {epoch}: {right / seen:.0%} right, {seen / seconds:,.0f} samples/s", flush=True)


if __name__ == "__main__":
    main()
