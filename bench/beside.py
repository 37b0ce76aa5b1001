"""A CPU-bound training on all cores beside a full-rate prefetch: python -m bench.beside [--rounds 5]

One process a core reads resident samples and computes. Its steps are counted in turns without a prefetch and
beside one that has more to do than it can, of a data set that no reader waits for. What counts is the ratio:
the median over the rounds of how much slower the training is. What the prefetch stages meanwhile is told.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np
from PIL import Image

from bench.orders import answers
from stager.reader.service import Service

SLOWER_MAX: Final = 0.05
DISTINCT: Final = 200  # images; the others are links to them
SHAPE: Final = (375, 500, 3)
TRAINING: Final = """
import sys, time
import numpy as np
from stager_client.numpy import StagedArrays

seconds, number = float(sys.argv[1]), int(sys.argv[2])
arrays = StagedArrays("resident", 16, shuffle=True, seed=number)
weights = np.random.default_rng(number).random((256, 256), np.float32)
steps = 0

def endless():
    while True:
        yield from arrays

batches = endless()
for _ in range(20):
    next(batches)
print("ready", flush=True)
began = float(sys.stdin.readline())
while time.monotonic() < began:
    time.sleep(0.001)
while time.monotonic() < began + seconds:
    images, _ = next(batches)
    rows = images.reshape(len(images), -1)[:, :4096].astype(np.float32).reshape(-1, 256)
    for _ in range(8):
        rows = np.maximum(rows @ weights, 0) / 256
    steps += 1
print(steps, flush=True)
"""


def main() -> None:
    parser = argparse.ArgumentParser("bench.beside", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each half of a round")
    parser.add_argument(
        "--files", type=int, default=20_000, help="to prefetch: more than it can do meanwhile"
    )
    parser.add_argument("--limits", default="", help='more lines for [service], such as: cpu = "50%%"')
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stager-bench-") as root:
        fill(Path(root) / "many", options.files)
        with serving(Path(root), options.rounds, options.limits) as service:
            print(rounds(service, options.rounds, options.seconds), flush=True)


def fill(root: Path, count: int) -> None:
    """Photos of an ordinary size, few of them different."""
    rng = np.random.default_rng(0)
    images = []
    for _ in range(min(DISTINCT, count)):
        coarse = Image.fromarray(rng.integers(0, 256, (24, 32, 3), np.uint8))
        out = BytesIO()
        coarse.resize((SHAPE[1], SHAPE[0]), Image.Resampling.BICUBIC).save(out, "JPEG", quality=90)
        images.append(out.getvalue())
    for number in range(count):
        path = root / f"class{number % 10}/{number:06d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        if number < DISTINCT:
            path.write_bytes(images[number])
        else:
            path.hardlink_to(root / f"class{number % DISTINCT % 10}/{number % DISTINCT:06d}.jpg")


@contextmanager
def serving(root: Path, rounds: int, limits: str) -> Iterator[Service]:
    """A service with a resident data set, and one to prefetch for each round."""
    config = root / "stager.toml"
    names = ["resident", *(f"many{number}" for number in range(rounds))]
    tables = (
        f'[datasets.{name}]\nsource = "{root}/many"\nrecipe = {{resize = 256, crop = 224}}\n'
        for name in names
    )
    config.write_text(
        f'[cache]\ndir = "{root}/cache"\ncapacity = "30GB"\nreserve = "1MB"\n'
        f'[service]\nsocket = "{root}/sock"\n{limits}\n{"".join(tables)}'
    )
    os.environ["STAGER_CONFIG"] = str(config)
    with subprocess.Popen([sys.executable, "-m", "stagerd"], stderr=subprocess.DEVNULL) as process:
        try:
            answers(root / "sock")
            prefetch = [sys.executable, "-m", "stager", "prefetch", "resident", "--per-class", "50"]
            subprocess.run(prefetch, check=True, stdout=2)
            yield Service(root / "sock")
        finally:
            process.terminate()


def rounds(service: Service, count: int, seconds: float) -> str:
    lines = [
        "| round | steps/s alone | beside a prefetch | slower by | staged meanwhile/s |",
        "| --- | --- | --- | --- | --- |",
    ]
    slower = []
    for number in range(count):
        halves = {}
        for is_beside in (True, False) if number % 2 else (False, True):
            halves[is_beside] = half(service, seconds, f"many{number}" if is_beside else "")
        (alone, _), (beside, staged) = halves[False], halves[True]
        slower.append(1 - beside / alone)
        figures = f"{alone:.1f} | {beside:.1f} | {slower[-1]:.1%} | {staged:.0f}"
        lines.append(f"| {number + 1} | {figures} |")
    typical = median(slower)
    is_met = "met" if typical < SLOWER_MAX else "MISSED"
    lines.append(
        f"The training is slower by {typical:.1%} (median of {count} rounds); asked: under {SLOWER_MAX:.0%}: "
        f"{is_met}.\n"
    )
    return "\n".join(lines)


def half(service: Service, seconds: float, prefetched: str) -> tuple[float, float]:
    """Steps/s of the training, and samples/s that are staged meanwhile."""
    cores = len(os.sched_getaffinity(0))
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    trainings = [
        subprocess.Popen(
            [sys.executable, "-c", TRAINING, str(seconds), str(number)],
            env={**os.environ, **one_thread}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for number in range(cores)
    ]  # fmt: skip
    for training in trainings:
        assert training.stdout is not None
        assert training.stdout.readline() == "ready\n"
    job = begin(service, prefetched) if prefetched else None
    before = done(service, job)
    began = time.monotonic() + 0.5
    for training in trainings:
        assert training.stdin is not None
        training.stdin.write(f"{began}\n")
        training.stdin.flush()
    steps = sum(int(training.communicate()[0]) for training in trainings)
    staged = done(service, job) - before
    if job is not None:
        told = service.get(f"/jobs/{job}")
        assert told["state"] == "staging", f"the prefetch has ended: more --files ({json.dumps(told)})"
        service.post(f"/jobs/{job}/cancel", {})
        time.sleep(3.0)  # what is under way at the workers
    return steps / seconds, staged / seconds


def begin(service: Service, name: str) -> int:
    """A prefetch that stages at its full rate."""
    job = service.post("/jobs", {"dataset": name})["id"]
    while (told := service.get(f"/jobs/{job}"))["state"] != "staging" or told["staged"] < 500:
        assert told["error"] is None, told
        time.sleep(0.05)
    return int(job)


def done(service: Service, job: int | None) -> int:
    if job is None:
        return 0
    told = service.get(f"/jobs/{job}")
    return int(told["staged"] + told["under_way"])


if __name__ == "__main__":
    main()
