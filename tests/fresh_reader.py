"""One training beside a source that changes: epochs, each of the newest version when it begins.

    python fresh_reader.py plain|loader ROOT SEED

Each sample is compared, byte by byte, with what it says it is. What an epoch saw goes to ROOT/epochs/.
"""

import json
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from stress_reader import kind_of
from versions_kept import cropped, image_of, said_by

TIMEOUT_S = 60.0
BATCH = 64


def epochs(kind: str, seed: int) -> Any:
    """Yield (data, the batches of an epoch); between two of them the newest version is taken."""
    from torch.utils.data import DataLoader

    from stager_client.torch import StagedDataset, StagedLoader

    data = StagedDataset("data", timeout_s=TIMEOUT_S)
    if kind == "plain":
        while True:
            yield data, DataLoader(data, BATCH, shuffle=True, num_workers=2)
            data.refresh()
    loader = StagedLoader(data, BATCH, shuffle=True, seed=seed, versions="latest")
    while True:
        yield data, loader


def read(data: Any, batches: Any, stop: Path) -> dict[str, Any] | None:
    """What an epoch saw, or None if we are to stop."""
    came: list[tuple[int, int, int]] = []  # object, content, label
    wrong: list[str] = []
    for images, labels in batches:
        for image, label in zip(images.permute(0, 2, 3, 1).numpy(), labels.tolist(), strict=True):
            said = said_by(image)
            if said is None:
                wrong.append(f"an image says nothing of itself, {np.mean(image == 0):.0%} are zeros")
            elif not np.array_equal(image, cropped(image_of(*said), image.shape[0])):
                wrong.append(f"object {said[0]}, content {said[1]}: other bytes")
            else:
                came.append((*said, label))
        if stop.exists():
            return None
    return {"came": came, "wrong": wrong, "length": len(data), "classes": data.samples.classes,
            "version": data.samples.manifest_digest}  # fmt: skip


def run(kind: str, root: Path, seed: int) -> None:
    draw = random.Random(seed)
    stop, number, errors = root / "stop", 0, Counter[str]()
    while not stop.exists():
        try:
            for data, batches in epochs(kind, seed):
                began = time.time()
                told = read(data, batches, stop)
                if told is None:
                    break
                told |= {"kind": kind, "began": began, "ended": time.time()}
                write(root / "epochs" / f"{kind}-{number:05d}.json", told)
                number += 1
                time.sleep(draw.choice((0, 0.1, 0.5)))
        except Exception as error:
            errors[kind_of(error)] += 1  # an error of another kind goes on
            write(root / f"errors-{kind}.json", errors)
            time.sleep(0.2)


def write(path: Path, value: Any) -> None:
    scratch = path.with_suffix(".part")
    scratch.write_text(json.dumps(value))
    scratch.rename(path)


if __name__ == "__main__":
    run(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
