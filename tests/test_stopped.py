"""A service that hangs (SIGSTOP): resident reads need nobody, all else has its deadline, and it is named.

Times are bounded from above only, far above what is promised: `python -m bench.stopped` has the promises.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("torch")

from making import image_folder
from running import Place
from sets import complaint, table, wait_for
from stager.errors import ServiceSilent, WaitTimeout
from stager.reader.service import Service
from stager_client.reading import session
from stager_client.torch import StagedDataset, StagedLoader

SAMPLES, TIMEOUT_S, SLACK_S = 24, 3.0, 5.0
EPOCHS = 4
HALVES = ("single", "ordered", "late", "left")  # what hears of a miss when it goes on, stages it

Stopped = tuple[Place, "subprocess.Popen[str]"]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stopped]:
    """`pets` is staged, of those in HALVES half is; `never` was never looked at."""
    place = Place(tmp_path_factory.mktemp("stopped"))
    image_folder(place.root / "source", 4, SAMPLES // 4)
    place.configure("".join(table(name, place.root / "source") for name in ("pets", *HALVES, "never")))
    with place.service() as process:
        assert place.json("prefetch", "pets")["staged"] == SAMPLES
        for name in HALVES:
            assert place.json("prefetch", name, "--classes", "class000,class001")["staged"] == SAMPLES // 2
        yield place, process


@pytest.fixture
def here(served: Stopped, monkeypatch: pytest.MonkeyPatch) -> Stopped:
    monkeypatch.setenv("STAGER_CONFIG", str(served[0].config))
    return served


@contextmanager
def stopped(process: "subprocess.Popen[str]") -> Iterator[float]:
    """The service does nothing, and answers nobody; gives the time at which it was stopped."""
    process.send_signal(signal.SIGSTOP)
    try:
        yield time.monotonic()
    finally:
        process.send_signal(signal.SIGCONT)


def test_a_resident_training_waits_for_no_service_that_hangs(
    here: Stopped, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Had any step waited for an answer, it would have taken a minute."""
    place, process = here
    data = StagedDataset("pets")
    loader = StagedLoader(data, 5, shuffle=True, seed=1)
    for name in ("ORDER_TIMEOUT_S", "REPORT_TIMEOUT_S"):
        monkeypatch.setattr(session, name, 60.0)
    with stopped(process) as began:
        for epoch in range(EPOCHS):
            loader.set_epoch(epoch)
            assert sum(len(labels) for _, labels in loader) == SAMPLES
        state = loader.state_dict()
        loader.load_state_dict(state)
        assert time.monotonic() - began < 40
    # And when it goes on, each epoch has its counts, once.
    loader.set_epoch(EPOCHS)
    sessions = wait_for(lambda: told_of(place, data, EPOCHS))
    assert {epoch["epoch"]: (epoch["requests"], epoch["misses"]) for epoch in sessions} == dict.fromkeys(
        range(EPOCHS), (SAMPLES, 0)
    )


def told_of(place: Place, data: StagedDataset, epochs: int) -> list[dict[str, int]]:
    """What the service has counted of a session, once it has that many epochs."""
    for row in Service(place.socket).get("/stats")["sessions"]:
        if row["session"] == data.samples.session.id and len(row["epochs"]) >= epochs:
            counted: list[dict[str, int]] = row["epochs"]
            return counted if sum(epoch["requests"] for epoch in counted) == epochs * SAMPLES else []
    return []


def test_what_is_staged_is_opened_and_read_beside_a_service_that_hangs(here: Stopped) -> None:
    _, process = here
    with stopped(process) as began:
        data = StagedDataset("pets", timeout_s=600)
        assert len(data) == SAMPLES
        assert data[0][1] == 0
        assert time.monotonic() - began < 20


def test_opening_what_only_a_service_knows_ends_at_its_deadline(here: Stopped) -> None:
    _, process = here
    with stopped(process) as began:
        with pytest.raises(ServiceSilent, match=rf"process {process.pid}\) did not answer within 3 s"):
            StagedDataset("never", timeout_s=TIMEOUT_S)
        assert time.monotonic() - began < TIMEOUT_S + SLACK_S


@pytest.mark.parametrize("name", ["single", "ordered"])
def test_a_miss_ends_at_its_deadline_and_names_the_service_that_hangs(here: Stopped, name: str) -> None:
    _, process = here
    data = StagedDataset(name, timeout_s=TIMEOUT_S)
    with stopped(process) as began:
        with pytest.raises(WaitTimeout) as caught:
            data.__getitems__(range(SAMPLES)) if name == "single" else list(StagedLoader(data, SAMPLES))
        assert TIMEOUT_S <= time.monotonic() - began < TIMEOUT_S + SLACK_S
    assert f"{SAMPLES // 2} samples of {name}" in caught.value.message
    assert f"(process {process.pid}) did not answer" in caught.value.message


def test_a_miss_is_had_if_the_service_goes_on_before_the_deadline(here: Stopped) -> None:
    place, process = here
    with stopped(process):
        reader = subprocess.Popen(
            [sys.executable, "-c", READ_ALL, "late"],
            env=place.env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert reader.stdout is not None
        assert reader.stdout.readline() == "opened\n"
        time.sleep(1)  # it asks meanwhile, or a little later: both must do
    out, err = reader.communicate(timeout=100)
    assert (reader.returncode, out) == (0, f"{SAMPLES}\n"), err


READ_ALL = """
import sys
from stager_client.torch import StagedDataset, StagedLoader
data = StagedDataset(sys.argv[1], timeout_s=100)
print("opened", flush=True)
print(sum(len(labels) for _, labels in StagedLoader(data, 5)))
"""

LEAVE = """
import os, signal, sys, time
from stager_client.torch import StagedDataset, StagedLoader
loaders = [StagedLoader(StagedDataset(name, timeout_s=600), 4) for name in sys.argv[2:]]
for loader in loaders:
    loader.loader.samples.session.flush()
os.kill(int(sys.argv[1]), signal.SIGSTOP)
for loader in loaders:
    next(iter(loader))
batches = iter(loaders[-1])
next(batches)
print(time.monotonic(), flush=True)
"""


@pytest.mark.parametrize("names", [["pets"] * 8, ["left"]], ids=["counts", "misses"])
def test_a_process_ends_soon_though_the_service_hangs(
    here: Stopped, names: list[str], tmp_path: Path
) -> None:
    """With counts of eight sessions that nobody takes; and while samples are waited for."""
    place, process = here
    program = tmp_path / "leave.py"
    program.write_text(LEAVE)
    try:
        done = subprocess.run(
            [sys.executable, "-W", "error", program, str(process.pid), *names],
            env=place.env(), capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip
        left_at = time.monotonic()
    finally:
        process.send_signal(signal.SIGCONT)
    assert done.returncode == 0, done.stderr
    assert left_at - float(done.stdout) < 1 + SLACK_S


@pytest.mark.parametrize("verb", [["status"], ["ls"], ["prefetch", "pets"]], ids=lambda verb: verb[0])
def test_a_command_says_that_the_service_does_not_answer(here: Stopped, verb: list[str]) -> None:
    place, process = here
    with stopped(process) as began:
        told = complaint(place.run(*verb), 4)
        assert time.monotonic() - began < 20
    assert f"the service at {place.socket} (process {process.pid}) did not answer" in told
    assert "in use" not in told


def test_the_socket_of_a_service_that_hangs_is_not_taken_over(here: Stopped, tmp_path: Path) -> None:
    """It may go on, and nobody would find it any more."""
    place, process = here
    other = Place(tmp_path).configure("")
    other.config.write_text(other.config.read_text().replace(str(other.socket), str(place.socket)))
    with stopped(process):
        done = other.run("serve")
    assert done.returncode == 1, done.stderr
    assert f"{place.socket} is in use: the service at {place.socket} (process {process.pid})" in done.stderr
    assert Service(place.socket).get("/status")["service"]["pid"] == process.pid
