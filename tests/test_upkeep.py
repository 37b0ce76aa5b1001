"""Room that is made, hot samples now, data sets that go, daily looks and limits: in a simulated world."""

import time
from collections.abc import Iterator
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from simulate import temporary_directory
from stager.cache.verify import check_books
from stager.config import Upkeep
from stager.dispatch.sizes import SHARD_OVERHEAD_BYTES
from stager.errors import UsageError
from stager.heat.heat import CHUNK_S
from stager.jobs.job import Job, Request
from stager.owner.upkeep.daily import LOOK_EVERY_S, DailyLooks
from stager.owner.upkeep.limits import LimitsInForce
from stager.reader.amount import Amount
from stager.reader.samples.subset import Subset
from stager.timetable import parse_daily, parse_limit, parse_share
from stager.worker.messages import SetLimits
from world import World

SIDE = 128
ROW_BYTES = SIDE * SIDE * 3 + 512
COUNT = 24  # of "a"


@pytest.fixture
def world() -> Iterator[World]:
    with temporary_directory() as directory:
        world = World(Random(0), directory)
        world.fails = 0.0
        world.cache.budget.capacity = Amount(bytes=20_000_000)
        world.config = world.cache.config = replace(world.config, hot=None)
        yield world
        world.close()


def stage(world: World, name: str, evict_cold: bool = False, stop_after: str = "") -> Job:
    request = Request(world.spec(name, crop=SIDE), Subset(), "arrow", stop_after, evict_cold=evict_cold)
    job = world.loop.jobs.by_id[world.owner.prefetch(request)["id"]]
    world.finish()
    return job


def here(world: World, name: str) -> list[int]:
    numbers: list[int] = (
        world.cache.datasets[name].resident().tolist() if name in world.cache.datasets else []
    )
    return numbers


def fill_up(world: World) -> None:
    """There is room for what is staged, and for a few samples more."""
    budget = world.cache.budget
    budget.capacity = Amount(bytes=budget.used_bytes + 3 * ROW_BYTES)


# Making room


def test_a_prefetch_that_does_not_fit_is_refused_and_told_how_it_would(world: World) -> None:
    stage(world, "a")
    fill_up(world)
    job = stage(world, "b")
    assert (job.state, len(here(world, "a"))) == ("failed", COUNT)
    assert job.error is not None
    assert "--evict-cold" in job.error.hint


def test_a_plan_says_what_would_go_and_nothing_goes(world: World) -> None:
    stage(world, "a")
    fill_up(world)
    job = stage(world, "b", evict_cold=True, stop_after="plan")
    assert job.plan is not None
    (told,) = job.plan.to_json()["evicts"]
    assert told["dataset"] == "a"
    assert told["samples"] > 0
    assert told["bytes"] > 0
    assert len(here(world, "a")) == COUNT


def test_with_evict_cold_it_takes_the_place_of_what_is_needed_latest(world: World) -> None:
    stage(world, "a")
    warm = np.arange(4)
    world.clock.advance(24 * 3600.0)  # nobody asked for it lately
    world.cache.datasets["a"].heat.add(np.repeat(warm, 9), world.clock.wall())
    fill_up(world)
    job = stage(world, "b", evict_cold=True)
    assert job.state == "done", job.error
    assert len(here(world, "b")) == job.wanted
    left = here(world, "a")
    assert set(warm.tolist()) <= set(left)
    assert job.evicts[0].samples == COUNT - len(left)
    world.check()


def test_what_was_asked_for_lately_goes_last_but_it_goes(world: World) -> None:
    stage(world, "a")
    fill_up(world)
    assert stage(world, "b", evict_cold=True).state == "done"
    assert len(here(world, "a")) < COUNT


def test_what_is_pinned_does_not_go_and_then_it_is_refused(world: World) -> None:
    stage(world, "a")
    world.owner.pin("a", Subset(), True)
    fill_up(world)
    job = stage(world, "b", evict_cold=True)
    assert (job.state, len(here(world, "a"))) == ("failed", COUNT)


# Hot, now


def test_what_is_hot_and_missing_is_staged_at_once_as_far_as_there_is_room(world: World) -> None:
    stage(world, "a")
    world.owner.evict("a", Subset())
    world.cache.datasets["a"].heat.add(np.arange(10), world.clock.wall())
    begun = world.owner.stage_hot(None)["jobs"]
    world.finish()
    assert here(world, "a") == list(range(10))
    assert [world.owner.job(job["id"])["staged"] for job in begun] == [10]
    assert world.owner.stage_hot("a") == {"jobs": []}


def test_hot_of_what_is_not_there_is_an_error(world: World) -> None:
    with pytest.raises(UsageError, match="nothing of 'a' is staged here"):
        world.owner.stage_hot("a")


def test_without_room_the_hottest_are_staged_and_nothing_goes_for_them(world: World) -> None:
    stage(world, "a")
    world.owner.evict("a", Subset())
    stage(world, "b")
    before = len(here(world, "b"))
    heat = world.cache.datasets["a"].heat
    heat.add(np.repeat(np.arange(5), 9), world.clock.wall())
    heat.add(np.arange(COUNT), world.clock.wall())
    world.clock.advance(2 * CHUNK_S)  # what is hot is some seconds old
    world.cache.budget.capacity = Amount(
        bytes=world.cache.budget.used_bytes + 13 * ROW_BYTES + 2 * SHARD_OVERHEAD_BYTES
    )
    world.owner.stage_hot(None)
    world.finish()
    assert set(range(5)) <= set(here(world, "a"))
    assert len(here(world, "a")) < COUNT
    assert len(here(world, "b")) == before


# Data sets that go


def test_a_data_set_goes_when_what_workers_have_of_it_has_ended(world: World) -> None:
    request = Request(world.spec("a", crop=SIDE), Subset(), "arrow")
    number = world.owner.prefetch(request)["id"]
    while not world.loop._tasks.datasets():
        world.clock.advance(0.1)
        world.loop.step(0.0)
        while world.beside.go():
            pass
        for worker in world.pool.busy() if not world.loop._tasks.datasets() else ():
            world.pool.do(worker, world.rng, 0.0)
        for answer in world.pool.unsaid:
            world.loop.events.put(answer)
        world.pool.unsaid.clear()
    with pytest.raises(UsageError, match=f"a is in use: job {number} stages it"):
        world.owner.remove("a", force=False)
    assert not world.owner.remove("a", force=True)["is_gone"]
    with pytest.raises(UsageError, match="a is being removed"):
        world.owner.prefetch(request)
    world.finish()
    assert world.owner.remove("a", force=True)["is_gone"]
    assert "a" not in world.cache.datasets
    assert world.cache.budget.used_bytes == world.cache.budget.reserved_bytes == 0
    with pytest.raises(UsageError, match="nothing of 'a' is staged here"):
        world.owner.remove("a", force=True)
    assert stage(world, "a").state == "done"
    world.check()


def test_a_data_set_that_is_renamed_keeps_its_rows_and_its_heat(world: World) -> None:
    stage(world, "a")
    before = world.cache.datasets["a"]
    before.heat.add(np.repeat(np.arange(5), 3), world.clock.wall())
    resident, used_bytes = here(world, "a"), world.cache.budget.used_bytes
    world.cache.rename("a", "z")
    assert "a" not in world.cache.datasets
    assert here(world, "z") == resident
    after = world.cache.datasets["z"]
    assert after.heat.warm(world.clock.wall()).samples.tolist() == list(range(5))
    assert (after.id, after.record.lineage) == (before.id, before.record.lineage)
    assert (world.cache.budget.used_bytes, check_books(world.cache, set())) == (used_bytes, [])


# Each day


def at(text: str) -> float:
    return time.mktime(time.strptime(text, "%Y-%m-%d %H:%M"))


def test_a_staged_data_set_is_looked_at_once_a_day_and_a_missed_time_is_made_up_for(world: World) -> None:
    upkeep = {"a": Upkeep(refresh_at=parse_daily("02:00")), "never": Upkeep(refresh_at=parse_daily("02:00"))}
    world.clock.wall_s = at("2026-01-31 12:00")
    stage(world, "a")
    world.cache.config = replace(world.config, upkeep=upkeep)
    begun: list[float] = []

    def refresh(name: str) -> None:
        assert name == "a"
        begun.append(world.clock.wall())
        world.owner.refresh(name, "take")

    def look(hours: float) -> None:
        """The service runs for so long."""
        daily = DailyLooks(world.cache, world.loop.jobs, refresh)
        for _ in range(int(hours * 4)):
            world.clock.advance(max(900.0, LOOK_EVERY_S))
            daily.look()
            world.finish()

    look(13)
    assert begun == []  # until 01:00
    look(23)
    assert len(begun) == 1
    world.clock.advance((3 * 24 + 5) * 3600.0)  # the service is down
    look(1)
    assert len(begun) == 2, "it makes up for the time that it missed, once"
    look(48)
    assert len(begun) == 4


# Limits


class Told:
    """A pool that notes what it is told."""

    size = 2

    def __init__(self) -> None:
        self.limits: list[SetLimits] = []

    def limit(self, limits: SetLimits) -> None:
        self.limits.append(limits)


def test_workers_are_told_when_the_time_of_the_day_changes_what_holds(world: World) -> None:
    world.clock.wall_s = at("2026-01-31 07:59")
    upkeep = {"a": Upkeep(limit=parse_limit("1MB/s")), "b": Upkeep(limit=parse_limit("2MB/s 08:00-09:00"))}
    limit, cpu = parse_limit(["10MB/s 08:00-20:00", "50MB/s"]), parse_share("50% 08:00-20:00")
    world.cache.config = replace(world.config, upkeep=upkeep, limit=limit, cpu=cpu)
    pool = Told()
    limits = LimitsInForce(world.cache, pool)
    (first,) = pool.limits
    assert (first.cores, first.of_all, first.of) == (None, (0, 50e6), {"a": (1, 1e6)})
    for _ in range(120):
        world.clock.advance(1.0)
        limits.look()
    (_, second) = pool.limits
    assert second.cores is not None
    assert (second.of_all, second.of) == ((0, 10e6), {"a": (1, 1e6), "b": (2, 2e6)})
    told = limits.to_json()
    assert told is not None
    assert told["source"] == {"bytes_per_s": 10e6, "until": "20:00"}
    assert told["cpu"] == {"share": 0.5, "until": "20:00"}
    assert told["datasets"]["b"] == {"bytes_per_s": 2e6, "until": "09:00"}
    world.cache.config = world.config  # a reload takes them all away
    world.clock.advance(2.0)
    limits.look()
    assert (pool.limits[-1].cores, pool.limits[-1].of_all, pool.limits[-1].of) == (None, None, {})
