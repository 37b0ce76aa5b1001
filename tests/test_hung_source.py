"""The loop and a source that hangs, under a simulated clock: it stops alone, and goes on by itself."""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from simulate import temporary_directory
from stager.config import STALL_S
from stager.dispatch import places
from stager.dispatch.tasks import HUNG_S
from stager.jobs.job import Job, Request
from stager.jobs.queue import HUNG_MOST_S
from stager.reader.amount import Amount
from stager.reader.samples.subset import Subset
from world import World

MOUNT = "/mnt/b"


@pytest.fixture
def world() -> Iterator[World]:
    with temporary_directory() as directory:
        world = World(Random(0), directory)
        world.fails = 0.0
        world.cache.budget.capacity = Amount(bytes=10_000_000)
        yield world
        world.close()


@pytest.fixture
def mounted(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """The source `b` lies on a mount, the others do not."""
    monkeypatch.setattr(places, "remote_mount", lambda path: MOUNT if Path(path).name == "b" else "")
    return world


def prefetch(world: World, name: str, is_local: bool = False) -> Job:
    request = Request(world.spec(name, crop=64), Subset(), "auto", is_local=is_local)
    return world.loop.jobs.by_id[world.owner.prefetch(request)["id"]]


def build_and_hang(world: World, *names: str, is_local: bool = False) -> list[Job]:
    """Jobs whose scans are over; then the source `b` hangs under its shards."""
    jobs = [prefetch(world, name, is_local) for name in names]
    for _ in range(20):
        if all(job.state in ("planning", "staging") for job in jobs) and tasks_of(world, "b"):
            break
        world.work_all()
        world.loop.step(0.0)
    world.pool.hung.add("b")
    return jobs


def tasks_of(world: World, name: str) -> int:
    return sum(task.spec.name == name for task in world.loop._tasks._open.values())


def pass_time(world: World, seconds: float) -> None:
    """A second at a time; workers notice who does not answer."""
    for _ in range(int(seconds)):
        world.clock.advance(1.0)
        world.pool.tell_hung()
        world._say_all()
        world.loop.step(0.0)


def test_what_is_under_way_in_a_hung_mount_is_given_up_and_only_one_task_tries_again(mounted: World) -> None:
    (job,) = build_and_hang(mounted, "b")
    pass_time(mounted, 2)
    told = mounted.owner.status()["hung"]
    assert [(one["dataset"], one["what"]) for one in told] == [("b", "a stat of something")]
    assert job.paused is not None
    began = tasks_of(mounted, "b")
    pass_time(mounted, HUNG_S - 10)
    assert tasks_of(mounted, "b") == began, "no more of it is given out"
    for _ in range(300):
        pass_time(mounted, 1)
        assert tasks_of(mounted, "b") <= max(began, 1)
    assert tasks_of(mounted, "b") <= 1
    assert mounted.cache.budget.reserved_bytes <= mounted.loop.sizes.bytes_for(
        mounted.cache.datasets["b"], mounted.cache.datasets["b"].count
    )
    assert job.state in ("planning", "staging")
    mounted.check()
    mounted.pool.answer()
    mounted.finish()
    assert (job.state, job.failed, job.paused) == ("done", 0, None)
    assert mounted.owner.status()["hung"] == []


def test_others_are_staged_while_a_mount_hangs(mounted: World) -> None:
    hung, _ = build_and_hang(mounted, "b", "a")
    other = prefetch(mounted, "a")
    for _ in range(100):
        pass_time(mounted, 1)
        mounted.work_all()
        mounted.disk.sync()
    assert other.state == "done"
    assert not hung.ended


def test_what_a_worker_had_for_others_when_it_hung_is_done_again(world: World) -> None:
    hung, other = build_and_hang(world, "b", "a")
    pass_time(world, HUNG_S + 5)  # nobody has worked meanwhile
    assert [task.spec.name for task in world.loop._tasks._open.values()].count("b") <= 1
    for _ in range(100):
        pass_time(world, 1)
        world.work_all()
        world.disk.sync()
    assert (other.state, other.failed) == ("done", 0)
    assert not hung.ended
    world.pool.answer()
    world.finish()
    assert (hung.state, hung.failed) == ("done", 0)


@pytest.mark.parametrize(("is_local", "most_s"), [(True, STALL_S), (False, HUNG_MOST_S)])
def test_a_job_waits_for_a_hung_source_only_so_long(mounted: World, is_local: bool, most_s: float) -> None:
    (job,) = build_and_hang(mounted, "b", is_local=is_local)
    pass_time(mounted, 40)
    assert not job.ended
    mounted.clock.advance(most_s)
    pass_time(mounted, 200)
    assert job.state == "failed"
    assert job.error is not None
    assert "to a stat of something" in job.error.message
