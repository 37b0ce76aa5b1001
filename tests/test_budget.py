"""A disk that is too small, or that others fill: staging waits, readers go on, and the limits hold."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from images import encode, natural
from making import image_folder, scanned
from mounts import small_disk
from running import Place
from stager.lines import line_of
from stager.reader.record import DatasetSpec
from stager.reader.service import Service
from stager.reader.values import SourceSpec
from stager.recipes import check_recipe
from stager.scan.scan import Scan
from stager.sources import open_source
from stager.worker.messages import BuildShard, Failed, FileToWrite, ListPlace, ShardBuilt, read_by_service

MB = 1_000_000
READ_ALL = """
import sys
from stager_client.torch import StagedDataset
data = StagedDataset(sys.argv[1], timeout_s=60, classes=1)
for _ in range(int(sys.argv[2])):
    assert len(data.__getitems__(range(len(data)))) == len(data)
data.flush()
"""
READ_UNTIL = """
import sys
from pathlib import Path
from stager_client.torch import StagedDataset
data = StagedDataset(sys.argv[1], timeout_s=60, classes=1)
while not Path(sys.argv[2]).exists():
    assert len(data.__getitems__(range(len(data)))) == len(data)
    print(len(data), flush=True)
data.flush()
"""
READ_IN_ORDER = """
import sys, time
import numpy as np
from stager_client.torch import StagedDataset, StagedLoader
name, kind, epochs, pause_s = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
data = StagedDataset(name, timeout_s=60)
def twice(epoch):
    return np.random.default_rng(epoch).permutation(np.repeat(np.arange(len(data)), 2))
order = twice if kind == "twice" else None
loader = StagedLoader(data, 8, shuffle=order is None, seed=int(kind) if order is None else 0, order=order)
for epoch in range(epochs):
    for batch in loader.loader:
        print(*batch.positions, flush=True)
        time.sleep(pause_s)
data.flush()
"""


def table(name: str, source: Path, crop: int = 96) -> str:
    return f'[datasets.{name}]\nsource = "{source}"\nrecipe = {{resize = {crop}, crop = {crop}}}\n'


def wait_for(condition: Callable[[], bool], timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def start(place: Place, code: str, *arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-W", "error", "-c", code, *arguments]
    return subprocess.Popen(
        command, env=place.env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(process: "subprocess.Popen[str]") -> list[int]:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return [int(word) for word in out.split()]


def slow_folder(root: Path, classes: int, per_class: int) -> None:
    """An ImageFolder that takes long to stage, and little room: all are one image of three million pixels."""
    image = root.with_suffix(".jpg")
    image.write_bytes(encode(natural(2000, 1500), "JPEG"))
    for label in range(classes):
        folder = root / f"class{label:03d}"
        folder.mkdir(parents=True)
        for number in range(per_class):
            (folder / f"{number:03d}.jpg").hardlink_to(image)


class Watch(threading.Thread):
    """Looks ten times a second at what is used and what is free."""

    def __init__(self, cache: Path, others: Path) -> None:
        super().__init__()
        self._cache, self._others = cache, others
        self.stop = threading.Event()
        self.seen: list[tuple[int, int, int]] = []  # ours, others', free

    def run(self) -> None:
        while not self.stop.wait(0.1):
            disk = os.statvfs(self._cache)
            ours = sum(self._size(path) for path in self._files())
            self.seen.append((ours, self._size(self._others), disk.f_bavail * disk.f_frsize))

    def _files(self) -> list[Path]:
        return [Path(top) / name for top, _, names in os.walk(self._cache) for name in names]

    @staticmethod
    def _size(path: Path) -> int:
        try:
            return path.stat().st_blocks * 512 if path.is_file() else 0
        except OSError:  # it has just gone
            return 0


@pytest.mark.parametrize("shard_format", ["arrow", "lmdb"])
def test_a_worker_writes_nothing_if_others_have_taken_what_was_reserved(
    tmp_path: Path, shard_format: str
) -> None:
    slow_folder(tmp_path / "source", 1, 4)
    source = SourceSpec(str(tmp_path / "source"))
    manifest = scanned(tmp_path / "manifest", open_source(source).scan())
    segments = tuple(segment.name for segment in Scan(tmp_path / "manifest").segments)
    spec = DatasetSpec("pets", source, "folder", check_recipe({"resize": 96, "crop": 96}))
    out = tmp_path / "out"
    out.mkdir()

    def answer(free_before: int) -> ShardBuilt | Failed:
        file = FileToWrite(out / "shard", out / "scratch", MB, free_before)
        records = ListPlace(tmp_path, "0" * 32, segments)
        task = BuildShard(1, spec, manifest.digest, records, [0, 1], shard_format, False, file)
        command = [sys.executable, "-m", "stager.worker.__main__", "1"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
            assert worker.stdin is not None
            assert worker.stdout is not None
            worker.stdin.write(line_of(task))
            worker.stdin.flush()
            said = map(read_by_service, worker.stdout)
            told = next(one for one in said if isinstance(one, ShardBuilt | Failed))
            worker.stdin.close()
        return told

    free = os.statvfs(out).f_bavail * os.statvfs(out).f_frsize
    told = answer(2 * free)
    assert isinstance(told, Failed)
    assert told.error["error"] == "NoSpace"
    assert list(out.iterdir()) == []
    assert isinstance(answer(free // 2), ShardBuilt)
    assert [path.name for path in out.iterdir()] == ["shard"]


def test_a_disk_that_another_program_fills_pauses_a_job_and_no_reader_and_the_limits_hold(
    tmp_path: Path,
) -> None:
    slow_folder(tmp_path / "source", 20, 80)  # 44 MB when staged
    with small_disk(tmp_path / "disk", "size=90m") as disk:
        place = Place(tmp_path).configure(table("pets", tmp_path / "source"), reserve="30MB", capacity="50MB")
        place.config.write_text(place.config.read_text().replace(str(place.cache), str(disk / "cache")))
        others = disk / "others"
        with place.service():
            service = Service(place.socket)
            assert place.json("prefetch", "--classes", "1")["staged"] == 80
            others.write_bytes(bytes(5 * MB))  # enough is left for us: it begins
            watch = Watch(disk / "cache", others)
            watch.start()
            all_along = start(place, READ_UNTIL, "pets", str(tmp_path / "enough"))
            assert all_along.stdout is not None
            assert all_along.stdout.readline() == "80\n"  # it reads what is resident, from now to the end
            command = place.start("prefetch")
            wait_for(lambda: service.get("/status")["datasets"][0]["resident"] > 200)
            with others.open("ab") as file:  # only the reserve is left
                file.write(bytes(max(os.statvfs(disk).f_bavail * 4096 - 30 * MB, 0)))
            wait_for(lambda: bool([job for job in service.get("/status")["jobs"] if job["paused"]]))
            (job,) = [job for job in service.get("/status")["jobs"] if job["paused"]]
            assert job["state"] == "staging"
            assert "the reserve" in job["paused"]
            assert all_along.poll() is None
            reader = start(place, READ_ALL, "pets", "20")
            assert finish(reader) == []  # what is resident is read as if nothing had happened
            assert command.poll() is None
            others.unlink()
            _, told = command.communicate(timeout=120)
            watch.stop.set()
            watch.join()
            (tmp_path / "enough").touch()
            assert set(finish(all_along)) == {80}  # no error reached it
            assert command.returncode == 0, told
            assert "paused, goes on by itself" in told
            assert "going on" in told
            assert place.json("status")["datasets"][0]["resident"] == 1600
            assert service.get("/problems") == []
    assert len(watch.seen) > 10
    before = watch.seen[0]
    for now in watch.seen:
        assert now[0] <= 50 * MB
        # Only others pass the reserve: while they do, we do not grow. (The catalog writes down what readers
        # count, into a log that has its place on the disk from the start.)
        assert now[2] >= 30 * MB or now[0] - before[0] <= 64 * 1024 or now[1] > before[1], (before, now)
        before = now


@pytest.mark.parametrize("part", [0.1, 0.25, 0.5, 0.75, 0.9])
def test_one_uniform_job_reads_what_does_not_fit_once_an_epoch_and_no_more(
    tmp_path: Path, part: float
) -> None:
    count, epochs = 240, 5
    image_folder(tmp_path / "source", 12, count // 12)
    capacity = int(part * count * (96 * 96 * 3 + 512)) + 2 * 65536
    place = Place(tmp_path).configure(
        table("data", tmp_path / "source"), capacity=str(capacity), memory=str(2 * MB)
    )
    with place.service():
        service = Service(place.socket)
        reader = start(place, READ_IN_ORDER, "data", "7", str(epochs), "0.0")
        used = []
        while reader.poll() is None:
            used.append(service.get("/status")["budget"]["used_bytes"])
            time.sleep(0.1)
        assert sorted(finish(reader)) == sorted(list(range(count)) * epochs)
        told = service.get("/stats")["datasets"]["data"]
        kept = sum(len(row["path"]) > 0 and row["samples"] for row in service.get("/shards"))
        assert place.run("verify").returncode == 0
    assert max(used) <= capacity
    assert kept >= part * count * 0.9
    assert told["origin_reads"] <= count + 1.03 * (epochs - 1) * (count - kept)
    assert "evicted" not in told["reasons"]  # nothing changed its place


def test_memory_for_two_batches_is_enough_to_read_what_does_not_fit_once_an_epoch(tmp_path: Path) -> None:
    count, epochs, part, sample = 240, 4, 0.25, 96 * 96 * 3 + 512
    image_folder(tmp_path / "source", 12, count // 12)
    place = Place(tmp_path).configure(
        table("data", tmp_path / "source"),
        capacity=str(int(part * count * sample) + 2 * 65536),
        memory=str(2 * 8 * sample),
    )
    with place.service():
        read = finish(start(place, READ_IN_ORDER, "data", "7", str(epochs), "0.02"))
        told = place.json("stats")["datasets"]["data"]
        kept = sum(row["samples"] for row in Service(place.socket).get("/shards"))
    assert sorted(read) == sorted(list(range(count)) * epochs)
    assert kept >= part * count * 0.9
    assert told["origin_reads"] <= count + 1.03 * (epochs - 1) * (count - kept)


def test_an_order_that_repeats_samples_beats_a_fixed_part(tmp_path: Path) -> None:
    count, epochs, part = 200, 3, 0.3
    image_folder(tmp_path / "source", 10, count // 10)
    capacity = int(part * count * (96 * 96 * 3 + 512)) + 65536
    place = Place(tmp_path).configure(
        table("data", tmp_path / "source"), capacity=str(capacity), memory=str(MB)
    )
    with place.service():
        read = finish(start(place, READ_IN_ORDER, "data", "twice", str(epochs), "0.1"))
        told = place.json("stats")["datasets"]["data"]
        rows = place.json("simulate", "--from-stats", "data")
        assert place.run("verify").returncode == 0
        assert place.json("status")["budget"]["used_bytes"] <= capacity
    assert sorted(read) == sorted(list(range(count)) * 2 * epochs)
    fixed = count + (2 * epochs - 1) * count * (1 - part)
    assert told["origin_reads"] < 0.9 * fixed
    by_part = {row["part"]: row for row in rows}
    assert by_part[0.25]["lru"] <= by_part[0.25]["next_use"] <= by_part[0.25]["optimum"]
    assert [row["optimum"] for row in rows] == sorted(row["optimum"] for row in rows)  # more disk, more hits


def test_a_reader_takes_the_place_of_what_nobody_reads_but_not_of_what_is_pinned_or_asked_for(
    tmp_path: Path,
) -> None:
    for name in ("old", "pinned", "asked", "new"):
        image_folder(tmp_path / name, 4, 15)
    sample = 96 * 96 * 3 + 512
    tables = "".join(table(name, tmp_path / name) for name in ("old", "pinned", "asked", "new"))
    place = Place(tmp_path).configure(tables, capacity=str(3 * 60 * sample + 65536 * 4), memory=str(MB))
    with place.service():
        service = Service(place.socket)
        finish(start(place, READ_IN_ORDER, "old", "1", "1", "0.0"))  # staged because it was read
        assert place.json("prefetch", "asked")["staged"] == 60
        assert place.json("prefetch", "pinned")["staged"] == 60
        place.json("pin", "pinned")
        wait_for(lambda: service.get("/status")["sessions"] == [])
        finish(start(place, READ_IN_ORDER, "new", "1", "3", "0.05"))
        resident = {row["name"]: row["resident"] for row in service.get("/status")["datasets"]}
        (gone,) = [
            row for row in (place.json("why", "old", str(n)) for n in range(1)) if not row["resident"]
        ] or [None]
        assert place.run("verify").returncode == 0
    assert (resident["pinned"], resident["asked"]) == (60, 60)
    assert resident["old"] < 60
    if gone is not None:
        assert "for samples of new that are needed sooner" in gone["why"]


def test_prefetch_can_return_when_a_training_can_start_and_goes_on_behind_it(tmp_path: Path) -> None:
    image_folder(tmp_path / "source", 10, 60)
    place = Place(tmp_path).configure(table("data", tmp_path / "source"))
    with place.service():
        finish(start(place, READ_IN_ORDER, "data", "1", "1", "0.2"))  # a reader of 40 samples/s
        place.json("evict", "data")
        ready = place.json("prefetch", "--until-ready")
        assert ready["ready"]["in_s"] == 0
        assert 20 < ready["ready"]["reader_rate"] < 60
        assert ready["staged"] < 600
        wait_for(lambda: place.json("status")["datasets"][0]["resident"] == 600)
    refused = place.run("prefetch", "--until-ready")
    assert refused.returncode == 4
    assert "--until-ready needs the service" in refused.stderr


def test_another_recipe_is_named_before_anything_is_staged_anew(tmp_path: Path) -> None:
    image_folder(tmp_path / "source", 2, 10)
    place = Place(tmp_path).configure(table("data", tmp_path / "source"))
    assert place.json("prefetch")["staged"] == 20
    place.configure(table("data", tmp_path / "source", 64))
    opened = subprocess.run(
        [sys.executable, "-c", 'from stager_client.torch import StagedDataset; StagedDataset("data")'],
        env=place.env(), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "data is staged with another recipe" in opened.stderr
    assert "crop 96 -> 64, resize 96 -> 64" in opened.stderr
    told = place.run("prefetch")
    assert (
        "the recipe has changed (crop 96 -> 64, resize 96 -> 64): 20 samples are staged anew" in told.stderr
    )


def test_what_was_hot_and_was_lost_comes_back_when_nobody_needs_anything_else(tmp_path: Path) -> None:
    image_folder(tmp_path / "source", 2, 20)
    place = Place(tmp_path).configure(table("data", tmp_path / "source"))
    with place.service() as process:
        assert place.json("prefetch")["staged"] == 40
        finish(start(place, READ_ALL, "data", "3"))
        (shards,) = [place.cache / "datasets/data/shards"]
        for path in shards.iterdir():
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.write_bytes(data)
        assert place.run("verify").returncode != 0
        Service(place.socket).post(
            "/shards/drop", {"shards": [int(path.stem, 16) for path in shards.iterdir()]}
        )
        wait_for(lambda: place.json("status")["datasets"][0]["resident"] == 40)
        process.send_signal(signal.SIGTERM)


REFUSED_ONCE = """
import sys
from stager.cache.budget import Budget
from stager.cli import main
take, asked = Budget.take, []
def take_not_the_second(budget, size_bytes):
    asked.append(size_bytes)
    if len(asked) == 2:
        raise budget.refusal(size_bytes)
    return take(budget, size_bytes)
Budget.take = take_not_the_second
sys.argv = ["stager", "prefetch", "--json"]
try:
    main()
finally:
    assert len(asked) > 2
"""


def test_a_disk_that_is_filled_between_our_look_and_our_reservation_pauses_a_job(tmp_path: Path) -> None:
    """Found by four tasks a worker: the files that one made were missing to the next."""
    image_folder(tmp_path / "source", 2, 200)
    place = Place(tmp_path).configure(table("pets", tmp_path / "source", 32))
    done = place.python(REFUSED_ONCE)
    assert done.returncode == 0, done.stderr
    assert "paused" in done.stderr
    assert '"staged": 400' in done.stdout
