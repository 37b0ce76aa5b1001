"""A resident training beside a service that hangs, and deadlines: python -m bench.stopped [--rounds 3]

The service is stopped with SIGSTOP: it takes calls, until its queue is full, and answers none. A training
reads what is resident, in turns beside a service that runs and beside one that is stopped, and its batches
are compared one by one, in every round. A machine that others use makes batches late, too: the kernel tells
how long our threads waited for a CPU, and what is left is shown beside; the verdict is on the whole wait.
Then what cannot be had without an answer: how far from its deadline each call ends.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from bench.orders import answers, fill
from stager.errors import StagerError
from stager_client.torch import StagedDataset, StagedLoader

Milliseconds = npt.NDArray[np.float64]
LATER_MAX_MS: Final = 50.0
OFF_MAX_S: Final = 0.5
TIMEOUT_S: Final = 6.0
EXIT_S: Final = 1.0
OPEN_S: Final = 1.0
SIDE: Final = 224
TRAINING: Final = """
import glob, json, os, signal, sys, time
from contextlib import suppress
from pathlib import Path
from stager_client.torch import StagedDataset, StagedLoader

def for_cpu_s():
    found = {}
    for path in glob.glob("/proc/self/task/*/schedstat"):
        with suppress(OSError):  # a thread may have ended since
            found[path] = int(Path(path).read_text().split()[1]) / 1e9
    return found

pid, epochs, pause_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
loader = StagedLoader(StagedDataset("data", timeout_s=60), 32, shuffle=True)
waits, rests = [], []
for epoch in range(epochs):
    if epoch == 1 and pid:  # all was read once, and the service knows us
        os.kill(pid, signal.SIGSTOP)
    before, asked_at = for_cpu_s(), time.perf_counter()
    loader.set_epoch(epoch)
    for _ in loader:
        waits.append(time.perf_counter() - asked_at)
        after = for_cpu_s()
        queued = max(after[path] - before.get(path, 0.0) for path in after)
        rests.append(max(waits[-1] - queued, 0.0))
        time.sleep(pause_s)
        before, asked_at = for_cpu_s(), time.perf_counter()
print(json.dumps({"waits": waits, "rests": rests, "batches": len(loader), "at": time.monotonic()}))
"""


def main() -> None:
    parser = argparse.ArgumentParser("bench.stopped", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="of each, in turns")
    parser.add_argument("--samples", type=int, default=1500)
    parser.add_argument("--epochs", type=int, default=15, help="of a training; the first is not counted")
    parser.add_argument("--pause", type=float, default=0.02, help="seconds that a step computes")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stager-bench-") as root, serving(Path(root), options) as pid:
        print(beside(pid, options), flush=True)
        print(deadlines(pid, options.rounds), flush=True)


@contextmanager
def serving(root: Path, options: argparse.Namespace) -> Iterator[int]:
    """A service that has `data` resident, and of the others nothing; gives its process."""
    fill(root / "source", options.samples, SIDE)
    names = [
        "data",
        *(f"{kind}{number}" for kind in ("single", "ordered") for number in range(options.rounds)),
    ]
    tables = (f'[datasets.{name}]\nsource = "{root}/source"\nrecipe = {{crop = {SIDE}}}\n' for name in names)
    config = root / "stager.toml"
    config.write_text(
        f'[cache]\ndir = "{root}/cache"\ncapacity = "10GB"\nreserve = "1MB"\n'
        f'[service]\nsocket = "{root}/sock"\n{"".join(tables)}'
        f'[datasets.never]\nsource = "{root}/source"\n'
    )
    os.environ["STAGER_CONFIG"] = str(config)
    with subprocess.Popen([sys.executable, "-m", "stagerd"], stderr=subprocess.DEVNULL) as service:
        try:
            answers(root / "sock")
            subprocess.run([sys.executable, "-m", "stager", "prefetch", "data"], check=True, stdout=2)
            yield service.pid
        finally:
            service.send_signal(signal.SIGCONT)
            service.terminate()


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
        answers(Path(os.environ["STAGER_CONFIG"]).with_name("sock"))


def beside(pid: int, options: argparse.Namespace) -> str:
    """How long a training waits for each of its batches, and how long its process takes to end."""
    lines = [
        "| round | the service | batches | median ms | p99 ms | latest ms | but for CPU | end, s |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    later_ms, noise_ms, rest_ms, exits_s = [], [], [], []
    for number in range(options.rounds):
        runs, stops = (train(each, options) for each in (0, pid))
        for way, (waits, rests, end_s) in (("runs", runs), ("is stopped", stops)):
            figures = f"{np.median(waits):.2f} | {np.quantile(waits, 0.99):.2f} | {waits.max():.2f}"
            lines.append(
                f"| {number + 1} | {way} | {len(waits):,} | {figures} | {rests.max():.2f} | {end_s:.2f} |"
            )
        later_ms.append(float((stops[0] - runs[0]).max()))
        noise_ms.append(float((runs[0] - stops[0]).max()))
        rest_ms.append(float((stops[1] - runs[1]).max()))
        exits_s.append(stops[2] - runs[2])
    later, noise, rest = (
        ", ".join(f"{value:.1f}" for value in values) for values in (later_ms, noise_ms, rest_ms)
    )
    lines += [
        f"A batch is later beside a stopped service by at most, round by round: {later} ms; without what our",
        f"threads waited for a CPU: {rest}. (Beside a running one, the other way round: {noise}.)",
        f"No batch of any round more than {LATER_MAX_MS:.0f} ms later: {met(max(later_ms) <= LATER_MAX_MS)}; "
        f"without the wait for a CPU: {met(max(rest_ms) <= LATER_MAX_MS)}.",
        f"The end of the process is later by {max(exits_s):.2f} s; asked: {EXIT_S:.0f}, {OFF_MAX_S} more: "
        f"{met(max(exits_s) <= EXIT_S + OFF_MAX_S)}.\n",
    ]
    return "\n".join(lines)


def train(pid: int, options: argparse.Namespace) -> tuple[Milliseconds, Milliseconds, float]:
    """Waits for batches, the same but for the CPU, and how long the process took to end.

    The training stops the service, if one is named.
    """
    words = [str(pid), str(options.epochs), str(options.pause)]
    try:
        done = subprocess.run([sys.executable, "-c", TRAINING, *words], stdout=subprocess.PIPE, check=True)
        ended_at = time.monotonic()
    finally:
        if pid:
            os.kill(pid, signal.SIGCONT)
    told = json.loads(done.stdout)
    waits, rests = (1000 * np.asarray(told[name][told["batches"] :]) for name in ("waits", "rests"))
    return waits, rests, ended_at - told["at"]


def deadlines(pid: int, rounds: int) -> str:
    """How long each call takes beside a stopped service, and how far that is from what was asked."""
    calls: dict[str, tuple[float, Callable[[int], Any]]] = {
        "open what is resident": (OPEN_S, lambda _: lambda: StagedDataset("data", timeout_s=TIMEOUT_S)),
        "open what only the service knows": (
            TIMEOUT_S,
            lambda _: lambda: StagedDataset("never", timeout_s=TIMEOUT_S),
        ),
        "a miss of a StagedDataset": (TIMEOUT_S, lambda number: missing(f"single{number}", False)),
        "a miss of a StagedLoader": (TIMEOUT_S, lambda number: missing(f"ordered{number}", True)),
    }
    rows = []
    for name, (asked_s, make) in calls.items():
        took = []
        for number in range(rounds):
            call = make(number)
            with stopped(pid):
                began = time.monotonic()
                error = None
                try:
                    call()
                except StagerError as caught:
                    error = caught
                took.append(time.monotonic() - began)
        told = f"{type(error).__name__}: {error}" if error else "opened"
        off_s = max(took) - asked_s
        rows.append(f"| {name} | {asked_s:.1f} | {max(took):.2f} | {met(off_s <= OFF_MAX_S)} | {told} |")
    head = ["| call | asked, s | took, s | within 0.5 s | the last one |", "| --- | --- | --- | --- | --- |"]
    return "\n".join([*head, *rows])


def missing(name: str, in_order: bool) -> Callable[[], Any]:
    """Reads samples of which none is staged."""
    data = StagedDataset(name, timeout_s=TIMEOUT_S)
    return (lambda: next(iter(StagedLoader(data, 32)))) if in_order else (lambda: data[0])


def met(is_met: bool) -> str:
    return "met" if is_met else "MISSED"


if __name__ == "__main__":
    main()
