"""The hot set fills itself: what is likely to be read is resident, and nobody is in its way."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest

import hot_day
from making import image_folder
from running import Place
from sets import staged, table
from simulate import temporary_directory
from stager.cache.cache import Cache
from stager.config import load_config
from stager.dispatch.sizes import SHARD_OVERHEAD_BYTES
from stager.jobs.job import Request
from stager.owner.heat.cores import Cores
from stager.owner.heat.hot import CHOOSE_EVERY_S, FAILED_REST_S, LOOK_EVERY_S
from stager.owner.loop import Loop
from stager.reader.amount import Amount
from stager.reader.index import is_resident
from stager.reader.samples.subset import Subset
from stager.reader.values import Numbers
from world import World
from world_parts import Fuse, SimulatedClock

ROW_BYTES = 64 * 64 * 3


@pytest.fixture
def world() -> Iterator[World]:
    """Two data sets of which all samples were staged, read and lost again."""
    with temporary_directory() as directory:
        world = World(Random(0), directory)
        world.fails = 0.0
        world.cache.budget.capacity = Amount(bytes=10_000_000)
        hot_of(world, Amount(bytes=20 * ROW_BYTES))
        for name in ("a", "b"):
            stage(world, name)
            world.owner.evict(name, Subset())
        yield world
        world.close()


def hot_of(world: World, hot: Amount | None) -> None:
    world.config = world.cache.config = replace(world.config, hot=hot)


def stage(world: World, name: str) -> None:
    world.owner.prefetch(Request(world.spec(name, crop=64), Subset(), "auto"))
    world.finish()


def read(world: World, name: str, numbers: Numbers, times: int = 1) -> None:
    for _ in range(times):
        world.cache.datasets[name].heat.add(numbers, world.clock.wall_s)


def fill(world: World) -> None:
    """Nobody does anything for a minute or two."""
    for _ in range(30):
        world.clock.advance(LOOK_EVERY_S)
        world.loop.step(0.0)
        world.finish_some()
    world.check()


def here(world: World, name: str) -> list[int]:
    numbers: list[int] = world.cache.datasets[name].resident().tolist()
    return numbers


def test_the_hottest_of_all_data_sets_are_staged_within_the_budget(world: World) -> None:
    read(world, "a", np.arange(10), 3)
    read(world, "a", np.arange(10, 24), 1)
    read(world, "b", np.arange(8), 9)
    fill(world)
    assert here(world, "b") == list(range(8))
    assert set(here(world, "a")) > set(range(10))
    assert len(here(world, "a")) == 12, "20 in all: so many bytes are for it"
    told = world.owner.status()["hot"]
    assert told["missing_samples"] == 0
    assert told["resident_bytes"] == told["wanted_bytes"] == told["budget_bytes"] == 20 * ROW_BYTES


def test_a_sample_that_nobody_read_yet_is_staged_with_its_class(world: World) -> None:
    manifest = world.cache.datasets["a"].manifest
    first = np.asarray(manifest.numbers[np.flatnonzero(manifest.labels_at(np.arange(24)) == 1)])
    read(world, "a", first[:6], 2)
    fill(world)
    assert here(world, "a") == sorted(first.tolist())


def test_it_waits_for_idle_cores_and_for_all_who_need_anything(world: World) -> None:
    read(world, "a", np.arange(24), 2)
    world.busy_cores = 1.0
    fill(world)
    assert here(world, "a") == []
    assert world.owner.status()["hot"]["waits_for"] == "idle cores"
    world.busy_cores = 0.2
    world.owner.prefetch(Request(world.spec("t", crop=64), Subset(), "auto"))
    world.clock.advance(LOOK_EVERY_S)
    world.loop.step(0.0)
    assert world.loop._tasks.samples_in_flight(world.cache.datasets["a"]).tolist() == []
    fill(world)
    assert len(here(world, "a")) == 20


def test_without_it_only_what_was_read_comes_back_and_only_where_there_is_room(world: World) -> None:
    hot_of(world, None)
    world.busy_cores = 1.0
    read(world, "a", np.arange(6), 5)
    fill(world)
    assert here(world, "a") == list(range(6))
    world.owner.evict("a", Subset())
    stage(world, "b")
    read(world, "a", np.arange(24), 5)
    world.cache.budget.capacity = Amount(bytes=world.cache.budget.used_bytes + 3 * ROW_BYTES)
    fill(world)
    assert here(world, "a") == []
    assert len(here(world, "b")) == 8


def test_colder_samples_make_room_and_hotter_pinned_or_asked_ones_do_not(world: World) -> None:
    stage(world, "b")
    world.cache.budget.capacity = Amount(bytes=world.cache.budget.used_bytes + SHARD_OVERHEAD_BYTES)
    read(world, "a", np.arange(24), 4)
    fill(world)
    assert here(world, "a") == [], "somebody has asked for b just now"
    world.clock.advance(7 * 3600.0)
    read(world, "b", np.arange(3), 8)
    read(world, "a", np.arange(24), 4)
    world.owner.pin("b", Subset(), True)
    fill(world)
    assert here(world, "a") == [], "b is pinned"
    world.owner.pin("b", Subset(), False)
    world.pinned.clear()
    world.clock.advance(CHOOSE_EVERY_S)
    fill(world)
    assert set(here(world, "b")) == {0, 1, 2}, "these are hotter"
    assert 3 <= len(here(world, "a")) <= 4, "five went, of which whole blocks come back"


def test_what_goes_is_as_hot_as_it_is_now_and_not_as_when_it_was_looked_at(world: World) -> None:
    """Both are some seconds old, of seconds of their own: simulate.py, seed 3973."""
    stage(world, "b")
    world.clock.advance(7 * 3600.0)  # nobody has asked for it lately
    a, b = world.cache.datasets["a"], world.cache.datasets["b"]
    read(world, "a", np.arange(4), 4)
    a.guess(world.clock.wall_s), b.guess(world.clock.wall_s)  # reckoned anew after 10 s
    world.clock.advance(8.0)
    make_room = world.loop.hot._make_room
    assert make_room(a, np.arange(4), float(1 << 20)).tolist() == [0, 1, 2, 3]  # b was looked at
    read(world, "b", np.arange(8), 4)
    world.clock.advance(3.0)
    assert make_room(a, np.arange(4), 0.0).tolist() == []
    assert here(world, "b") == list(range(8))


def test_it_comes_to_rest_and_nothing_changes_places(world: World) -> None:
    world.cache.budget.capacity = Amount(bytes=12 * (ROW_BYTES + 1000) + 70_000)
    rng = np.random.default_rng(0)
    built = 0
    for hour in range(24):
        read(world, "a", rng.integers(0, 24, 48))
        read(world, "b", rng.integers(0, 8, 16))
        world.clock.advance(3600.0)
        before = world.counts["hot"]
        fill(world)
        built += world.counts["hot"] - before if hour >= 2 else 0
    assert built <= 4, "they are read alike: there is nothing to gain"


def test_a_source_that_does_not_answer_is_left_alone_for_a_while(world: World) -> None:
    read(world, "a", np.arange(24), 2)
    world.sources["a"].is_there = False
    fill(world)
    tries = world.counts["hot"]
    assert 1 <= tries <= 2
    world.sources["a"].is_there = True
    world.clock.advance(FAILED_REST_S)
    fill(world)
    assert len(here(world, "a")) == 20


def test_how_busy_cores_are_is_what_others_do() -> None:
    clock = SimulatedClock(Fuse())
    seen = iter([(0, 0), (100, 400), (500, 800), (500, 800)])
    cores = Cores(clock, lambda: next(seen))
    assert cores.busy() == 1.0, "not known yet"
    clock.advance(3.0)
    assert cores.busy() == cores.busy() == 0.25
    clock.advance(3.0)
    assert cores.busy() == 1.0
    clock.advance(3.0)
    assert cores.busy() == 0.0, "a kernel that does not tell is no reason never to stage"


def test_real_workers_stage_what_is_hot(tmp_path: Path) -> None:
    image_folder(tmp_path / "cats", 3, 4)
    place = Place(tmp_path).configure(table("cats", tmp_path / "cats"))
    place.json("prefetch", "cats")
    place.json("evict", "cats")
    text = place.config.read_text()
    place.config.write_text(text.replace("[cache]\n", '[cache]\nhot = "1MB"\n'))
    cache = Cache(load_config(place.config))
    loop = Loop(cache, busy_cores=lambda: 0.0)
    try:
        dataset = cache.datasets["cats"]
        dataset.heat.add(np.arange(4), cache.clock.wall())
        for _ in range(600):
            loop.step(0.1)
            if is_resident(dataset.index.words[np.arange(4)]).all() and not len(loop._disk):
                break
    finally:
        loop.stop()
        cache.close()
    assert sorted(staged(place, "cats")) == [f"class000/{at:03d}.jpg" for at in range(4)]


# A day


def test_after_a_day_a_skewed_workload_hits_within_five_points_of_the_best_set_there_is(
    tmp_path: Path,
) -> None:
    site = hot_day.Site(seed=7, room=0.2, skew=1.1, has_hot=True, manifest=hot_day.manifest(tmp_path))
    first, second = site.day(), site.day()
    assert first.hits >= first.best_fixed - 0.05, "though it began with an empty cache"
    assert second.hits >= second.best_fixed - 0.05
    assert second.filled <= 0.02 * site.room, "it has come to rest"


def test_what_was_lost_is_back_before_the_next_training_begins(tmp_path: Path) -> None:
    sites = [
        hot_day.Site(seed=7, room=0.2, skew=1.1, has_hot=has_hot, manifest=hot_day.manifest(tmp_path))
        for has_hot in (False, True)
    ]
    hits = []
    for site in sites:
        site.day()
        site.here[:] = False  # a new disk; the heat was kept
        if site.has_hot:
            site._fill()
        site.hits = 0
        for _ in range(5):
            site._epoch()
        hits.append(site.hits)
    assert hits[1] > 1.5 * hits[0]
