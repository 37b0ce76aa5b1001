"""Readers that read unevenly, on a cache that is too small: what stager keeps, against LRU and the optimum.

    python -m bench.orders [--samples 6000] [--part 0.25] [--only two,patches,tail]

Real processes read through a real service. What they read, and when, is the trace on which the other
policies are reckoned, with a cache for as many samples. A hit is a read that took no read of the source.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import numpy as np
import simplejpeg

from stager.control import Service
from stager.errors import NoService
from stager.simulation import hits_of_lru, hits_of_never_evict, hits_of_next_use

KINDS: Final = {
    "two": "two jobs, other seeds",
    "patches": "each sample three times an epoch",
    "tail": "a long tail: weight 1 / rank",
}
EPOCHS: Final = 4
ROW_BYTES: Final = 224 * 224 * 3
MEMORY: Final = "12MB"
READER: Final = """
import sys, time
import numpy as np
from stager_client.numpy import StagedArrays

kind, seed, epochs, pause_s = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])

def patches(epoch):
    return np.random.default_rng([seed, epoch]).permutation(np.repeat(np.arange(count), 3))

def tail(epoch):
    weights = 1 / np.arange(1, count + 1)
    return np.random.default_rng([seed, epoch]).choice(count, count, p=weights / weights.sum())

order = {"two": None, "patches": patches, "tail": tail}[kind]
arrays = StagedArrays("data", 8, shuffle=order is None, seed=seed, order=order, prefetch=1)
count = len(arrays.loader.samples)
for _ in range(epochs):
    for batch in arrays.loader:
        print(time.time(), *batch.positions, flush=True)
        time.sleep(pause_s)
"""


def main() -> None:
    parser = argparse.ArgumentParser("bench.orders", description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=6000)
    parser.add_argument(
        "--part", type=float, default=0.25, help="of the samples, that the cache has room for"
    )
    parser.add_argument("--pause", type=float, default=0.04, help="seconds between two batches of 8")
    parser.add_argument("--only", default=",".join(KINDS), help="kinds of readers")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stager-bench-") as root:
        source = Path(root) / "source"
        fill(source, options.samples)
        rows = [run(Path(root) / kind, source, kind, options) for kind in options.only.split(",")]
    if options.json:
        print(json.dumps(rows))
        return
    print(f"| readers | cache | reads | stager | LRU | never evict | optimum |\n{'| --- ' * 7}|")
    for row in rows:
        rates = " | ".join(f"{row[name]:.1%}" for name in ("stager", "lru", "never_evict", "optimum"))
        print(f"| {KINDS[row['kind']]} | {row['part']:.0%} | {row['reads']:,} | {rates} |")


def fill(source: Path, samples: int) -> None:
    """Small images in a folder a class: to stage them is cheap, and what is staged is of the usual size."""
    bodies = [small_jpeg(number) for number in range(50)]
    for number in range(samples):
        path = source / f"class{number % 50:03d}" / f"{number:06d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bodies[number % 50])


def small_jpeg(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (72, 96, 3), dtype=np.uint8)
    return bytes(simplejpeg.encode_jpeg(pixels, 80))


def run(root: Path, source: Path, kind: str, options: argparse.Namespace) -> dict[str, Any]:
    """Hit rates of one kind of readers."""
    root.mkdir()
    config, sock = root / "stager.toml", root / "sock"
    capacity = int(options.part * options.samples * ROW_BYTES)
    config.write_text(
        f'[cache]\ndir = "{root}/cache"\ncapacity = "{capacity}"\nreserve = "1MB"\nmemory = "{MEMORY}"\n'
        f'[service]\nsocket = "{sock}"\n[datasets.data]\nsource = "{source}"\n'
    )
    env = {**os.environ, "STAGER_CONFIG": str(config)}
    with subprocess.Popen([sys.executable, "-m", "stagerd"], env=env, stderr=subprocess.DEVNULL) as service:
        try:
            answers(sock)
            seeds = (1, 2) if kind == "two" else (1,)
            lines = "".join(read(env, kind, seeds, options.pause))
            told = Service(sock).get("/stats")["datasets"]["data"]
        finally:
            service.terminate()
    batches = sorted((float(at), positions) for at, *positions in map(str.split, lines.splitlines()))
    trace = np.asarray([int(position) for _, positions in batches for position in positions])
    room, reads = round(options.part * options.samples), trace.tolist()
    return {
        "kind": kind,
        "part": options.part,
        "reads": len(reads),
        "stager": 1 - told["origin_reads"] / len(reads),
        "lru": hits_of_lru(reads, room) / len(reads),
        "never_evict": hits_of_never_evict(reads, room) / len(reads),
        "optimum": hits_of_next_use(trace, room) / len(reads),
    }


def read(env: dict[str, str], kind: str, seeds: tuple[int, ...], pause_s: float) -> list[str]:
    """Have readers read side by side; what each read, and when."""
    commands = [[sys.executable, "-c", READER, kind, str(seed), str(EPOCHS), str(pause_s)] for seed in seeds]
    with ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in commands]
        readers = [
            subprocess.Popen(command, env=env, stdout=file)
            for command, file in zip(commands, files, strict=True)
        ]
        codes = [reader.wait() for reader in readers]
        if any(codes):
            sys.exit("bench.orders: a reader failed")
        for file in files:
            file.seek(0)
        return [file.read() for file in files]


def answers(sock: Path) -> None:
    """Wait until a service answers."""
    deadline = time.monotonic() + 30
    while True:
        try:
            Service(sock).get("/status")
            return
        except NoService:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


if __name__ == "__main__":
    main()
