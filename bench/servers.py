"""The slow S3 server and the service, for the time of a run."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

from bench.environments import BENCH, ROOT
from bench.peers.common import cpu_s, memory_mb
from bench.process import end_group, run_group, start_group

START_S: Final = 60.0
STOP_S: Final = 15.0
IDLE_S: Final = 0.5
DELAY_MS, BYTES_PER_S = 30.0, 200e6  # what "slow" means here


def environ(**more: str) -> dict[str, str]:
    """The variables of every run: no settings of the user's for AWS or stager, this tree before any other."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "STAGER_"))}
    paths = os.pathsep.join(str(path) for path in (ROOT, ROOT / "service", ROOT / "clients"))
    work = BENCH / "work"
    return {
        **kept,
        "PYTHONPATH": paths,
        "PYTHONUNBUFFERED": "1",
        "HOME": str(work / "home"),
        "TMPDIR": str(work / "tmp"),
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
        "AWS_ACCESS_KEY_ID": "bench",
        "AWS_SECRET_ACCESS_KEY": "not-a-secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "HF_HUB_OFFLINE": "1",
        "DISABLE_VERSION_CHECK": "1",
        # Threads of torch that wait by spinning take the cores from the server and the service.
        "OMP_WAIT_POLICY": "PASSIVE",
        **more,
    }


@dataclass(frozen=True, slots=True)
class SlowS3:
    """A server that runs."""

    endpoint_url: str

    def stats(self) -> dict[str, Any]:
        with urlopen(self.endpoint_url + "/-/stats") as answer:  # noqa: S310
            return dict(json.load(answer))

    def reset(self) -> None:
        with urlopen(self.endpoint_url + "/-/reset") as answer:  # noqa: S310
            answer.read()


@contextmanager
def slow_s3(
    objects: Iterable[tuple[str, Path, str, str]], delay_ms: float = 0.0, bytes_per_s: float = 0.0
) -> Iterator[SlowS3]:
    """Serve (bucket/key, file, etag, checksum), each request late by so much, all of them within a rate."""
    lines = sorted((path, f"{path}\t{file}\t{etag}\t{sum}\n") for path, file, etag, sum in objects)
    with tempfile.NamedTemporaryFile("w", prefix="objects-", dir=BENCH / "work" / "tmp") as listing:
        listing.write("".join(line for _, line in lines))
        listing.flush()
        command = [str(_compiled()), listing.name, str(delay_ms), str(bytes_per_s)]
        process = start_group(command, environ(), ROOT, subprocess.DEVNULL)
        try:
            assert process.stdout is not None
            port = process.stdout.readline().strip()
            if not port:
                raise RuntimeError("the slow S3 server did not start")
            yield SlowS3(f"http://127.0.0.1:{port}")
        finally:
            end_group(process.pid)
            process.wait()


def _compiled() -> Path:
    source, program = ROOT / "bench" / "slow_s3.c", BENCH / "slow_s3"
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        done = run_group(["cc", "-O2", "-o", str(program), str(source)], 60, dict(os.environ), ROOT)
        if done.problem:
            raise RuntimeError(f"slow_s3.c does not compile: {done.problem}")
    return program


@dataclass(slots=True)
class Service:
    """A service that runs, on a cache of its own."""

    root: Path
    env: dict[str, str]  # what it has beyond that of every run
    pid: int = 0
    peak_mb: float = 0.0

    def environ(self) -> dict[str, str]:
        return environ(STAGER_CONFIG=str(self.root / "stager.toml"), **self.env)

    def prefetch(self, dataset: str = "bench", *options: str, deadline_s: float = 600.0) -> dict[str, Any]:
        """Stage a subset, or all; return what `stager prefetch --json` tells."""
        command = [sys.executable, "-m", "stager", "prefetch", dataset, *options, "--json"]
        done = run_group(command, deadline_s, self.environ(), ROOT)
        return {"problem": done.problem} if done.problem else done.answer()


def images(endpoint_url: str, recipe: str = "") -> str:
    """The table of the data set `bench`: images on a slow S3."""
    table = f'[datasets.bench]\nsource = "s3://bench/jpeg"\nendpoint_url = "{endpoint_url}"\n'
    return table + (f"[datasets.bench.recipe]\n{recipe}\n" if recipe else "")


@contextmanager
def running_service(
    root: Path, datasets: str, capacity: str = "100GB", memory: str = "256MB", **env: str
) -> Iterator[Service]:
    """Start the service on `root`, with these data sets' tables; stop it at the end, and leave its cache."""
    root.mkdir(parents=True, exist_ok=True)
    short = Path(tempfile.mkdtemp(prefix="stager-bench-"))  # the path of a socket has at most 107 bytes
    config = (
        f'[cache]\ndir = "{root}/cache"\ncapacity = "{capacity}"\nreserve = "1MB"\nmemory = "{memory}"\n'
        f'[service]\nsocket = "{short}/sock"\n'
    )
    (root / "stager.toml").write_text(config + datasets)
    service = Service(root, env)
    with (root / "service.log").open("a") as log:
        process = start_group([sys.executable, "-m", "stagerd"], service.environ(), ROOT, log)
    stopped = threading.Event()
    try:
        _wait_until_up(process, short / "sock", root / "service.log")
        service.pid = process.pid
        _wait_until_idle(process.pid)
        threading.Thread(target=_watch_memory, args=(service, stopped), daemon=True).start()
        yield service
    finally:
        stopped.set()
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            end_group(process.pid)
            process.wait()
            shutil.rmtree(short, ignore_errors=True)


def _wait_until_up(process: "subprocess.Popen[str]", socket: Path, log: Path) -> None:
    from stager.errors import StagerError
    from stager.reader.service import Service as Control

    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if Control(socket).get("/status", 5)["service"]["up"]:
                return
        except StagerError:
            time.sleep(0.05)
    raise RuntimeError(f"the service did not start: {log.read_text()[-500:]}")


def _wait_until_idle(pid: int) -> None:
    """A service that has run for a while has its decoders loaded: wait until its processes do nothing."""
    deadline = time.monotonic() + START_S
    used = cpu_s(pid)
    while time.monotonic() < deadline:
        time.sleep(IDLE_S)
        before, used = used, cpu_s(pid)
        if used - before < 0.05 * IDLE_S:
            return


def _watch_memory(service: Service, stopped: threading.Event) -> None:
    """Note the most that the service and its workers have taken."""
    while not stopped.wait(1.0):  # to look takes time, which is the service's
        service.peak_mb = max(service.peak_mb, memory_mb(service.pid)["all"])
