"""Readers that read unevenly, on a cache that is too small: what stager keeps, against LRU and the optimum.

    python -m bench.orders [--samples 1500,10000] [--part 0.25] [--only two,patches,tail] [--out FILE]

Real processes read through a real service. What they read, and when, is the trace on which the other
policies are reckoned, with a cache for as many samples as stager's disk and memory together have room for.
A hit is a read that took no read of the source.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import numpy as np
import simplejpeg

from bench.report import commit, cpu
from stager.errors import NoService
from stager.eviction.simulation import hits_of_lru, hits_of_never_evict, hits_of_next_use
from stager.reader.service import Service

KINDS: Final = {
    "two": "two jobs, other seeds",
    "patches": "patches: each sample three times an epoch",
    "tail": "a long tail: weight 1 / rank",
}
OUT: Final = Path(__file__).with_name("ORDERS.md")
SIZES: Final = "1500,3000,6000"
EPOCHS: Final = 4
POINTS_OFF_MAX: Final = 2.0
MEMORY_PART: Final = 0.02  # of the cache: what does not stay on the disk goes through memory
MEMORY_SAMPLES_MIN: Final = 32  # and for the batches that are read just now
READER: Final = """
import sys, time
import numpy as np
from stager_client.numpy import StagedArrays

kind, seed, epochs, batch, pause_s = sys.argv[1], *map(int, sys.argv[2:5]), float(sys.argv[5])

def patches(epoch):
    return np.random.default_rng([seed, epoch]).permutation(np.repeat(np.arange(count), 3))

def tail(epoch):
    weights = 1 / np.arange(1, count + 1)
    return np.random.default_rng([seed, epoch]).choice(count, count, p=weights / weights.sum())

order = {"two": None, "patches": patches, "tail": tail}[kind]
arrays = StagedArrays("data", batch, shuffle=order is None, seed=seed, order=order, prefetch=1)
count = len(arrays.loader.samples)
for _ in range(epochs):
    for batch in arrays.loader:
        print(time.time(), *batch.positions, flush=True)
        time.sleep(pause_s)
"""


def main() -> None:
    options = parsed()
    began = time.monotonic()
    rows = []
    for samples in map(int, options.samples.split(",")):
        with tempfile.TemporaryDirectory(prefix="stager-bench-") as root:
            source = Path(root) / "source"
            fill(source, samples, options.side)
            for kind in options.only.split(","):
                rows.append(run(Path(root) / kind, source, kind, samples, options))
                if not options.json:  # what is done is written, whatever becomes of the rest
                    print(as_line(rows[-1]), flush=True)
                    options.out.write_text(as_markdown(rows, options, time.monotonic() - began))
    print(json.dumps(rows) if options.json else f"\n{options.out.read_text()}")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser("bench.orders", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--samples", default=SIZES, help="of the data set; several sizes with commas")
    parser.add_argument("--side", type=int, default=224, help="of a square image, in pixels")
    parser.add_argument("--part", type=float, default=0.25, help="of the samples, that the disk may hold")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--pause", type=float, default=0.03, help="seconds between two batches of a reader")
    parser.add_argument("--only", default=",".join(KINDS), help="kinds of readers")
    parser.add_argument("--json", action="store_true", help="to stdout, and nothing is written")
    parser.add_argument("--out", type=Path, default=OUT, help="where the table is written")
    return parser.parse_args()


def as_line(row: dict[str, Any]) -> str:
    rates = " | ".join(f"{row[name]:.1%}" for name in ("stager", "lru", "never_evict", "optimum"))
    verdict = "met" if row["points_off"] <= POINTS_OFF_MAX else "MISSED"
    return (
        f"| {KINDS[row['kind']]} | {row['samples']:,} | {row['room']:,} | {row['reads']:,} | {rates} "
        f"| {row['points_off']:.1f} | {verdict} |"
    )


def as_markdown(rows: Sequence[dict[str, Any]], options: argparse.Namespace, seconds: float) -> str:
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    words = sys.argv[1 : sys.argv.index("--out")] if "--out" in sys.argv else sys.argv[1:]
    date = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    met = sum(row["points_off"] <= POINTS_OFF_MAX for row in rows)
    columns = ("readers", "samples", "room", "reads", "stager", "LRU", "never evict", "optimum", "points off")
    return f"""# Eviction by known orders, by real processes

By `{" ".join(["python -m bench.orders", *words])}` on {date}, commit {commit()},
in {seconds / 60:.0f} minutes, on {len(os.sched_getaffinity(0))} cores of {cpu()}, {memory_gb:.0f} GB.
This file is written by the bench.

The disk may hold {options.part:.0%} of the samples ({row_bytes(options.side):,} bytes each), memory
{MEMORY_PART:.0%} of that or {MEMORY_SAMPLES_MIN} samples. Each reader reads {options.epochs} epochs in
batches of {options.batch}, {options.pause:g} s apart; a service stages for them. `room`: for how many samples
disk and memory together have room. LRU, never evict and the optimum (Belady's, which knows all epochs; stager
is told of the running one and the next) have a cache for so many, on the trace that was really read. A hit is
a read that took no read of the source. Resized: at most {POINTS_OFF_MAX:g} points off the optimum.

| {" | ".join(columns)} | target |
{"| --- " * (len(columns) + 1)}|
{chr(10).join(map(as_line, rows))}

{met} of {len(rows)} within {POINTS_OFF_MAX:g} points.
"""


def fill(source: Path, samples: int, side: int) -> None:
    """Images in a folder a class, of the size of what is staged: to prepare them is cheap."""
    bodies = [jpeg(number, side) for number in range(50)]
    for number in range(samples):
        path = source / f"class{number % 50:03d}" / f"{number:06d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bodies[number % 50])


def jpeg(seed: int, side: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (side // 16, side // 16, 3), dtype=np.uint8)
    return bytes(simplejpeg.encode_jpeg(np.ascontiguousarray(pixels.repeat(16, 0).repeat(16, 1)), 80))


def row_bytes(side: int) -> int:
    return side * side * 3


def run(root: Path, source: Path, kind: str, samples: int, options: argparse.Namespace) -> dict[str, Any]:
    """Hit rates of one kind of readers."""
    root.mkdir()
    config, sock = root / "stager.toml", root / "sock"
    on_disk = round(options.part * samples)
    in_memory = max(MEMORY_SAMPLES_MIN, round(MEMORY_PART * on_disk))
    config.write_text(
        f'[cache]\ndir = "{root}/cache"\ncapacity = "{on_disk * row_bytes(options.side)}"\n'
        f'reserve = "1MB"\nmemory = "{in_memory * row_bytes(options.side)}"\n[service]\nsocket = "{sock}"\n'
        f'[datasets.data]\nsource = "{source}"\nrecipe = {{crop = {options.side}}}\n'
    )
    env = {**os.environ, "STAGER_CONFIG": str(config)}
    with subprocess.Popen([sys.executable, "-m", "stagerd"], env=env, stderr=subprocess.DEVNULL) as service:
        try:
            answers(sock)
            lines = "".join(read(env, kind, options))
            told = Service(sock).get("/stats")["datasets"]["data"]
        finally:
            service.terminate()
    batches = sorted((float(at), positions) for at, *positions in map(str.split, lines.splitlines()))
    trace = np.asarray([int(position) for _, positions in batches for position in positions])
    room, reads = on_disk + in_memory, trace.tolist()
    row = {
        "kind": kind,
        "samples": samples,
        "room": room,
        "reads": len(reads),
        "stager": 1 - told["origin_reads"] / len(reads),
        "lru": hits_of_lru(reads, room) / len(reads),
        "never_evict": hits_of_never_evict(reads, room) / len(reads),
        "optimum": hits_of_next_use(trace, room) / len(reads),
        "waited": told["misses"] / len(reads),
    }
    return {**row, "points_off": 100 * (row["optimum"] - row["stager"])}


def read(env: dict[str, str], kind: str, options: argparse.Namespace) -> list[str]:
    """Have readers read side by side; what each read, and when."""
    words = [str(options.epochs), str(options.batch), str(options.pause)]
    commands = [
        [sys.executable, "-c", READER, kind, seed, *words] for seed in ("12" if kind == "two" else "1")
    ]
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
