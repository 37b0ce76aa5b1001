"""Epoch after epoch, a training process has no more memory, descriptors and threads than before.

`make soak` runs 90 epochs of each way; here it is a short one.
"""

import json
import os
from collections.abc import Iterator

import pytest

from making import image_folder
from running import Place
from sets import table

EPOCHS = int(os.environ.get("STAGER_SOAK_EPOCHS", "12"))
SAMPLES, BATCH, SIDE = 240, 40, 64
BATCH_MB = BATCH * SIDE * SIDE * 3 / 2**20
SLACK_MB = 4.0

READING = """
import gc, json, os, sys, threading
from stager_client.augment import HorizontalFlip, RandomResizedCrop
from stager_client.numpy import StagedArrays
from stager_client.torch import StagedDataset, StagedLoader
import torch

way, epochs, batch = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)
augment = [RandomResizedCrop(64), HorizontalFlip()] if way == "augment" else []
data = StagedDataset("data")
loader = {
    "arrays": lambda: StagedArrays("data", batch, shuffle=True),
    "DataLoader": lambda: torch.utils.data.DataLoader(data, batch, shuffle=True),
}.get(way, lambda: StagedLoader(data, batch, shuffle=True, augment=augment))()

def anonymous_mb():
    with open("/proc/self/smaps_rollup") as rollup:
        return next(int(line.split()[1]) for line in rollup if line.startswith("Anonymous:")) / 1024

told = [(anonymous_mb(), 0, 0)]
for epoch in range(epochs):
    for images, labels in loader:
        if epoch % 3 == 1:
            break  # as one that looks for a bug does
    gc.collect()
    for thread in threading.enumerate():
        if thread.name.startswith("stager-batch"):
            thread.join()  # its iteration was broken off
    told.append((anonymous_mb(), len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))))
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    place = Place(tmp_path_factory.mktemp("soak"))
    image_folder(place.root / "source", 6, SAMPLES // 6)
    place.configure(table("data", place.root / "source", f"crop = {SIDE}"))
    with place.service():
        assert place.run("prefetch", "data").returncode == 0
        yield place


@pytest.mark.timeout(60 + 10 * EPOCHS)
@pytest.mark.parametrize("way", ["plain", "augment", "arrays", "DataLoader"])
def test_memory_descriptors_and_threads_stay_flat(place: Place, way: str) -> None:
    done = place.python(READING, way, str(EPOCHS), str(BATCH), timeout_s=60 + 10 * EPOCHS)
    assert done.returncode == 0, done.stderr
    start, *epochs = json.loads(done.stdout)
    third = len(epochs) // 3
    early, late = epochs[third : 2 * third], epochs[-third:]
    most = [max(column) for column in zip(*early, strict=True)]
    least = [min(column) for column in zip(*late, strict=True)]  # a leak shows there, a report under way not
    assert least[0] <= most[0] + SLACK_MB
    assert least[1] <= most[1]
    assert least[2] <= most[2]
    # What is anonymous is the buffers: two ahead, one held, one on its way; the data are the page cache's.
    assert least[0] - start[0] <= 5 * BATCH_MB + 3 * SLACK_MB
