"""What does a sample cost when there are many? From 10,000 samples to 1.3 million in 10,000 classes.

    python -m bench.scale [--samples 10000,100000,1300000] [--out bench/SCALE.md] [--keep]

All parts are real: a tree of small files, an S3 server that lists as many keys, the service, the commands
and a client. Only the shards of the full catalog are files without blocks: nobody reads them here. The
largest run takes about 6 GB of disk below .bench, which are given back at the end (unless --keep).
"""

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import simplejpeg

from bench.data import NO_SUM
from bench.environments import BENCH, ROOT
from bench.peers.common import process_tree
from bench.process import end_all, run_group, start_group
from bench.scale_report import as_markdown, as_table
from bench.servers import environ, slow_s3
from stager.cache.cache import Cache
from stager.catalog.rows import ShardRow
from stager.config import SHARD_BYTES, load_config
from stager.errors import NoService
from stager.reader.order import epoch_order
from stager.reader.record import DatasetRecord, manifest_path
from stager.reader.samples.manifest import Manifest
from stager.reader.samples.sample_list import SampleList
from stager.reader.samples.subset import Subset, draw
from stager.reader.service import Service

A_CLASS: Final = 130  # samples: 1.3 million are 10,000 classes
STAGED_CLASSES: Final = 15  # really staged, to see what a shard costs the service
START_S: Final = 60.0
STOP_S: Final = 30.0
ASK_EVERY_S: Final = 0.02
RUN_S: Final = 900.0

Figures = dict[str, float]
overslept: list[float] = []  # how late this process itself was woken: what the machine adds to an answer


def main() -> None:
    parser = argparse.ArgumentParser("bench.scale", description=__doc__.splitlines()[0])
    parser.add_argument("--samples", default="10000,100000,1300000", help="how many, rising")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "SCALE.md")
    parser.add_argument("--keep", action="store_true", help="keep the files for the next run")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    sizes = sorted(int(size) for size in options.samples.split(","))
    work = BENCH / "work"
    for name in ("home", "tmp", "scale"):
        (work / name).mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the service ends with us
    began = time.monotonic()
    try:
        figures = {size: measure(work / "scale" / str(size), size) for size in sizes}
    finally:
        end_all()
        if not options.keep:
            shutil.rmtree(work / "scale", ignore_errors=True)
    minutes = (time.monotonic() - began) / 60
    print(json.dumps(figures) if options.json else as_table(figures))
    options.out.write_text(as_markdown(figures, minutes))


def measure(root: Path, samples: int) -> Figures:
    """Everything there is to know about so many samples."""
    overslept.clear()
    root.mkdir(exist_ok=True)
    source = root / "source"
    if not (root / "filled").exists():
        say(f"{samples:,}: making files")
        shutil.rmtree(source, ignore_errors=True)
        fill(source, samples)
        (root / "filled").touch()
    shutil.rmtree(root / "cache", ignore_errors=True)
    # The path of a socket has 107 bytes at most.
    with tempfile.TemporaryDirectory(prefix="stager-scale-") as short:
        place = Place(root, Path(short))
        place.configure(f'source = "{source}"')
        figures = scanned(place, samples)
        say(f"{samples:,}: a catalog with all of them")
        stage_all(place)
        figures |= served(place, samples)
        figures |= listed_by_s3(place, source, samples) | {"overslept_s": max(overslept)}
    return {name: round(value, 6) for name, value in figures.items()}


@dataclass(slots=True)
class Place:
    """A cache, its config and its service."""

    root: Path
    short: Path
    env: dict[str, str] = field(default_factory=dict)
    pid: int = 0

    def configure(self, dataset: str, cache: str = "cache") -> None:
        path = self.root / "stager.toml"
        path.write_text(
            f'[cache]\ndir = "{self.root}/{cache}"\ncapacity = "100TB"\nreserve = "1MB"\n'
            f'[service]\nsocket = "{self.short}/sock"\n[datasets.data]\n{dataset}\n'
        )
        self.env = environ(STAGER_CONFIG=str(path), NOTIFY_SOCKET=f"{self.short}/notify")

    @property
    def service(self) -> Service:
        return Service(self.short / "sock")

    @property
    def worker(self) -> int:
        """The process that scans."""
        return process_tree(self.pid)[1]

    @contextmanager
    def serving(self) -> Iterator[Figures]:
        """The service, and how long it took to be ready, in wall and in CPU time."""
        notified = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        notified.bind(f"{self.short}/notify")
        notified.settimeout(START_S)
        began = time.perf_counter()
        with (self.root / "service.log").open("a") as log:
            process = start_group([sys.executable, "-m", "stagerd"], self.env, ROOT, log)
        try:
            while b"READY=1" not in notified.recv(4096):
                pass
            ready_s, ready_cpu_s = time.perf_counter() - began, cpu_s(process.pid)
            self.pid = process.pid
            while not self._answers():
                time.sleep(0.005)
            answered_s = time.perf_counter() - began
            yield {"ready_s": ready_s, "ready_cpu_s": ready_cpu_s, "answered_s": answered_s}
        finally:
            process.terminate()
            process.wait(STOP_S)
            notified.close()
            (self.short / "notify").unlink()

    def _answers(self) -> bool:
        try:
            return bool(self.service.get("/status")["service"]["up"])
        except NoService:
            return False

    def command(self, *words: str) -> tuple[float, Any]:
        """Run `stager ... --json`; how long it took, and what it said."""
        began = time.perf_counter()
        done = run_group([sys.executable, "-m", "stager", *words, "--json"], RUN_S, self.env, ROOT)
        if done.problem:
            raise RuntimeError(f"stager {' '.join(words)}: {done.problem}")
        return time.perf_counter() - began, json.loads(done.stdout)

    def job(self, **body: object) -> dict[str, Any]:
        """Have the service do a job, and wait for its end. `staging_cpu_s`: what it took after the scan."""
        job = self.service.post("/jobs", {"dataset": "data", **body})
        scanned_s = 0.0
        while job["state"] not in ("done", "failed", "cancelled"):
            if job["state"] in ("queued", "scanning"):
                scanned_s = cpu_s(self.pid)
            time.sleep(0.05)
            job = self.service.get(f"/jobs/{job['id']}")
        if job["error"]:
            raise RuntimeError(job["error"]["message"])
        return {**job, "staging_cpu_s": cpu_s(self.pid) - scanned_s}


def scanned(place: Place, samples: int) -> Figures:
    """A scan, a plan, and a few shards, by a service that begins with nothing."""
    with place.serving():
        wait_until_idle(place.worker)
        idle_mb, idle_cpu_s = memory_mb(place.worker, "VmRSS"), cpu_s(place.worker)
        say(f"{samples:,}: scan")
        with asking(place.service) as slowest:
            job = place.job(stop_after="scan")
        figures = {
            "scan_s": job["seconds"],
            "scan_cpu_s": cpu_s(place.worker) - idle_cpu_s,
            "scan_mb": memory_mb(place.worker, "VmHWM") - idle_mb,
            "worker_mb": memory_mb(place.worker, "VmHWM"),
            "slowest_while_scanning_s": max(slowest),
        }
        figures["plan_s"], plan = place.command("prefetch", "--plan")
        assert plan["samples"] == samples, plan
        say(f"{samples:,}: some shards")
        with asking(place.service) as slowest:
            place.job(subset={"classes": STAGED_CLASSES})
        figures["slowest_while_staging_s"] = max(slowest)
        before = place.service.get("/datasets")[0]["shards"]
        job = place.job(subset={"classes": 2 * STAGED_CLASSES})  # as many more, and nobody asks meanwhile
        assert job["staged"] >= STAGED_CLASSES * A_CLASS // 2, job
        figures["shard_cpu_s"] = job["staging_cpu_s"] / (place.service.get("/datasets")[0]["shards"] - before)
    (directory,) = (place.root / "cache" / "datasets").iterdir()
    return figures | drawn(directory)


def drawn(directory: Path) -> Figures:
    """What a manifest and its records cost to open, and to choose from."""
    record = DatasetRecord.read(directory)
    path = manifest_path(directory, record.manifest, record.lineage)

    def open_manifest() -> Manifest:
        return Manifest.open(path, SampleList.open(directory, record.lineage, record.segments))

    manifest = open_manifest()
    files = [path, *(directory / name for name in record.segments)]
    few = Subset(classes=min(100, len(manifest.classes)))
    return {
        "manifest_mb": sum(file.stat().st_size for file in files) / 1e6,
        "manifest_open_s": timed(open_manifest),
        "draw_100_s": timed(lambda: draw(manifest, few)),
        "draw_all_s": timed(lambda: draw(manifest, Subset())),
        "epoch_order_s": timed(lambda: epoch_order(len(manifest), 1, 1)),
    }


def stage_all(place: Place) -> None:
    """Record shards for all samples that are not staged; their files have the right size and no blocks."""
    cache = Cache(load_config(place.root / "stager.toml"))
    dataset = cache.datasets["data"]
    row_bytes = dataset.row_bytes or 0
    order = epoch_order(
        len(dataset.manifest), 0, 0
    )  # as for a reader: rows of a shard lie all over the index
    order = order[~np.isin(order, dataset.resident())]
    count = SHARD_BYTES // row_bytes
    with cache.catalog.transaction():
        for at in range(0, len(order), count):
            number, path = cache.next_shard(dataset, "arrow")
            samples = order[at : at + count]
            size = len(samples) * row_bytes
            path.touch()
            os.truncate(path, size)
            row = ShardRow(number, dataset.id, "arrow", size, samples, False, time.time(), is_asked=True)
            cache.catalog.add_shard(row)
    cache.close()


def served(place: Place, samples: int) -> Figures:
    """A service that starts with all samples staged, and what it is asked then."""
    with place.serving():  # once, so that the index is there, as it is at every start but the first
        pass
    say(f"{samples:,}: start")
    with place.serving() as ready:
        wait_until_idle(place.worker)
        figures = {
            **ready,
            "service_mb": memory_mb(place.pid, "VmRSS"),
            "status_s": timed(lambda: place.service.get("/status")),
        }
        figures["status_command_s"], status = place.command("status")
        assert status["datasets"][0]["resident"] == samples, status
        figures["ls_command_s"], _ = place.command("ls")
        figures["ls_classes_command_s"], _ = place.command("ls", "--classes")
        record = place.service.get("/datasets/data")
        want = {"recipe": record["recipe"], "lineage": record["lineage"], "samples": [samples // 2]}
        figures["want_s"] = timed(lambda: place.service.post("/datasets/data/want", want))
        figures["why_s"] = timed(lambda: place.service.post("/datasets/data/why", {"sample": "1"}))
        say(f"{samples:,}: client")
        command = [sys.executable, "-m", "bench.scale_client", str(samples // A_CLASS)]
        with asking(place.service) as slowest:
            done = run_group(command, RUN_S, place.env, ROOT)
        figures["slowest_while_opening_s"] = max(slowest)
        if done.problem:
            raise RuntimeError(f"the client: {done.problem}")
        figures.update(done.answer())
        figures["want_in_session_s"] = timed(lambda: place.service.post("/datasets/data/want", want))
        figures["service_peak_mb"] = memory_mb(place.pid, "VmHWM")
        say(f"{samples:,}: a scan that finds something new")
        new = place.root / "source" / "n00000000" / "new.jpg"
        shutil.copy(next(new.parent.iterdir()), new)
        try:
            with asking(place.service) as slowest:
                place.job(stop_after="scan")
            figures["slowest_while_adopting_s"] = max(slowest)
        finally:
            new.unlink()
    return figures


def listed_by_s3(place: Place, source: Path, samples: int) -> Figures:
    """A scan of as many keys of an S3 server. Its objects are one file: only the listing is looked at."""
    say(f"{samples:,}: S3 listing")
    body = next(source.glob("*/*"))
    objects = ((f"bench/{key}", body, f"{number:032x}", NO_SUM) for number, key in enumerate(keys(samples)))
    shutil.rmtree(place.root / "far", ignore_errors=True)
    with slow_s3(objects) as server:
        place.configure(f'source = "s3://bench/"\nendpoint_url = "{server.endpoint_url}"', "far")
        with place.serving():
            wait_until_idle(place.worker)
            idle_mb, idle_cpu_s = memory_mb(place.worker, "VmRSS"), cpu_s(place.worker)
            job = place.job(stop_after="scan")
            assert job["scanned"] == samples, job
            return {
                "scan_s3_s": job["seconds"],
                "scan_s3_cpu_s": cpu_s(place.worker) - idle_cpu_s,
                "scan_s3_mb": memory_mb(place.worker, "VmHWM") - idle_mb,
            }


# Small parts


def keys(samples: int) -> Iterator[str]:
    for number in range(samples):
        yield f"n{number // A_CLASS:08d}/{number:08d}.jpg"


def fill(source: Path, samples: int) -> None:
    """Small JPEGs in a folder a class."""
    pixels = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    body = simplejpeg.encode_jpeg(np.ascontiguousarray(pixels.repeat(8, 0).repeat(8, 1)), 60)
    folder, last = -1, ""
    for key in keys(samples):
        name, _, file = key.partition("/")
        if name != last:
            if folder >= 0:
                os.close(folder)
            (source / name).mkdir(parents=True)
            folder, last = os.open(source / name, os.O_RDONLY), name
        fd = os.open(file, os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=folder)
        os.write(fd, body)
        os.close(fd)
    os.close(folder)


@contextmanager
def asking(service: Service) -> Iterator[list[float]]:
    """Ask the service's loop for little, again and again; how long the answers took."""
    took: list[float] = [0.0]
    done = threading.Event()

    def ask() -> None:
        asleep_at = time.perf_counter()
        while not done.wait(ASK_EVERY_S):
            began = time.perf_counter()
            overslept.append(began - asleep_at - ASK_EVERY_S)
            service.get("/stats")
            asleep_at = time.perf_counter()
            took.append(asleep_at - began)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield took
    finally:
        done.set()
        thread.join()


def timed(act: Callable[[], object], times: int = 5) -> float:
    """Seconds of the fastest of some runs: others use the machine, too."""
    took = []
    for _ in range(times):
        began = time.perf_counter()
        act()
        took.append(time.perf_counter() - began)
    return min(took)


def wait_until_idle(pid: int) -> None:
    """A worker loads its decoders at first."""
    deadline, used = time.monotonic() + START_S, -1.0
    while time.monotonic() < deadline and cpu_s(pid) - used > 0.02:
        used = cpu_s(pid)
        time.sleep(0.5)


def cpu_s(pid: int) -> float:
    """CPU seconds of one process."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def memory_mb(pid: int, name: str) -> float:
    """VmRSS: what a process has now; VmHWM: the most it ever had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) * 1024 / 1e6


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        main()
    except (RuntimeError, subprocess.SubprocessError) as error:
        sys.exit(f"bench.scale: {error}")
