"""No more bytes a second than allowed: by one bucket that processes share, and a rate that may change."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from making import image_folder
from running import Place
from sets import ended, table
from stager.interfaces import Fetched, Scanning
from stager.jobs.job import ENDED
from stager.reader.service import Service
from stager.reader.values import ObjectInfo, Part
from stager.sources.limit import BURST_S, Buckets, LimitedSource, Limits, Rate, claim
from stager.worker.priority import NICE, SESSION, SESSION_NICE, Share
from stager_client.numpy import StagedArrays


class Answers:
    """A source that answers at once, and notes when it was asked."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.asked: list[tuple[float, str]] = []

    def scan(self, scanning: Scanning | None = None) -> Iterator[ObjectInfo]:
        return iter(())

    def start(self, part: Part, done: Callable[[Fetched], None]) -> None:
        self.asked.append((self.clock(), part.info.key))
        done(memoryview(b""))


class Clock:
    """Time passes when somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.slept = threading.Event()

    def now(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def part(key: str, size: int) -> Part:
    return Part(ObjectInfo(key, size, "1"))


def ask(source: LimitedSource, parts: list[Part]) -> None:
    """Ask for all, and wait until all were answered."""
    left = threading.Semaphore(0)
    for one in parts:
        source.start(one, lambda _: left.release())
    for _ in parts:
        assert left.acquire(timeout=30)


@given(st.lists(st.floats(0.001, 3.0), min_size=1, max_size=50), st.floats(0.0, 5.0))
def test_what_is_claimed_takes_its_time_but_for_the_burst(sizes_s: list[float], idle_s: float) -> None:
    due = now = began = 10.0
    for seconds in sizes_s:
        due, wait = claim(due, now, seconds)
        while wait:
            now += wait
            due, wait = claim(due, now, seconds)
    assert now - began >= sum(sizes_s[:-1]) - BURST_S - 1e-6
    assert now - began <= sum(sizes_s[:-1]) + 1e-6
    due_later, wait = claim(due, due + idle_s, 1.0)
    assert (due_later, wait) == (due + idle_s + 1.0, 0.0)  # time that nobody used is not saved up


def test_a_source_gives_no_more_than_its_limit_and_in_the_order_asked(tmp_path: Path) -> None:
    clock, limits = Clock(), Limits()
    inner = Answers(clock.now)
    source = LimitedSource(inner, "pets", limits, clock.now, clock.sleep)
    limits.set(tmp_path / "limits", 8, None, {"pets": Rate(1, 1000.0)})
    ask(source, [part(str(number), 500) for number in range(21)])
    assert [key for _, key in inner.asked] == [str(number) for number in range(21)]
    assert inner.asked[-1][0] - inner.asked[0][0] == pytest.approx(10.0 - BURST_S, abs=0.6)


def test_of_two_limits_both_hold_and_other_data_sets_have_their_own(tmp_path: Path) -> None:
    clock, limits = Clock(), Limits()
    inner = Answers(clock.now)
    limits.set(tmp_path / "limits", 8, Rate(0, 1000.0), {"pets": Rate(1, 100.0)})
    ask(LimitedSource(inner, "pets", limits, clock.now, clock.sleep), [part("a", 100), part("b", 100)])
    assert inner.asked[1][0] - inner.asked[0][0] == pytest.approx(1.0 - BURST_S, abs=0.1)
    before = clock.now_s
    ask(LimitedSource(inner, "cars", limits, clock.now, clock.sleep), [part("c", 100), part("d", 100)])
    assert clock.now_s - before < 1.0  # that of all alone


def test_without_a_limit_nobody_waits_and_no_thread_begins(tmp_path: Path) -> None:
    clock, limits = Clock(), Limits()
    source = LimitedSource(Answers(clock.now), "pets", limits, clock.now, clock.sleep)
    before = threading.active_count()
    ask(source, [part(str(number), 10**9) for number in range(100)])
    assert (clock.now_s, threading.active_count()) == (100.0, before)
    assert not (tmp_path / "limits").exists()


def test_a_limit_that_changes_holds_within_a_second_for_what_waits(tmp_path: Path) -> None:
    limits = Limits()
    limits.set(tmp_path / "limits", 8, None, {"pets": Rate(1, 10.0)})
    source = LimitedSource(Answers(time.monotonic), "pets", limits)
    left = threading.Semaphore(0)
    for number in range(20):
        source.start(part(str(number), 100), lambda _: left.release())  # 10 s each
    assert left.acquire(timeout=30)
    time.sleep(0.3)
    assert not left.acquire(blocking=False)
    limits.set(tmp_path / "limits", 8, None, {})  # the time of the day has come
    began = time.monotonic()
    for _ in range(19):
        assert left.acquire(timeout=30)
    assert time.monotonic() - began < 5.0


TAKES = """
import sys, time
from pathlib import Path
from stager.sources.limit import Buckets, Rate
buckets, rates = Buckets(Path(sys.argv[1]), 8), [Rate(3, 1e6)]
print("ready", flush=True)
until, size = float(sys.stdin.readline()), 0
while time.monotonic() < until:
    if wait_s := buckets.claim(rates, 20_000, time.monotonic()):
        time.sleep(min(wait_s, 0.05))
    else:
        size += 20_000
print(size, flush=True)
"""


def test_processes_share_one_limit(tmp_path: Path) -> None:
    pipe = subprocess.PIPE
    takers = [
        subprocess.Popen(
            [sys.executable, "-c", TAKES, str(tmp_path / "limits")], stdin=pipe, stdout=pipe, text=True
        )
        for _ in range(3)
    ]
    for taker in takers:
        assert taker.stdout is not None
        assert taker.stdout.readline() == "ready\n"
    until = time.monotonic() + 3.0
    sizes = [int(taker.communicate(f"{until}\n")[0]) for taker in takers]
    assert sum(sizes) <= 1e6 * (3.0 + BURST_S) + 3 * 20_000
    assert sum(sizes) >= 1e6  # of 3: other programs may have the cores


def test_a_process_that_dies_in_between_holds_nobody_up(tmp_path: Path) -> None:
    holds = (
        "import fcntl, os, sys, time; from pathlib import Path; from stager.sources.limit import Buckets\n"
        "buckets = Buckets(Path(sys.argv[1]), 8); fcntl.lockf(buckets._fd, fcntl.LOCK_EX)\n"
        "print('has it', flush=True); time.sleep(600)"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", holds, str(tmp_path / "limits")], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "has it\n"
    holder.kill()
    holder.communicate()
    assert Buckets(tmp_path / "limits", 8).claim([Rate(0, 1000.0)], 10, time.monotonic()) == 0.0


# Cores


def test_threads_that_prepare_use_no_more_than_their_share() -> None:
    clock = Clock()
    share = Share(clock.now, clock.sleep)
    share.cores = 0.5
    began = clock.now_s
    for _ in range(50):
        share.wait()
        clock.now_s += 0.1  # at work
        share.used(0.1)
    assert clock.now_s - began == pytest.approx(10.0, rel=0.1)  # 5 s of a core


def test_a_share_that_ends_is_felt_at_once_and_none_costs_nothing() -> None:
    clock = Clock()
    share = Share(clock.now, clock.sleep)
    share.used(1000.0)
    share.wait()
    assert clock.now_s == 100.0
    share.cores = 0.01
    share.used(1.0)
    share.cores = None
    share.wait()
    assert clock.now_s == 100.0


# With real workers


@pytest.fixture
def place(tmp_path: Path) -> Place:
    image_folder(tmp_path / "pets", 3, 20)
    return Place(tmp_path).configure(table("pets", tmp_path / "pets"))


def limited(place: Place, limit: str) -> None:
    text = place.config.read_text().replace("[datasets.pets]\n", f'[datasets.pets]\nlimit = "{limit}"\n')
    place.config.write_text(text)


def test_a_limit_of_the_config_holds_and_a_reload_takes_it_away_in_the_middle_of_a_job(place: Place) -> None:
    free = place.config.read_text()
    limited(place, "1KB/s")  # a minute and more
    with place.service() as process:
        service = Service(place.socket)
        job = service.post("/jobs", {"dataset": "pets"})["id"]
        assert service.get("/status")["limits"]["datasets"] == {"pets": {"bytes_per_s": 1000.0, "until": ""}}
        assert "limits:  pets 1.0 kB/s" in place.run("status").stdout
        time.sleep(5.0)
        assert service.get(f"/jobs/{job}")["state"] not in ENDED
        place.config.write_text(free)
        process.send_signal(signal.SIGHUP)
        began = time.monotonic()
        assert ended(service, job)["staged"] == 60
        assert time.monotonic() - began < 50.0
        assert service.get("/status")["limits"] is None


def test_a_command_without_a_service_keeps_to_the_limit(place: Place) -> None:
    size = sum(path.stat().st_size for path in (place.root / "pets").rglob("*.jpg"))
    limited(place, f"{size // 4 // 1000}KB/s")
    began = time.monotonic()
    assert place.json("prefetch", "pets")["staged"] == 60
    assert time.monotonic() - began >= 3.0


def test_what_nobody_waits_for_is_staged_by_processes_that_give_way_and_what_readers_want_is_not(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAGER_CONFIG", str(place.config))
    place.environ = {"PYTHONHASHSEED": "0"}  # begun by exec (prepared.py): their command lines tell the kind
    with place.service() as process:
        ended(Service(place.socket), Service(place.socket).post("/jobs", {"dataset": "pets"})["id"])
        search = ["pgrep", "-a", "-P", str(process.pid)]
        told = subprocess.run(search, capture_output=True, text=True, check=True)
        lines = [line.split() for line in told.stdout.splitlines()]
        kinds = {words[-1] == "background": int(words[0]) for words in lines}
        assert set(kinds) == {True, False}
        assert os.getpriority(os.PRIO_PROCESS, kinds[True]) == NICE
        for gives_way, pid in kinds.items() if SESSION.exists() else ():  # a session of its own each
            told_nice = int(Path(f"/proc/{pid}/autogroup").read_text().split()[-1])
            assert told_nice == (SESSION_NICE if gives_way else 0)
        before = {gives_way: _worked_s(pid) for gives_way, pid in kinds.items()}
        place.run("evict", "pets")
        assert sum(len(labels) for _, labels in StagedArrays("pets", 4, timeout_s=60)) == 60
        after = {gives_way: _worked_s(pid) for gives_way, pid in kinds.items()}
        assert after[False] > before[False]
        threads = Path(f"/proc/{kinds[True]}/task").iterdir()
        assert {os.getpriority(os.PRIO_PROCESS, int(thread.name)) for thread in threads} == {NICE}


def _worked_s(pid: int) -> float:
    """Seconds of a core that a process has had."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
