"""A world in which the loop runs without threads or time: every event is drawn from one seed."""

import os
import shutil
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any, Final

import numpy as np

import world_promises as promises
from stager.cache.cache import Cache
from stager.cache.dataset import Dataset
from stager.config import Config, Upkeep
from stager.dispatch.memory_shards import MEMORY
from stager.dispatch.task import Lot
from stager.errors import StagerError
from stager.owner.loop import Loop
from stager.owner.owner import Owner
from stager.owner.watches import Watches
from stager.reader.amount import Amount
from stager.reader.record import DatasetSpec
from stager.reader.samples.sample_list import SampleList
from stager.reader.samples.subset import Subset
from stager.reader.values import Numbers, SampleInfo, SourceSpec
from stager.recipes import check_recipe
from stager.sessions.leases import Leases
from stager.watch.messages import WatchPlace
from stager.watch.process import Hear
from world_events import CAPACITIES, EVENT_NAMES, EVENT_WEIGHTS, SETS, Events
from world_parts import (
    Fuse,
    Killed,
    Shown,
    SimulatedBeside,
    SimulatedClock,
    SimulatedDisk,
    SimulatedPool,
    SimulatedSource,
    SimulatedTable,
    SimulatedWatcher,
    guarded,
)
from world_readers import SimulatedReader

SOURCES: Final = {"a": SimulatedSource, "b": SimulatedSource, "t": SimulatedTable}
MEMORIES: Final = (0, 100_000, 300_000, 1_000_000)
HOTS: Final = (None, Amount(bytes=150_000), Amount(fraction=0.5), Amount(fraction=1.0))
CROPS: Final = (64, 48)
OUTGROWN_SMALL: Final = 1.2
KEPT_EVENTS: Final = 20
ALL_ROWS_EVERY: Final = 25
BOOKS_EVERY: Final = 10
ROUNDS_MOST: Final = 200  # half a minute each


class SmallCache(Cache):
    """A cache whose lists are outgrown soon."""

    def __init__(self, config: Config, clock: SimulatedClock) -> None:
        try:
            super().__init__(config, clock=clock)
        except Killed:  # its process has ended: nobody has its catalog open
            if (catalog := vars(self).get("catalog")) is not None:
                catalog.close()
            raise

    def is_outgrown(self, name: str) -> bool:
        dataset = self.known(name)
        return dataset is not None and dataset.count > OUTGROWN_SMALL * len(dataset.manifest)


class World(Events):
    """One cache directory, its owner, its sources and its readers, under seeded disorder."""

    def __init__(self, rng: Random, directory: Path) -> None:
        self.rng, self.directory = rng, directory
        self.fuse = Fuse()
        self.clock = SimulatedClock(self.fuse)
        self.sources = {
            name: SOURCES[name](f"c{number % 3}/{number:02d}.jpg" for number in range(count))
            for name, count in SETS.items()
        }
        watched = rng.choice(((), ("a",), ("a", "t")))
        self.config = Config(
            None,
            directory / "cache",
            directory / "socket",
            capacity=Amount(bytes=rng.choice(CAPACITIES)),
            reserve=Amount(),
            memory=Amount(bytes=rng.choice(MEMORIES)),
            hot=rng.choice(HOTS),
            datasets={name: self.spec(name) for name in watched},
            upkeep={name: Upkeep(watch=True) for name in watched},
        )
        self.busy_cores = 0.0
        self.fails = rng.choice((0.0, 0.0, 0.02, 0.1))
        self.readers: list[SimulatedReader] = []
        self.makes: list[tuple[SimulatedReader, Callable[[], Any]]] = []  # sessions that are being worked out
        self.processes: dict[int, int] = {}  # when each began, by pid
        self.waits: list[tuple[Future[Any], float]] = []
        self.listed: dict[str, dict[str, Shown]] = {}
        self.numbers: dict[str, list[SampleInfo]] = {}  # what each number is, by lineage
        self.words_seen: dict[str, Any] = {}
        self.shards: dict[int, tuple[Any, list[tuple[str, str]]]] = {}  # by inode: open, and what is in it
        self.flipped: set[int] = set()  # shards whose file was damaged
        self.can_be_damaged = rng.random() < 0.5
        self.can_punch = rng.random() < 0.85  # else a file keeps its blocks while somebody has it open
        self.is_damaged = False  # any file, ever
        self.recorded: set[tuple[str, str, int]] = set()  # just before the owner was killed
        self.pinned: dict[int, list[int]] = {}  # the samples of each shard that was pinned
        self.lists_seen: set[str] = set()
        self.is_shrunk = False
        self.is_catalog_whole = True
        self.is_owned = False
        self.steps = self.serial = 0
        self.depth = 0
        self.last: deque[str] = deque(maxlen=KEPT_EVENTS)
        self.counts: Counter[str] = Counter()
        self.start()

    # The owner

    def start(self) -> None:
        """A new owner takes over the directory. It may be killed while it does."""
        self.cache = SmallCache(self.config, clock=self.clock)
        self.is_owned = True
        self.cache.can_punch = self.cache.departures.files._can_punch = self.can_punch
        self._guard()
        make = (self._make_pool, SimulatedDisk, SimulatedBeside)
        self.loop = Loop(self.cache, *make, busy_cores=lambda: self.busy_cores)  # type: ignore[arg-type]
        self._watch_hot()
        beside = self.loop._beside
        assert isinstance(beside, SimulatedBeside)
        self.beside = beside
        self.loop.leases = Leases(self.cache.catalog, self.clock, lambda pid: self.processes.get(pid, 0))
        disk = self.loop._disk
        assert isinstance(disk, SimulatedDisk)
        self.disk = disk
        self.owner = Owner(self.cache, self.loop)
        self.watchers: list[SimulatedWatcher] = []
        self.owner.watches = Watches(self.cache, self.loop.jobs, self.loop.events, self._start_watcher)
        self.loop.jobs.resume()
        for reader in self.readers:
            reader.order = None

    def _start_watcher(self, place: WatchPlace, hear: Hear) -> SimulatedWatcher:
        self.watchers.append(SimulatedWatcher(place, hear))
        return self.watchers[-1]

    def _watch_hot(self) -> None:
        """Whatever is staged unasked, and whatever goes for it, is looked at."""
        build, make_room = self.loop._tasks.build, self.loop.hot._make_room

        def watched_build(lot: Lot, plan_of: int | None = None) -> None:
            promises.what_is_hot_comes_after_all_else(self, lot)
            build(lot, plan_of)

        def watched_make_room(dataset: Dataset, samples: Numbers, room_bytes: float) -> Numbers:
            before = promises.heat_of_residents(self)
            kept = make_room(dataset, samples, room_bytes)
            promises.nothing_hotter_went(self, before, dataset, kept)
            return kept

        self.loop._tasks.build = watched_build  # type: ignore[method-assign]
        self.loop.hot._make_room = watched_make_room

    def _make_pool(self, events: Any, clock: Any) -> SimulatedPool:
        self.pool = SimulatedPool(events, clock, self.sources)
        self.pool.listed = self.listed
        return self.pool

    def _guard(self) -> None:
        """Give the owner more points to be killed at: around each transaction, and each file that goes."""
        fuse, catalog, files = self.fuse, self.cache.catalog, self.cache.departures.files
        transaction, remove = catalog.transaction, files.remove

        @contextmanager
        def guarded_transaction() -> Iterator[None]:
            fuse.point()
            with transaction():
                yield
            fuse.point()

        def guarded_remove(path: Path, counted_bytes: int) -> int:
            return int(guarded(lambda: remove(path, counted_bytes), fuse)())

        catalog.transaction = guarded_transaction  # type: ignore[method-assign]
        files.remove = guarded_remove  # type: ignore[method-assign]

    def _abandon(self) -> None:
        """The owner's process has ended: nothing is finished, and nothing is given back."""
        if not self.is_owned:
            return
        self.is_owned = False
        self.waits.clear()
        self.makes.clear()
        self.cache.departures.files.close()
        self.cache.catalog.close()
        os.close(self.cache._lock_fd)

    def _start_again(self) -> None:
        while True:
            try:
                self.start()
                break
            except Killed:
                self.note("killed at start")
                self._abandon()  # its catalog is nobody's any more
        promises.what_was_recorded_is_there(self, self.recorded)
        self.recorded = set()

    def close(self) -> None:
        self._abandon()
        shutil.rmtree(self.loop._transients._directory, ignore_errors=True)
        assert self.loop._transients._directory.parent == MEMORY
        self.readers.clear()

    # Steps

    def run(self, steps: int) -> None:
        self.prefetch()
        self.finish()
        for _ in range(steps):
            self.step()
        self.settle()

    def step(self, name: str = "") -> None:
        """One event, a step of the loop, and the promises."""
        self.steps += 1
        name = name or self.rng.choices(EVENT_NAMES, EVENT_WEIGHTS)[0]
        self.note(name)
        self._do(getattr(self, name))
        self.check()

    def _do(self, act: Callable[[], None]) -> None:
        try:
            act()
            if self.rng.random() < 0.8:
                self.owner.step(0.0)
                promises.whoever_waits_has_a_deadline(self)
        except Killed:
            self.fuse.left = None
            self.note("  killed")
            self._abandon()
            self._look_at_all()  # there is no owner: readers go on with what they have
            self._start_again()
        self.fuse.left = None

    def _look_at_all(self) -> None:
        """Readers look at all they have, and ask nobody."""
        for reader in self.readers:
            with suppress(StagerError):
                missing, corrupt = reader.fill(reader.manifest.numbers)
                self.counts["compared"] += len(reader.manifest) - len({*missing, *corrupt})
                assert self.is_damaged or not corrupt, f"{reader.session}: {corrupt} are corrupt"

    def check(self) -> None:
        everything = self.steps % ALL_ROWS_EVERY == 0
        shards = self.cache.catalog.shards()
        promises.the_books_of_the_budget_add_up(self, shards)
        promises.the_disk_holds_no_more_than_counts(self)
        promises.every_word_points_to_a_whole_row(self, everything)
        promises.what_is_leased_is_kept(self)
        promises.what_is_pinned_stays(self, shards)
        if self.steps % BOOKS_EVERY == 0:
            promises.nothing_is_left_over(self)
            promises.hits_and_misses_are_requests(self)

    def settle(self) -> None:
        """All is well from now on: everything that was begun comes to its end."""
        self.note("settle")
        self.fails = 0.0
        for source in self.sources.values():
            source.is_there = True
        self.pool.answer()
        self.cache.budget.reserve = Amount()
        for _ in range(ROUNDS_MOST):
            if not self.finish_some():
                break
            self.check()
            promises.whoever_waits_has_a_deadline(self)
        promises.every_word_points_to_a_whole_row(self, True)
        promises.hits_and_misses_are_requests(self)
        self._look_at_all()
        promises.nothing_is_left_over(self)
        promises.nothing_is_under_way(self)

    def finish(self) -> None:
        """Whatever is under way comes to its end."""
        for _ in range(ROUNDS_MOST):
            if not self.finish_some():
                return
        promises.nothing_is_under_way(self)

    def finish_some(self) -> bool:
        """All workers and the disk do what they have. False: nothing is under way any more."""
        self.work_all()
        while self.disk.sync():
            pass
        self.clock.advance(30.0)
        self.loop.step(0.0)  # nothing new is looked at: all that was begun comes to its end
        return bool(self.loop._tasks._open) or len(self.disk) > 0 or self._open_jobs()

    def work_all(self) -> None:
        while self.beside.go():
            pass
        while busy := self.pool.busy():
            self.pool.do(busy[0], self.rng, 0.0)
        self._say_all()

    def _open_jobs(self) -> bool:
        return any(not job.ended for job in self.loop.jobs.by_id.values())

    # Small things

    def note(self, text: str) -> None:
        self.last.append(f"{self.steps:4d} {'  ' * self.depth}{text}")
        self.counts[text.strip().split(" ")[0]] += 1

    def ask(self, question: Callable[[], Any]) -> Any:
        """Ask the owner. An error of ours is an answer; any other is a bug."""
        try:
            return question()
        except StagerError as error:
            self.counts["refused"] += 1
            self.last.append(f"        {type(error).__name__}: {error.message[:80]}")
            return None

    def note_answer(self, error: BaseException | None) -> None:
        assert error is None or isinstance(error, StagerError), error
        self.counts["answers"] += 1

    def lists(self) -> set[str]:
        """The lists of samples that there are: one that is made anew has other numbers."""
        return {dataset.record.lineage for dataset in self.cache.open.values()}

    def known_numbers(self, records: SampleList) -> list[SampleInfo]:
        """What each number of a list is: what a number once was, it is for life."""
        known = self.numbers.setdefault(records.lineage, [])
        if len(known) < len(records):
            known += records.infos(np.arange(len(known), len(records)))
        return known

    def spec(self, name: str, crop: int = 0) -> DatasetSpec:
        crop = crop or self.rng.choice((CROPS[0], *CROPS))
        recipe = check_recipe({"kind": "image", "resize": 0, "crop": crop})
        source = self.sources[name]
        return DatasetSpec(name, SourceSpec(f"/simulated/{name}"), source.layout, recipe, source.options)

    def subset(self) -> Subset:
        return self.rng.choice(
            (Subset(), Subset(), Subset(classes=("c0",)), Subset(classes=2), Subset(fraction=0.5))
        )

    def name(self) -> str:
        return self.rng.choice(("a", "a", "b", "t"))

    def pick_reader(self) -> SimulatedReader | None:
        return self.rng.choice(self.readers) if self.readers else None
