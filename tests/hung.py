"""What a mount that hangs does to everybody else: python tests/hung.py [--rounds 5] [--samples 2000]

A mount (FUSE) and a directory beside it, one service. In turns, with the mount hanging and without, the
directory is staged from nothing, while the service is asked for its status fifty times a second. The mount
hangs under a job and under a reader. At the end: how fast the directory was staged in both, how long answers
took, what is resident, how long a stop takes, what came of the job. Exit code 1 if that is not as promised.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final

from making import image_folder
from mounts import ServedMount, served_mount
from running import Place
from sets import table, wait_for
from stager.reader.service import Service

RATIO_LEAST: Final = 0.95
P99_MOST_S: Final = 0.1
STOP_MOST_S: Final = 30.0
ASK_EVERY_S: Final = 0.02
CLASSES: Final = 10
READER: Final = """
from stager_client.torch import StagedDataset, StagedLoader
loader = StagedLoader(StagedDataset("lab", timeout_s=600, skip_failed=True), 16, shuffle=True, seed=1)
print("open", flush=True)
print(sum(len(labels) for images, labels in loader), flush=True)
"""


class Answers:
    """How long the service takes to say how it is."""

    def __init__(self, place: Place) -> None:
        self.took_s: list[float] = []
        self._service, self._ends = Service(place.socket), threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def _ask(self) -> None:
        while not self._ends.wait(ASK_EVERY_S):
            began = time.perf_counter()
            self._service.get("/status", 60)
            self.took_s.append(time.perf_counter() - began)

    def end(self) -> list[float]:
        self._ends.set()
        self._thread.join()
        return sorted(self.took_s)


def resident(place: Place, name: str) -> int:
    rows = Service(place.socket).get("/status")["datasets"]
    return next((int(row["resident"]) for row in rows if row["name"] == name), 0)


def staged_rate(place: Place) -> tuple[float, list[float]]:
    """Stage the directory from nothing: samples a second, and how long answers took meanwhile."""
    assert place.run("evict", "data").returncode == 0
    api, answers = Service(place.socket), Answers(place)
    job = api.post("/jobs", {"dataset": "data"})
    while job["state"] not in ("done", "failed"):
        time.sleep(0.05)
        job = api.get(f"/jobs/{job['id']}")
    assert job["state"] == "done", job
    return job["staged"] / job["seconds"], answers.end()


@contextmanager
def hanging(place: Place, mount: ServedMount, told: dict[str, Any]) -> Iterator[None]:
    """A job for the whole mount and a reader, both of which hang in it; then they come to their end."""
    api = Service(place.socket)
    assert (
        place.run(
            "evict", "lab", "--classes", ",".join(f"class{at:03d}" for at in range(1, CLASSES))
        ).returncode
        == 0
    )
    told["resident_before"] = resident(place, "lab")
    reader = subprocess.Popen(
        [sys.executable, "-c", READER], env=place.env(), stdout=subprocess.PIPE, text=True
    )
    assert reader.stdout is not None
    assert reader.stdout.readline() == "open\n"
    mount.hang()
    job = api.post("/jobs", {"dataset": "lab"})
    try:
        hung = wait_for(lambda: api.get("/status")["hung"])
        told["hung_told"] = told.get("hung_told", 0) + len(hung)
        told["hung"] = hung[0]
        yield
        told["lost"] = told.get("lost", 0) + max(told["resident_before"] - resident(place, "lab"), 0)
    finally:
        mount.answer()
    job = wait_for(lambda: _ended(api.get(f"/jobs/{job['id']}")), 200)
    told["job_after"], told["failed"] = job["state"], told.get("failed", 0) + job["failed"]
    told["read_after"] = int(reader.communicate(timeout=200)[0])


def _ended(job: dict[str, Any]) -> dict[str, Any] | None:
    return job if job["state"] in ("done", "failed", "cancelled") else None


def measure(root: Path, samples: int, rounds: int) -> dict[str, Any]:
    """Everything, in figures."""
    image_folder(root / "server", CLASSES, samples // CLASSES)
    image_folder(root / "data", CLASSES, samples // CLASSES)
    place = Place(root).configure(table("lab", root / "lab") + table("data", root / "data"))
    told: dict[str, Any] = {"samples": samples, "rounds": rounds}
    rates: dict[bool, list[float]] = {False: [], True: []}
    took_s: dict[bool, list[float]] = {False: [], True: []}
    with served_mount(root / "lab", root / "server") as mount:
        service = place.start_service()
        try:
            for name in ("lab", "data"):
                assert place.run("prefetch", name).returncode == 0
            for number in range(2 * rounds):
                hangs = number % 4 in (1, 2)  # without, with, with, without
                if hangs:
                    with hanging(place, mount, told):
                        rate, took = staged_rate(place)
                else:
                    rate, took = staged_rate(place)
                rates[hangs].append(rate)
                took_s[hangs] += took
            assert place.run("evict", "lab").returncode == 0
            mount.hang()
            Service(place.socket).post("/jobs", {"dataset": "lab"})
            wait_for(lambda: Service(place.socket).get("/status")["hung"])
            began = time.monotonic()
            service.send_signal(signal.SIGTERM)
            told["exit_code"] = service.wait(120)
            told["stop_s"] = round(time.monotonic() - began, 2)
        finally:
            service.kill()
            service.wait()
    for hangs, name in ((False, "without"), (True, "with")):
        took = sorted(took_s[hangs])
        told[f"rate_{name}"] = round(median(rates[hangs]), 1)
        told[f"rates_{name}"] = [round(rate, 1) for rate in rates[hangs]]
        told[f"answer_p50_ms_{name}"] = round(took[len(took) // 2] * 1e3, 2)
        told[f"answer_p99_ms_{name}"] = round(took[int(0.99 * len(took))] * 1e3, 2)
        told[f"answer_most_ms_{name}"] = round(took[-1] * 1e3, 2)
        told[f"answers_{name}"] = len(took)
    told["ratio"] = round(told["rate_with"] / told["rate_without"], 3)
    return told


def not_as_promised(told: dict[str, Any]) -> list[str]:
    promises = {
        f"others keep {RATIO_LEAST:.0%} of their rate": told["ratio"] >= RATIO_LEAST,
        f"99 % of answers come within {P99_MOST_S * 1e3:.0f} ms": told["answer_p99_ms_with"]
        < P99_MOST_S * 1e3,
        f"a stop takes at most {STOP_MOST_S:.0f} s": told["stop_s"] < STOP_MOST_S,
        "nothing is evicted": told["lost"] == 0,
        "the job goes on by itself": told["job_after"] == "done" and told["failed"] == 0,
    }
    return [promise for promise, is_kept in promises.items() if not is_kept]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=6, help="of each, in turns")
    parser.add_argument("--samples", type=int, default=4000)
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("to mount a file system, one must be root")
    with tempfile.TemporaryDirectory(prefix="stager-hung-") as root:
        told = measure(Path(root), options.samples, options.rounds)
    print(json.dumps(told, indent=2))
    broken = not_as_promised(told)
    for promise in broken:
        print(f"FAILED: {promise}")
    sys.exit(bool(broken))


if __name__ == "__main__":
    main()
