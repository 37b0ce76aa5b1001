"""Samples that a function makes, staged while a network trains on them: python examples/generate.py FOLDER

It writes FOLDER/stager.toml, which names `swing` of this file, has the samples made, and trains.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

CONFIG = """
[cache]
dir = "{folder}/cache"
reserve = "1GB"

[service]
socket = "{folder}/stager.sock"

[datasets.pendulums]
source = "python:generate:swing"
count = {count}
args = {{ frames = 250 }}

[datasets.pendulums.recipe]
folder = "{here}"
fields = {{ path = {{ dtype = "float32", shape = [250, 2] }}, length = {{ dtype = "float32", shape = [] }} }}
"""


def swing(index: int, seed: int, frames: int) -> dict[str, np.ndarray]:
    """A pendulum of some length, and where its end is at each frame. A real simulator takes longer."""
    rng = np.random.default_rng([seed, index])
    length, angle, speed = rng.uniform(0.5, 2.0), rng.uniform(-2.0, 2.0), rng.normal()
    path = np.empty((frames, 2), np.float32)
    for frame in range(frames):
        for _ in range(20):
            speed -= 9.81 / length * np.sin(angle) * 0.002
            angle += speed * 0.002
        path[frame] = length * np.sin(angle), -length * np.cos(angle)
    return {"path": path, "length": np.asarray(length, np.float32)}


def train(epochs: int) -> None:
    """Tell the length of a pendulum from how it moves."""
    import torch  # here, so that the processes that run `swing` need not
    from torch import nn

    from stager_client.torch import StagedDataset, StagedLoader

    data = StagedDataset("pendulums")
    loader = StagedLoader(data, 50, shuffle=True)
    model = nn.Sequential(nn.Flatten(), nn.Linear(500, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(epochs):
        losses = []
        for fields, _ in loader:
            loss = nn.functional.mse_loss(model(fields["path"])[:, 0], fields["length"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch}: loss {np.mean(losses):.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="where stager.toml goes, and the cache")
    parser.add_argument("--count", type=int, default=1000)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    config = options.folder.absolute() / "stager.toml"
    here = Path(__file__).absolute().parent
    config.write_text(CONFIG.format(folder=config.parent, count=options.count, here=here))
    os.environ["STAGER_CONFIG"] = str(config)
    subprocess.run([sys.executable, "-m", "stager", "prefetch", "pendulums"], check=True)
    train(epochs=3)
