"""Rows that are not in the page cache: stager against fio's random reads of the very same files."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench.report import Section
from bench.rounds import Answer, Entry
from bench.servers import Service
from bench.workloads.workload import Place, Workload

NAME: Final = "disk"
THREADS: Final = 2
DEPTHS: Final = (16, 32, 64, 128)
FIO_S: Final = 1.5
COUNTS: Final = {"images": 7_000, "bricks": 32_000}
COUNTS_QUICK: Final = {"images": 500, "bricks": 2_000}
BATCHES: Final = {"images": 256, "bricks": 1024}
SHAPES: Final = {"images": (224, 224, 3), "bricks": (32, 32, 32)}
TITLES: Final = {"images": "rows of 147 KB", "bricks": "bricks of 32 KB"}
TABLE: Final = """[datasets.{name}]
source = "python:bench.workloads.volumes.disk:made"
count = {count}
args = {{ shape = {shape} }}
[datasets.{name}.recipe]
fields = {{ row = {{ dtype = "uint8", shape = {shape} }} }}
"""
SECTION: Final = Section(
    NAME,
    "Not in the page cache: rows of 147 KB (images of 224x224x3) and bricks of 32 KB, shuffled",
    "MB/s of a process that has just begun, with two threads and an empty page cache, as after a reboot: "
    "checksums are compared. `larger than memory`: it is told that the machine has no memory for all of "
    "it. `later`: an epoch when all were compared, the page cache empty again. `from the disk`: the bytes "
    "that came from there by the kernel's count, of those that were read. fio reads the same files at "
    "random (libaio, direct), at the best of some depths.",
    (("rate", "MB/s"), ("rate_later", "later"), ("from_disk", "from the disk")),
)


def measure(place: Place) -> None:
    if shutil.which("fio") is None:
        place.notes.append(f"{NAME}: left out, fio is not installed: apt-get install fio")
        return
    counts = COUNTS_QUICK if place.is_quick else COUNTS
    tables = (
        TABLE.format(name=name, count=count, shape=list(SHAPES[name])) for name, count in counts.items()
    )
    with place.service(NAME, "".join(tables)) as service:
        for name in counts:
            told = service.prefetch(name)
            if told.get("problem") or told.get("failed"):
                raise RuntimeError(f"staging failed: {told}")
        place.alternate(NAME, [entry for name in counts for entry in _entries(place, service, name)])


def _entries(place: Place, service: Service, name: str) -> list[Entry]:
    files = sorted(map(str, (service.root / "cache" / "datasets" / name).rglob("*.arrow")))

    def read(larger: bool) -> Answer:
        task = {"dataset": name, "files": files, "larger": larger}
        return place.child("volumes.disk", task, **service.environ())

    return [
        *(
            Entry(f"fio, {TITLES[name]}", "limit", lambda at=depth: fio(files, name, at), f"depth {depth}")
            for depth in DEPTHS
        ),
        Entry(f"stager, {TITLES[name]}", "stager", lambda: read(False)),
        Entry(f"stager, {TITLES[name]}, larger than memory", "stager", lambda: read(True)),
    ]


def fio(files: list[str], name: str, depth: int) -> Answer:
    block = int(np.prod(SHAPES[name]))
    command = [
        "fio", "--name=rows", "--readonly", "--rw=randread", "--direct=1", "--ioengine=libaio",
        f"--bs={block}", f"--iodepth={depth}", f"--runtime={FIO_S}", "--time_based",
        "--file_service_type=random", "--output-format=json", "--filename=" + ":".join(files),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        return {"problem": done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "fio failed"}
    told = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]["read"]
    return {"rate": told["bw_bytes"] / 1e6}


def made(index: int, seed: int, shape: list[int]) -> dict[str, Any]:
    """A row of noise."""
    return {"row": np.random.default_rng([seed, index]).integers(0, 256, shape, np.uint8)}


# In a process of its own


def read_rows(task: dict[str, Any]) -> Answer:
    from stager_client.numpy import StagedArrays
    from stager_client.reading import memory

    if task["larger"]:
        memory.MEMINFO = Path(os.devnull)
    name = task["dataset"]
    data = StagedArrays(name, BATCHES[name], shuffle=True, threads=THREADS)
    rates, shares = [], []
    for _ in range(2):
        drop(task["files"])
        before, began, count = disk_bytes(), time.perf_counter(), 0
        for batch, _ in data:
            count += batch.nbytes
        rates.append(count / 1e6 / (time.perf_counter() - began))
        shares.append((disk_bytes() - before) / count)
    return {"rate": rates[0], "rate_later": rates[1], "from_disk": shares[0], "from_disk_later": shares[1]}


def drop(files: list[str]) -> None:
    """Out of the page cache."""
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def disk_bytes() -> int:
    """What this process has had the disk read, by the kernel's count."""
    told = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(told["read_bytes"])


DISK: Final = Workload(SECTION, measure)

if __name__ == "__main__":
    print(json.dumps(read_rows(json.loads(sys.argv[1]))), flush=True)
