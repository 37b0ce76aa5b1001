"""A reader whose order is known: staged ahead, once for all, and through kills of the service."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from making import image_folder
from running import Place
from sets import table
from stager.reader.order import epoch_order
from stager.reader.service import Service
from stager_client.reading.session import Session, Way

SAMPLES = 240
KILLS = 10

READ = """
import sys, time
from stager_client.reading.session import flush_all
from stager_client.torch import StagedDataset, StagedLoader

seed, pause_s, epochs = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
loader = StagedLoader(StagedDataset("data", timeout_s=60), 8, shuffle=True, seed=seed)
for epoch in range(epochs):
    for batch in loader.loader:
        print(*batch.positions, flush=True)
        time.sleep(pause_s)
flush_all()
"""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    image_folder(tmp_path / "source", 12, SAMPLES // 12)
    table = f'[datasets.data]\nsource = "{tmp_path}/source"\nrecipe = {{resize = 24, crop = 16}}\n'
    return Place(tmp_path).configure(table)


def start_reader(place: Place, seed: int, pause_s: float, epochs: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-W", "error", "-c", READ, str(seed), str(pause_s), str(epochs)]
    return subprocess.Popen(
        command, env=place.env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def positions_of(reader: "subprocess.Popen[str]") -> list[int]:
    out, err = reader.communicate(timeout=150)
    assert reader.returncode == 0, err
    return [int(word) for word in out.split()]


def test_a_cold_first_epoch_is_staged_ahead_of_a_reader_that_computes(place: Place) -> None:
    with place.service():
        read = positions_of(start_reader(place, 3, 0.1, 2))
        told = place.json("stats")
    assert read == [*epoch_order(SAMPLES, 3, 0).tolist(), *epoch_order(SAMPLES, 3, 1).tolist()]
    row = told["datasets"]["data"]
    assert row["requests"] == row["hits"] + row["misses"] == 2 * SAMPLES
    assert set(row["reasons"]) <= {"late"}  # nothing that is read was not foreseen
    assert row["origin_reads"] == SAMPLES
    (session,) = told["sessions"]
    first, second = session["epochs"]
    assert first["hits"] > 0
    assert second["hit_rate"] == 1.0


HOLD = """
import sys
from stager_client.torch import StagedDataset, StagedLoader

batches = iter(StagedLoader(StagedDataset("data"), 8, shuffle=True, prefetch=int(sys.argv[1])))
next(batches)
print("read", flush=True)
sys.stdin.read()
"""


def test_what_lies_in_batches_that_are_read_ahead_counts_as_read(place: Place) -> None:
    with place.service():
        place.json("prefetch", "data")
        reader = subprocess.Popen(
            [sys.executable, "-c", HOLD, "3"],
            env=place.env(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert reader.stdout is not None
        assert reader.stdout.readline() == "read\n"
        deadline = time.monotonic() + 20
        while (position := place.json("status")["sessions"][0]["position"]) < 8 * 3:
            assert time.monotonic() < deadline, position
        assert position == 8 * 3  # one was given out, two are ready: what is not needed for them can go
        reader.communicate()


@given(st.lists(st.integers(1, 9), max_size=20), st.randoms(use_true_random=False))
def test_an_order_is_read_as_far_as_all_of_it_is_in_batches(sizes: list[int], random: Random) -> None:
    begins = [sum(sizes[:number]) for number in range(len(sizes))]
    batches = list(zip(begins, sizes, strict=True))
    random.shuffle(batches)
    way, done = Way(), set[int]()
    for at, samples in batches:
        way.read(at, samples)
        done |= set(range(at, at + samples))
        assert way.position == next(place for place in count() if place not in done)


def test_two_training_processes_fetch_every_sample_once(place: Place) -> None:
    with place.service():
        readers = [start_reader(place, seed, 0.0, 1) for seed in (1, 2)]
        for reader in readers:
            assert sorted(positions_of(reader)) == list(range(SAMPLES))
        assert place.json("stats")["datasets"]["data"]["origin_reads"] == SAMPLES


def test_the_session_of_a_reader_that_is_killed_ends_within_seconds(place: Place) -> None:
    with place.service():
        reader = start_reader(place, 1, 0.2, 1)
        service = Service(place.socket)
        deadline = time.monotonic() + 60
        while not service.get("/status")["sessions"] and time.monotonic() < deadline:
            time.sleep(0.1)
        (session,) = service.get("/status")["sessions"]
        assert session["samples"] == SAMPLES
        reader.send_signal(signal.SIGKILL)
        reader.communicate()
        while service.get("/status")["sessions"] and time.monotonic() < deadline:
            time.sleep(0.2)
        assert service.get("/status")["sessions"] == []


def test_ten_kills_of_the_service_in_one_epoch_are_pauses_and_no_sample_is_lost_or_read_twice(
    tmp_path: Path,
) -> None:
    image_folder(tmp_path / "source", 12, SAMPLES // 12)
    # A quarter of it fits: until the end of the epoch the reader needs the service.
    capacity, memory = SAMPLES // 4 * (32 * 32 * 3 + 512) + 2 * 65536, 200_000
    place = Place(tmp_path).configure(
        table("data", tmp_path / "source"), capacity=str(capacity), memory=str(memory)
    )
    process = place.start_service()
    read: list[int] = []
    killed_at = []
    try:
        with start_reader(place, 5, 0.05, 1) as reader:
            assert reader.stdout is not None
            assert reader.stderr is not None
            for number in range(1, KILLS + 1):
                while len(read) < number * SAMPLES // (KILLS + 1):
                    line = reader.stdout.readline()
                    assert line, reader.stderr.read()
                    read += map(int, line.split())
                assert process.poll() is None  # it runs, and is killed
                process.send_signal(signal.SIGKILL)
                assert process.wait() == -signal.SIGKILL
                killed_at.append(len(read))
                process = place.start_service()
            read += [int(word) for line in reader.stdout for word in line.split()]
            assert reader.wait(60) == 0, reader.stderr.read()
        told = place.json("stats")["datasets"]["data"]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
    assert len(killed_at) == len(set(killed_at)) == KILLS
    assert killed_at[0] < 0.2 * SAMPLES
    assert killed_at[-1] > 0.8 * SAMPLES
    assert read == epoch_order(SAMPLES, 5, 0).tolist()  # all of them, once, in order
    assert told["requests"] == told["hits"] + told["misses"] == SAMPLES
    assert place.run("verify").returncode == 0
    assert place.leftovers() == []


END_WITHOUT_A_SERVICE = """
import sys
import stager_client.reading.session as session
from stager_client.torch import StagedDataset

session.EXIT_WAIT_S = 60.0  # a busy machine may take longer to start a service
data = StagedDataset("data")
for _ in range(2):
    data.__getitems__(range(len(data)))
    data.flush()
    print("read", flush=True)
    sys.stdin.readline()
"""


def test_a_reader_that_ends_while_the_service_is_started_anew_has_its_counts_counted_once(
    place: Place,
) -> None:
    command = [sys.executable, "-W", "error", "-c", END_WITHOUT_A_SERVICE]
    with place.service() as process:
        place.json("prefetch")
        reader = subprocess.Popen(
            command, env=place.env(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        with reader:
            assert reader.stdin is not None
            assert reader.stdout is not None
            assert reader.stdout.readline() == "read\n"
            process.send_signal(signal.SIGKILL)
            process.wait()
            reader.stdin.write("\n")
            reader.stdin.flush()
            assert reader.stdout.readline() == "read\n"  # all resident: no service was needed
            reader.stdin.close()  # it ends
            with place.service():
                assert reader.wait(100) == 0
                told = place.json("stats")["datasets"]["data"]
    assert told["requests"] == told["hits"] == 2 * SAMPLES


def test_a_reader_that_never_had_a_service_waits_for_none_at_its_end(tmp_path: Path) -> None:
    version = {"recipe": "", "lineage": ""}
    session = Session(Service(tmp_path / "no.sock"), "data", 8, version, "")
    session.count(8, {}, 0.0)
    session.flush()
    assert not session.waits


@pytest.mark.parametrize("part", [0.25, 0.75])
def test_what_does_not_fit_goes_through_memory_and_the_kept_part_is_never_given_up(
    tmp_path: Path, part: float
) -> None:
    image_folder(tmp_path / "source", 12, SAMPLES // 12)
    row_bytes = 32 * 32 * 3 + 512
    capacity, memory = int(part * SAMPLES * row_bytes) + 2 * 65536, 500_000
    table = f'[datasets.data]\nsource = "{tmp_path}/source"\nrecipe = {{resize = 40, crop = 32}}\n'
    place = Place(tmp_path).configure(table, capacity=str(capacity), memory=str(memory))
    with place.service():
        service = Service(place.socket)
        reader = start_reader(place, 7, 0.0, 3)
        while reader.poll() is None:
            assert service.get("/status")["budget"]["used_bytes"] <= capacity
            time.sleep(0.1)
        read = positions_of(reader)
        told = service.get("/stats")["datasets"]["data"]
        kept = service.get("/status")["datasets"][0]["bytes"] // row_bytes
        assert place.run("verify").returncode == 0
    assert read == [at for epoch in range(3) for at in epoch_order(SAMPLES, 7, epoch).tolist()]
    assert kept >= part * SAMPLES * 0.9
    # Each epoch after the first reads what is not kept, once; what memory still has, not even that.
    assert told["origin_reads"] <= SAMPLES + 2 * (SAMPLES - kept) * 1.03
    assert set(told["reasons"]) <= {"late", "over_budget"}
