"""The loop under seeded disorder: after every step, all that is promised holds. See world.py.

A seed that fails says so, with its last events, and fails again: tests/simulate.py --seed N.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import numpy as np
import pytest

from simulate import Failed, run_seed, temporary_directory
from stager.cache.dataset import Failure
from stager.dispatch.task import Lot, Purpose
from stager.jobs.job import Request
from stager.owner.heat.hot import LOOK_EVERY_S
from stager.reader.amount import Amount
from stager.reader.index import HEADER_BYTES, is_resident
from stager.reader.samples.subset import Subset
from stager.sessions.leases import START_S
from stager.worker.messages import NOTHING_BUILT
from world import World

SEEDS, STEPS, CHUNKS = 300, 300, 20


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_promise_holds_after_every_step(chunk: int) -> None:
    compared = 0
    for seed in range(chunk, SEEDS, CHUNKS):
        try:
            compared += run_seed(seed, STEPS)["compared"]
        except Failed as failed:
            pytest.fail(str(failed))
    assert compared > 0


# What the simulation has found, by name


@pytest.fixture
def world() -> Iterator[World]:
    with temporary_directory() as directory:
        world = World(Random(0), directory)
        world.fails = 0.0
        world.cache.budget.capacity = Amount(bytes=10_000_000)
        yield world
        world.close()


def stage(world: World, name: str = "a", shard_format: str = "auto") -> None:
    world.owner.prefetch(Request(world.spec(name, crop=64), Subset(), shard_format))
    world.finish()


def damage_word(world: World, number: int) -> None:
    with world.cache.datasets["a"].index.path.open("r+b") as file:
        at = HEADER_BYTES + 8 * number
        byte = os.pread(file.fileno(), 1, at)[0]
        os.pwrite(file.fileno(), bytes([byte ^ 1]), at)


def test_a_sample_whose_word_was_damaged_is_not_kept_twice(world: World) -> None:
    stage(world)
    dataset = world.cache.datasets["a"]
    damage_word(world, 3)
    world.loop._tasks.build(Lot(dataset, np.asarray([3]), "arrow"))
    world.finish()
    held = [row for row in world.cache.catalog.shards() if 3 in row.samples]
    assert len(held) == 1
    assert world.owner.problems() == []
    world.check()


def test_a_shard_that_could_not_be_synced_takes_no_other_one_with_it(world: World) -> None:
    stage(world)
    dataset = world.cache.datasets["a"]
    damage_word(world, 3)
    world.loop._tasks.build(Lot(dataset, np.asarray([3]), "arrow"))
    world.work_all()
    world.loop.step(0.0)
    world.disk.sync(is_broken=True)
    world.loop.step(0.0)
    assert world.owner.problems() == []
    assert is_resident(dataset.index.words).all(), "it was staged, and somebody was told so"


def test_a_word_that_is_mended_before_its_shard_is_durable_is_not_lost(world: World) -> None:
    world.owner.prefetch(Request(world.spec("a", crop=64), Subset(), "auto"))
    while not len(world.disk):
        world.work_all()
        world.loop.step(0.0)
    dataset = world.cache.datasets["a"]
    damage_word(world, 3)
    damage_word(world, 4)
    world.cache.mend(dataset, np.asarray([3]))
    world.loop._tasks.build(Lot(dataset, np.asarray([4]), "arrow"))
    world.work_all()
    world.loop.step(0.0)
    world.finish()
    assert is_resident(dataset.index.words).all()
    assert world.owner.problems() == []
    assert sum(int((row.samples >= 0).sum()) for row in world.cache.catalog.shards()) == dataset.count
    world.check()


def test_the_loop_goes_on_after_a_list_of_samples_was_made_anew(world: World) -> None:
    stage(world)
    before = world.cache.datasets["a"]
    for key in sorted(world.sources["a"].versions)[:20]:
        world.sources["a"].change(key)
    stage(world)
    for key in sorted(world.sources["a"].versions)[12:]:
        del world.sources["a"].versions[key]
    world.clock.advance(START_S)
    stage(world)
    after = world.cache.datasets["a"]
    assert after.record.lineage != before.record.lineage
    assert after.count == 12
    for _ in range(3):
        world.clock.advance(LOOK_EVERY_S)
        world.loop.step(0.0)
    world.check()


def test_a_job_ends_when_a_scan_finds_that_nothing_of_it_is_left_to_stage(world: World) -> None:
    for key in sorted(world.sources["b"].versions)[4:]:
        del world.sources["b"].versions[key]
    stage(world, "b")
    world.sources["b"].add("c9/new.jpg")
    first = world.owner.prefetch(Request(world.spec("b", crop=64), Subset(), "auto"))["id"]
    world.work_all()  # the scan
    world.loop.step(0.0)
    world.pool.workers[0].hangs = True  # type: ignore[attr-defined]
    world.clock.advance(1.0)
    job = world.loop.jobs.by_id[first]
    world.loop.jobs.groundwork.planned(job, NOTHING_BUILT)  # another one stages it just now
    del world.sources["b"].versions["c9/new.jpg"]
    world.owner.prefetch(Request(world.spec("b", crop=64), Subset(), "auto"))
    world.work_all()
    world.loop.step(0.0)
    assert world.owner.job(first)["state"] == "done"


def test_a_sample_that_failed_and_was_staged_after_all_has_no_failure(world: World) -> None:
    stage(world)
    dataset = world.cache.datasets["a"]
    world.owner.evict("a", Subset())
    world.cache.record_failures(dataset, [Failure(3, "unreadable", "simulated")])
    damage_word(world, 3)  # it says neither failed nor resident
    world.loop._tasks.build(Lot(dataset, np.asarray([3]), "arrow"))
    world.finish()
    assert world.owner.failures("a") == []
    world.cache.forgive(dataset, np.arange(dataset.count))
    assert is_resident(dataset.index.words[[3]]).all()
    assert world.owner.problems() == []


def test_a_prefetch_mends_a_damaged_word_and_stages_nothing(world: World) -> None:
    stage(world)
    damage_word(world, 3)
    job = world.owner.prefetch(Request(world.cache.datasets["a"].spec, Subset(), "auto"))["id"]
    world.finish()
    assert (world.owner.job(job)["state"], world.owner.job(job)["staged"]) == ("done", 0)
    assert is_resident(world.cache.datasets["a"].index.words).all()


@pytest.mark.parametrize("shard_format", ["arrow", "lmdb"])
def test_what_is_reserved_is_enough_for_either_format(world: World, shard_format: str) -> None:
    world.owner.prefetch(Request(world.spec("a", crop=64), Subset(), shard_format))
    while not world.cache.budget.reserved_bytes:
        world.work_all()
        world.loop.step(0.0)
    reserved = world.cache.budget.reserved_bytes
    world.work_all()
    (path,) = (world.cache.datasets["a"].directory / "shards").iterdir()
    assert path.stat().st_size <= reserved


def test_a_reader_is_counted_once_though_the_clock_is_set_forward_by_a_year(world: World) -> None:
    stage(world)
    world.open_named("a")
    (reader,) = world.readers
    reader.count(reader.manifest.numbers, missed=2)
    world.owner.readers.report(reader.report())
    world.clock.wall_s += 365 * 86_400
    world.restart()
    world.owner.readers.report(reader.report())
    assert world.owner.stats()["datasets"]["a"]["requests"] == len(reader.manifest)


def test_what_a_session_has_passed_leaves_memory_though_the_clock_was_set_back(world: World) -> None:
    stage(world)
    world.open_named("a")
    world.begin_epoch()
    while world.makes:
        world.order_is_known()
    (reader,) = world.readers
    dataset = world.cache.datasets["a"]
    world.owner.evict("a", Subset())
    assert reader.order is not None
    world.owner.readers.heard(reader.session, len(reader.order))
    world.loop._tasks.build(Lot(dataset, np.asarray([3]), "arrow", Purpose.MEMORY))
    world.work_all()
    world.loop.step(0.0)
    assert is_resident(dataset.index.words[[3]]).all(), "a reader has a moment to read it"
    world.clock.wall_s -= 365 * 86_400
    world.loop.step(0.0)
    assert not is_resident(dataset.index.words[[3]]).any()


def test_what_is_evicted_by_hand_is_staged_again_for_a_session_that_is_still_to_read_it(world: World) -> None:
    stage(world)
    world.open_named("a")
    world.begin_epoch()
    while world.makes:
        world.order_is_known()
    (reader,) = world.readers
    assert reader.order is not None
    world.loop.step(0.0)  # all is resident, so staging is at the end of the order
    world.owner.evict("a", Subset())
    world.loop.step(0.0)
    world.finish()
    assert is_resident(world.cache.datasets["a"].index.words[reader.order]).all()


def test_the_same_seed_is_the_same_world() -> None:
    assert run_seed(5, 60) == run_seed(5, 60)


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    run_seed(1, 30)
    assert not [path for path in Path("/dev/shm").glob("stager-world-*") if str(os.getpid()) in path.name]
