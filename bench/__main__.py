"""How near stager is to what the machine allows: staging against a bare decode loop, reading against a copy.

    make bench                       made images
    make bench ARGS="--data DIR"     real ones, in a folder a class

Ratios of one run are what counts; machines are noisy.
"""

import argparse
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from stager.recipes import open_recipe
from stager_client.torch import StagedDataset

BATCH = 256


def main() -> None:
    parser = argparse.ArgumentParser("bench")
    parser.add_argument("--data", type=Path, help="a folder a class of JPEGs; without it, images are made")
    parser.add_argument("--samples", type=int, default=3000, help="how many images")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stager-bench-") as root:
        source = Path(root) / "source"
        fill(source, options.data, options.samples)
        results = measure(Path(root), source)
    print(json.dumps(results)) if options.json else show(results)


def fill(source: Path, data: Path | None, samples: int) -> None:
    """Lay out `samples` images in a folder a class: copies of real ones, or made."""
    given = (
        [path.read_bytes() for path in sorted(data.rglob("*.JP*G"))]
        if data
        else [made(n) for n in range(200)]
    )
    for number in range(samples):
        path = source / f"class{number % 100:03d}" / f"{number:06d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(given[number % len(given)])


def made(seed: int) -> bytes:
    """A JPEG of 500x375 that costs about as much to decode as a photo."""
    rng = np.random.default_rng(seed)
    rough = Image.fromarray(rng.integers(0, 256, (24, 32, 3), dtype=np.uint8)).resize(
        (500, 375), Image.Resampling.BICUBIC
    )
    noisy = np.asarray(rough, dtype=np.int16) + rng.normal(0, 12, (375, 500, 3)).astype(np.int16)
    file = io.BytesIO()
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
    return file.getvalue()


def measure(root: Path, source: Path) -> dict[str, float]:
    """Figures in samples/s."""
    os.environ["STAGER_CONFIG"] = str(root / "stager.toml")
    Path(os.environ["STAGER_CONFIG"]).write_text(
        f'[cache]\ndir = "{root}/cache"\nreserve = "1MB"\n[service]\nsocket = "{root}/sock"\n'
        f'[datasets.bench]\nsource = "{source}"\n'
    )
    results = {"bare loop": bare_loop(source)}
    command = [sys.executable, "-m", "stager", "prefetch", "--json"]
    job = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    results["prefetch"] = job["staged"] / job["seconds"]
    data = StagedDataset("bench")
    results["memory copy"] = best(memory_copy(len(data)) for _ in range(3))
    results["read, checksums compared"] = read_all(data)
    results["read, warm"] = best(read_all(data) for _ in range(3))
    for workers in (0, 2):
        loader = torch.utils.data.DataLoader(data, BATCH, shuffle=True, num_workers=workers)
        results[f"DataLoader, {workers} workers"] = best(timed(loader, len(data)) for _ in range(2))
    return results


def bare_loop(source: Path) -> float:
    """The recipe on all cores, with no I/O: what staging cannot beat."""
    recipe = open_recipe({"kind": "image"})
    raws = [memoryview(path.read_bytes()) for path in sorted(source.rglob("*.jpg"))[:1500]]
    recipe.prepare(raws[0])
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        began = time.perf_counter()
        for _ in pool.map(recipe.prepare, raws):
            pass
        return len(raws) / (time.perf_counter() - began)


def memory_copy(samples: int) -> float:
    """Batches of rows in random order, from memory to memory, on one thread: what reading cannot beat."""
    rows = np.zeros((min(samples, 2000), 224 * 224 * 3), dtype=np.uint8)
    batch = np.empty((BATCH, rows.shape[1]), dtype=np.uint8)
    order = np.random.default_rng(0).integers(0, len(rows), (20, BATCH))
    began = time.perf_counter()
    for numbers in order:
        np.take(rows, numbers, axis=0, out=batch, mode="clip")
    return order.size / (time.perf_counter() - began)


def read_all(data: StagedDataset) -> float:
    order = np.random.default_rng(0).permutation(len(data)).tolist()
    began = time.perf_counter()
    for at in range(0, len(order), BATCH):
        data.__getitems__(order[at : at + BATCH])
    return len(order) / (time.perf_counter() - began)


def timed(loader: "torch.utils.data.DataLoader[object]", samples: int) -> float:
    began = time.perf_counter()
    for _ in loader:
        pass
    return samples / (time.perf_counter() - began)


def best(runs: Iterator[float]) -> float:
    return max(runs)


def show(results: dict[str, float]) -> None:
    limits = {"prefetch": "bare loop"}
    for name, rate in results.items():
        limit = limits.get(name, "memory copy" if "read" in name or "Loader" in name else "")
        ratio = f"{rate / results[limit]:6.2f} of {limit}" if limit else ""
        print(f"{name:28} {rate:10,.0f} samples/s  {ratio}")


if __name__ == "__main__":
    main()
