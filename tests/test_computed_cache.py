"""A cache of 28 million computed samples: what it costs goes by what is staged, not by how many there are."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from making import Listed
from mounts import small_disk
from stager.cache.cache import Cache
from stager.cache.dataset import Dataset, Failure
from stager.cache.index_writer import IndexWriter
from stager.cache.verify import check_books
from stager.dispatch.pool import WorkerMessage
from stager.errors import NoSpace
from stager.jobs.job import Job, Request
from stager.owner.loop import Loop
from stager.owner.owner import Owner
from stager.reader.index import pack_words
from stager.reader.samples.computed.rules import Generated
from stager.reader.samples.runs import Runs
from stager.reader.samples.subset import Subset
from stager.scan.scan import NOTHING_KNOWN, Known, Scan, write_manifest
from stager.sessions.session import OpenSession, OrderRequest
from stager.worker.messages import Scanned, ScanSource
from test_cache import SPEC, config_of, stage
from test_computed import LINEAGE, MANY, RECIPE, Computed
from test_tasks import FakePool

LITTLE = 40 << 20  # bytes; an array of eight for each sample would be 224 MB


def memory_bytes() -> int:
    """What this process holds of memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def scan(cache: Cache, rule: Generated) -> Dataset:
    path, known = cache.scratch / "scan", cache.known(SPEC.name)
    before = Known(known.records, known.manifest) if known else NOTHING_KNOWN
    write_manifest(path, Computed(rule), Listed([]), before)
    return cache.adopt(SPEC, Scan(path))[0]


class World:
    """A cache, its loop, and a worker that the test is."""

    def __init__(self, root: Path) -> None:
        self.cache = Cache(config_of(root))
        self.loop = Loop(self.cache, make_pool=FakePool)
        self.owner = Owner(self.cache, self.loop)
        self.pool: FakePool = self.loop._tasks.pool  # type: ignore[assignment]

    def prefetch(self, subset: Subset) -> Job:
        """Ask for a subset, and scan for it, as a worker does."""
        job = self.loop.jobs.submit(Request(SPEC, subset, "auto"))
        self.pool.may_take = 10**6
        task = self.pool.sent[-1]
        assert isinstance(task, ScanSource)
        known = self.cache.known(SPEC.name)
        before = Known(known.records, known.manifest) if known else NOTHING_KNOWN
        write_manifest(task.path, Computed(Generated(MANY)), Listed([]), before)
        self.loop.events.put(WorkerMessage(self.pool.workers[0], Scanned(task.task)))
        self.pool.may_take = len(self.pool.sent) + 1
        while job.plan is None and not job.ended:
            self.loop.step(0.01)
            if self.pool.built() and self.pool.built()[-1].task in self.pool.workers[0].tasks:
                self.pool.done(self.cache.datasets[SPEC.name])
        return job

    def build_next(self) -> list[int]:
        """Have the next lot given out and built; say which samples it has. []: there is none."""
        self.pool.may_take = len(self.pool.sent) + 1
        self.loop.step(0.01)
        if len(self.pool.sent) < self.pool.may_take:
            return []
        samples = self.pool.built()[-1].samples
        self.pool.done(self.cache.datasets[SPEC.name])
        for _ in range(200):
            self.loop.step(0.01)
            if self.cache.kept(self.cache.datasets[SPEC.name], np.asarray(samples)).all():
                break
        return samples


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.loop.stop()
    world.cache.close()


def test_a_job_for_all_of_28_million_takes_little_memory_and_stages_them_in_order(world: World) -> None:
    before = memory_bytes()
    job = world.prefetch(Subset())
    assert job.error is None
    assert (job.wanted, job.staged + job.left) == (MANY, MANY)
    spread = world.pool.built()[0].samples
    for part, number in enumerate(spread):
        assert part * MANY // 32 <= number < (part + 1) * MANY // 32, "a plan measures all over the data set"
    assert world.build_next()[:3] == [0, 1, 2]
    dataset = world.cache.datasets[SPEC.name]
    assert isinstance(job.numbers, Runs)
    assert memory_bytes() - before < LITTLE
    resident, failed = dataset.counts()
    assert (resident, failed) == (len(dataset.resident()), 0)
    assert dataset.index.path.stat().st_blocks * 512 < LITTLE
    world.loop.jobs.cancel(job, finish=True)
    assert job.left < 10_000, "it waits for what is under way, and for no more"


def test_whatever_is_asked_of_28_million_is_answered_without_an_array_of_them(world: World) -> None:
    before = memory_bytes()
    job = world.prefetch(Subset(per_class=100))
    while not job.ended:
        world.build_next()
    assert (job.state, job.wanted, job.staged) == ("done", 100, 100)
    dataset, owner = world.cache.datasets[SPEC.name], world.owner
    (row,) = owner.datasets()
    assert (row["samples"], row["resident"]) == (MANY, 100)
    assert owner.classes(SPEC.name) == [{"class": "", "samples": MANY, "resident": 100}]
    world.cache.record_failures(dataset, [Failure(MANY - 5, "corrupt", "by the test")])
    assert owner.failures(SPEC.name)[0]["index"] == MANY - 5
    assert "not resident: not_planned" in owner.why(SPEC.name, "12345678")["why"]
    record = dataset.record
    draws = np.asarray([MANY - 1, 3, MANY // 2])
    about = (
        record.recipe,
        record.lineage,
        record.manifest,
        Subset(),
        True,
        1,
        0,
        0,
        1,
        False,
        3,
        0,
        (draws,),
    )
    session = OpenSession(OrderRequest("s", SPEC.name, *about), dataset, dataset.manifest, owner.clock)
    session.look_ahead()
    assert session.missing == 3
    assert session.is_ahead(draws).all()
    world.loop.sessions.register(session)
    assert world.loop.planned(dataset, draws).all()
    assert owner.pin(SPEC.name, Subset(fraction=0.0001), pinned=True)["samples"] >= 0
    assert owner.evict(SPEC.name, Subset())["samples"] >= 0
    assert owner.problems() == []
    world.loop.give_back_stale()
    assert memory_bytes() - before < LITTLE


def test_what_is_staged_of_computed_samples_is_there_after_a_restart_and_a_lost_catalog(
    tmp_path: Path,
) -> None:
    cache = Cache(config_of(tmp_path))
    dataset = scan(cache, Generated(MANY))
    stage(cache, dataset, [5, 17, MANY - 1])
    cache.close()
    again = Cache(config_of(tmp_path))
    assert again.datasets["data"].resident().tolist() == [5, 17, MANY - 1]
    assert check_books(again, set()) == []
    again.close()
    (tmp_path / "cache" / "catalog.db").unlink()
    rebuilt = Cache(config_of(tmp_path))
    assert rebuilt.datasets["data"].resident().tolist() == [5, 17, MANY - 1]
    rebuilt.close()
    shutil.rmtree(tmp_path / "cache" / "datasets" / "data" / "shards")
    (tmp_path / "cache" / "datasets" / "data" / "shards").mkdir()
    empty = Cache(config_of(tmp_path))
    assert not len(empty.datasets["data"].resident())
    empty.close()


def test_another_seed_stages_anew_and_the_first_one_finds_what_it_had(tmp_path: Path) -> None:
    cache = Cache(config_of(tmp_path))
    dataset = scan(cache, Generated(MANY, seed=1))
    stage(cache, dataset, [5, 17])
    assert scan(cache, Generated(MANY, seed=2)).counts() == (0, 0)
    assert scan(cache, Generated(MANY + 10, seed=1)).counts() == (2, 0)
    assert not cache.is_outgrown("data")
    scan(cache, Generated(10, seed=1))
    cache.departures.give_back_stale({}, set())
    assert cache.datasets["data"].resident().tolist() == [5]
    cache.close()


def test_a_listed_data_set_that_becomes_a_computed_one_keeps_its_rows_for_whoever_reads_them(
    tmp_path: Path,
) -> None:
    from test_cache import KEYS
    from test_cache import scan as scan_folder

    cache = Cache(config_of(tmp_path))
    listed = scan_folder(cache, KEYS)
    stage(cache, listed, [1, 2])
    words = listed.index.words
    computed = scan(cache, Generated(MANY))
    assert (computed.counts(), len(computed.manifest)) == ((0, 0), MANY)
    assert words[[1, 2]].all()
    again = scan_folder(cache, KEYS)
    assert again.counts() == (2, 0)
    cache.close()


def test_an_index_on_a_full_disk_has_no_room_and_says_so_before_anyone_stores(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "size=256k") as disk:
        index = IndexWriter.open(disk / "index", MANY, LINEAGE, RECIPE, disk, is_sparse=True)
        index.make_room(np.asarray([5]))
        index.publish(np.asarray([5]), pack_words(1, np.asarray([0]), "arrow"))
        with pytest.raises(NoSpace, match="No space left"):
            index.make_room(np.arange(0, MANY, MANY // 1000))
        assert index.used().tolist() == [5]


def test_a_lot_of_computed_samples_has_room_in_the_index_before_a_worker_has_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[list[int]] = []
    monkeypatch.setattr(IndexWriter, "make_room", lambda self, numbers: made.append(numbers.tolist()))
    world.prefetch(Subset(per_class=3))
    assert world.pool.built()[0].samples in made
