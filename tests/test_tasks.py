"""The loop with workers and a disk that a test is: what dies gives back what it had; what is told is so."""

import errno
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest

from stager.cache.cache import Cache
from stager.cache.dataset import Dataset
from stager.cache.verify import check_books
from stager.clock import Clock
from stager.dispatch import sync as durable
from stager.dispatch.events import Events
from stager.dispatch.pool import WorkerMessage, WorkerProcess
from stager.errors import SourceBusy, UsageError
from stager.jobs.job import Request
from stager.owner.loop import Loop
from stager.owner.readers import Readers, Version
from stager.reader.record import DatasetSpec
from stager.reader.samples.manifest import Manifest
from stager.reader.samples.subset import Drawn, Subset, draw
from stager.reader.values import Prepared, ShardHeader, checksum_of
from stager.shards import FORMATS
from stager.worker.messages import BuildShard, Built, Failed, SetLimits, ShardBuilt, Task
from test_cache import KEYS, config_of, scan, stage

SAMPLES = [2, 3, 4]


class FakePool:
    """One worker, which does what the test says. It takes one task, and no more until it is told to."""

    size, threads, native = 1, 1, "none"

    def __init__(self, events: Events, clock: Clock) -> None:
        self._events = events
        self.workers = [WorkerProcess(None, clock.now())]  # type: ignore[arg-type]
        self.sent: list[Task] = []
        self.may_take = 1

    def start(self, specs: Iterable[DatasetSpec]) -> None: ...

    def free_slots(self, place: str, is_urgent: bool) -> int:
        return self.may_take - len(self.sent)

    def send(self, task: Task, place: str) -> None:
        self.sent.append(task)
        self.workers[0].tasks.add(task.task)

    def limit(self, limits: SetLimits) -> None: ...

    def is_starved(self, worker: WorkerProcess) -> bool:
        return False

    def drop(self, worker: WorkerProcess) -> None:
        self.workers = [WorkerProcess(None, worker.heard_at)]  # type: ignore[arg-type]

    def stop(self) -> None: ...

    def built(self) -> list[BuildShard]:
        """The shards that were asked for."""
        return [task for task in self.sent if isinstance(task, BuildShard)]

    def path(self) -> Path:
        """Of the first shard."""
        file = self.built()[0].file
        assert file is not None
        return file.path

    def die(self) -> None:
        self._events.put(WorkerMessage(self.workers[0], None))

    def fail(self) -> None:
        told = Failed.by(self.sent[-1].task, SourceBusy("no answer"))
        self._events.put(WorkerMessage(self.workers[0], told))

    def done(self, dataset: Dataset) -> None:
        """Write the shard of the last task, as a worker does, and say so."""
        task, (image,) = self.built()[-1], dataset.record.fields
        rows = []
        for sample, info in zip(task.samples, dataset.records.infos(task.samples), strict=True):
            arrays = {"image": np.full([side or 2 for side in image.shape], sample % 256, np.uint8)}
            tag = dataset.records.tag(sample)
            checksum = checksum_of(tag, dataset.record.recipe, dataset.record.fields, arrays)
            rows.append(Prepared(info.key, info.version, arrays, checksum))
        record = dataset.record
        header = ShardHeader(dataset.name, record.manifest, record.recipe, record.fields)
        assert task.file is not None
        path = task.file.path
        FORMATS[task.format].write(path, header, rows)
        built = Built(task.samples, [], path.stat().st_size, 0, 27, len(rows), 0.1, 0.1, 0.0)
        self._events.put(WorkerMessage(self.workers[0], ShardBuilt(task.task, built)))


class World:
    """A cache, its loop, and one job for some samples that has been given out."""

    def __init__(self, root: Path) -> None:
        self.cache = Cache(config_of(root))
        self.loop = Loop(self.cache, make_pool=FakePool)
        self.pool: FakePool = self.loop._tasks.pool  # type: ignore[assignment]
        self.dataset = scan(self.cache, KEYS)
        self.job = self.loop.jobs.restage(self.dataset, np.asarray(SAMPLES))
        self.loop.step(0)
        assert self.pool.built()[-1].samples == SAMPLES
        assert self.cache.budget.reserved_bytes > 0

    def step_until(self, is_so: Callable[[], bool]) -> None:
        for _ in range(600):
            if is_so():
                return
            self.loop.step(0.1)
        raise AssertionError("it never came")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.loop.stop()
    world.cache.close()


@pytest.mark.parametrize("end", ["die", "fail"])
def test_a_task_that_comes_to_nothing_gives_back_its_reservation_and_its_samples(
    world: World, end: str
) -> None:
    getattr(world.pool, end)()
    world.loop.step(1)
    assert world.cache.budget.reserved_bytes == 0
    assert not world.loop._tasks.in_flight(world.dataset)[np.arange(world.dataset.count)].any()
    assert world.cache.budget.used_bytes == 0


def test_the_samples_of_a_worker_that_dies_are_given_out_again_in_halves(world: World) -> None:
    world.pool.may_take = 3
    world.pool.die()
    world.loop.step(1)
    assert [task.samples for task in world.pool.built()[1:]] == [[2, 3], [4]]
    wanted = sum(world.loop._tasks.sizes.bytes_for(world.dataset, count) for count in (2, 1))
    assert world.cache.budget.reserved_bytes == wanted


def test_a_shard_counts_as_staged_only_when_its_file_and_its_name_are_on_the_disk(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    came, may_go, synced = threading.Semaphore(0), threading.Semaphore(0), []

    def sync(path: Path) -> None:
        came.release()
        may_go.acquire(timeout=60)
        synced.append(path)

    monkeypatch.setattr(durable, "fsync_path", sync)
    world.pool.done(world.dataset)
    try:
        world.step_until(lambda: len(world.dataset.resident()) == 3)  # readers have it at once
        for _ in range(2):  # the file, and its name
            world.step_until(lambda: came.acquire(blocking=False) or bool(world.cache.catalog.shards()))
            assert world.cache.catalog.shards() == []
            assert world.job.state == "staging"
            may_go.release()
        world.step_until(lambda: bool(world.cache.catalog.shards()))
    finally:
        may_go.release(9)
    path = world.pool.path()
    assert synced == [path, path.parent]
    world.step_until(lambda: world.job.state == "done")
    assert world.cache.budget.used_bytes == path.stat().st_size
    assert check_books(world.cache, set()) == []


def test_a_shard_that_the_disk_did_not_take_is_taken_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(durable, "fsync_path", refuse)
    world.pool.done(world.dataset)
    world.step_until(lambda: world.job.ended)
    assert world.job.state == "failed"
    assert world.cache.catalog.shards() == []
    assert not world.dataset.index.words.any()
    assert not world.pool.path().exists()
    assert world.cache.budget.used_bytes == 0


def test_what_comes_for_a_pinned_shard_that_was_corrupt_is_pinned(world: World) -> None:
    row = stage(world.cache, world.dataset, [4])
    world.cache.catalog.pin_shards([row.number], True)
    world.loop.pins.put([world.cache.catalog.shard(row.number)])
    world.cache.departures.evict([row])
    world.pool.done(world.dataset)
    world.step_until(lambda: bool(world.cache.catalog.shards()))
    assert [shard.is_pinned for shard in world.cache.catalog.shards()] == [True]


def test_the_loop_goes_on_while_a_subset_is_drawn(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """An expression may take seconds of a million samples."""
    may_end = threading.Event()

    def slow(manifest: Manifest, subset: Subset) -> Drawn:
        may_end.wait(60)
        return draw(manifest, subset)

    monkeypatch.setattr("stager.jobs.groundwork.draw", slow)
    subset = Subset(where="size >= 0")
    job = world.loop.jobs.submit(Request(world.dataset.spec, subset, "auto", "plan"))
    world.loop.step(0)
    assert (job.state, job.wanted) == ("scanning", 0)
    may_end.set()
    world.step_until(lambda: job.wanted == len(KEYS))


def test_a_hello_for_a_version_that_is_not_kept_is_refused(world: World) -> None:
    record = world.dataset.record
    version = Version(world.dataset.name, record.recipe, record.lineage)
    readers = Readers(world.cache, world.loop)
    readers.hello(version, "s", record.manifest, 0)
    with pytest.raises(UsageError, match="not kept any more"):
        readers.hello(version, "s", "0" * 32, 0)
