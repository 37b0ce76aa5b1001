"""The one loop that owns all state: it hears of jobs, readers and workers, decides, and acts."""

import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from stager.cache.cache import Cache
from stager.cache.dataset import Dataset, Failure
from stager.cache.pins import PinsToCome
from stager.cache.verify import drop_bad_shards
from stager.catalog.rows import ShardRow
from stager.clock import Clock
from stager.dispatch.events import Beside, Events
from stager.dispatch.memory_shards import Transients
from stager.dispatch.pool import Pool, WorkerMessage, WorkerPool
from stager.dispatch.sync import Durable, DurableQueue
from stager.dispatch.task import (
    BuildTask,
    Lot,
    MeasureTask,
    Outcome,
    Purpose,
    ScanDone,
    ScanTask,
    Task,
    TaskFailed,
)
from stager.dispatch.tasks import Tasks
from stager.dispatch.unpacked import NeverRoom
from stager.errors import CacheError, NoService, NoSpace, StagerError, known_error
from stager.eviction.evictor import Evictor
from stager.jobs.job import Job
from stager.jobs.queue import JobQueue
from stager.owner.explain import reasons_of
from stager.owner.heat.cores import Cores
from stager.owner.heat.heats import HeatKeeper
from stager.owner.heat.hot import HotSet
from stager.owner.upkeep.removals import Removals
from stager.reader.index import is_failed, is_resident
from stager.reader.record import DatasetSpec
from stager.reader.values import Mask, Numbers
from stager.sessions.leases import Leases
from stager.sessions.session import NEAR_SAMPLES, Sessions
from stager.sessions.waiting import WaitingReaders
from stager.worker.messages import Built, Scanned

log = logging.getLogger("stager")

NOT_YET_DURABLE_MAX: Final = 8  # shards that wait for the disk; then staging waits, too
REACH_PART: Final = 0.05  # of what is kept: so far ahead of a reader, once there is no room,
REACH_MIN: Final = 32  # or so many samples: two small batches
STALE_EVERY_S: Final = 5.0  # rows that no version has which counts are looked for so often
STOP_S: Final = 10.0
OPEN_AHEAD: Final = 8  # sources; to open one of S3 takes a tenth of a second
NONE: Final = np.zeros(0, dtype=np.int64)
STOPPING: Final = NoService("the service is stopping", hint="start it again: stager serve")


class Loop:
    """Everything a cache is asked to stage. All of it belongs to the loop's thread."""

    def __init__(
        self,
        cache: Cache,
        make_pool: Callable[[Events, Clock], Pool] = WorkerPool,
        make_disk: Callable[[Cache, Events], DurableQueue] = DurableQueue,
        make_beside: Callable[[Events], Beside] = Beside,
        busy_cores: Callable[[], float] | None = None,
    ) -> None:
        """Whoever does tasks, makes files durable, works beside, looks at the cores: a test has its own."""
        busy_cores = busy_cores or Cores(cache.clock).busy
        self.cache, self._clock = cache, cache.clock
        self.stopping = False
        self.events = Events()
        self.sessions = Sessions(self._clock)
        cache.departures.heard_by.append(self.sessions.lost)
        self.leases = Leases(cache.catalog, self._clock)
        self._transients = Transients(cache, self.sessions)
        self._tasks = Tasks(cache, self._transients, make_pool(self.events, self._clock), self._can_relist)
        self.sizes, self.places = self._tasks.sizes, self._tasks.places
        self._beside = make_beside(self.events)
        self.jobs = JobQueue(cache, self._tasks, self._beside)
        self._evictor = Evictor(cache, self.sessions, self.sizes.mean_row_bytes, self.jobs.wanted)
        self.jobs.groundwork.room = self._evictor
        self._waiting = WaitingReaders(self._clock)
        self._disk = make_disk(cache, self.events)
        self._tasks.unpacked.make_room = self._evictor.give_way
        self.hot = HotSet(cache, self.sizes, self._tasks, self._evictor.make_room_for_hot, busy_cores)
        self._heats = HeatKeeper(cache, self._beside)
        about = (self._tasks, self.hot, self._disk, self._transients, self._waiting)
        self.removals = Removals(cache, self.jobs, *about, self.sessions, self.leases)
        self._stale_at = self._clock.now() + STALE_EVERY_S
        self.pins = PinsToCome()

    # The loop

    def step(self, timeout_s: float) -> None:
        """Take what has come in, and give out what can be done now."""
        for event in self.events.take(timeout_s):
            self._handle(event)
        for outcome in self._tasks.stalled():
            self._ended(outcome)
        self.jobs.pause_hung()
        self._waiting.answer()  # before what has just come is dropped again, or makes room
        for dataset, samples in self._waiting.late():  # they are in the hands of who gives way to all others
            self._tasks.put_wanted(dataset, samples, self.sessions.distance_to)
        self.sessions.end_silent()
        self._transients.drop_passed()
        self._give_back_now_and_then()
        self._heats.now_and_then()
        self.jobs.look()
        self._tasks.begin_scans()
        while not self.stopping and self._dispatch():
            pass
        self._waiting.answer()

    def _handle(self, event: WorkerMessage | Durable) -> None:
        if isinstance(event, Durable):
            self._durable(event)
        elif event.message is None:
            for outcome in self._tasks.worker_died(event.worker):
                self._ended(outcome)
        elif answered := self._tasks.answered(event.worker, event.message):
            self._ended(answered)

    def _give_back_now_and_then(self) -> None:
        if self._clock.now() >= self._stale_at and self.leases.are_known:
            self._stale_at = self._clock.now() + STALE_EVERY_S
            self.give_back_stale()

    def give_back_stale(self) -> None:
        """Give back rows of samples that have gone from the source, and that nobody reads any more."""
        self.cache.departures.files.settle()
        held = self.leases.held()
        for name, manifest in self.sessions.versions():
            held.setdefault(name, set()).add(manifest)
        self.cache.departures.give_back_stale(held, self._in_use())

    def _in_use(self) -> set[int]:
        """The ids of data sets that jobs, tasks or readers have something to do with."""
        parts = (self.jobs, self._tasks, self._disk, self._transients, self._waiting, self.sessions)
        return set().union(*(part.datasets() for part in parts))

    def _can_relist(self, name: str) -> bool:
        """Whether nobody uses the numbers that a data set's samples have now."""
        ids = {dataset.id for dataset in self.cache.of_name(name)}
        ids_used = self._in_use() | self.pins.datasets()
        return self.leases.are_known and name not in self.leases.held() and ids.isdisjoint(ids_used)

    def give_way(self, size_bytes: int, winner: str) -> None:
        """Have samples that are needed latest make room."""
        self._evictor.give_way(size_bytes, winner)

    @property
    def pool(self) -> Pool:
        """Whoever does the tasks."""
        return self._tasks.pool

    def warm_up(self, specs: Iterable[DatasetSpec]) -> None:
        """Have workers ready before the first task, and the sources of the first data sets open."""
        self._tasks.pool.start(self.places.here(specs)[:OPEN_AHEAD])

    def stop(self) -> None:
        """Stop staging; finish what has been built. Jobs of a service stay, and go on at the next start."""
        self.stopping = True
        self._tasks.stop()
        deadline = self._clock.now() + STOP_S
        while len(self._disk) and self._clock.now() < deadline:
            self.step(0.1)
        self._heats.stop()
        self._waiting.fail_all(STOPPING)
        self.jobs.stop()
        self._beside.stop()
        self._disk.stop()
        self._transients.close()
        for path in self.cache.scratch.iterdir():
            path.unlink(missing_ok=True)

    # Jobs

    def scanned(self, job: Job) -> int:
        """Objects that were seen for a job, also by a scan that is under way."""
        return job.scanned or self._tasks.scanned(job.id)

    def under_way(self, job: Job) -> int:
        """Samples of a job that are prepared but not yet durable."""
        if job.dataset is None:
            return 0
        return self._tasks.under_way(job.dataset) + self._disk.samples(job.dataset)

    def paths_under_way(self) -> set[Path]:
        """Files that may be there and that the catalog does not have yet."""
        parts = (self._tasks.paths(), self.jobs.groundwork.paths(), self._disk.paths())
        return self._transients.links().union(*parts)

    # Readers

    def want(
        self, dataset: Dataset, samples: Numbers, corrupt: Numbers, wait_s: float
    ) -> "Future[dict[str, Any]]":
        """Stage these before all else; the answer comes when they are resident, or when time is up."""
        self._transients.drop_bad(dataset, corrupt)
        self.pins.put(drop_bad_shards(self.cache, dataset, corrupt))
        words = dataset.index.words[samples]
        missing = samples[~is_resident(words) & ~is_failed(words)]
        reasons = reasons_of(dataset, missing, self.planned(dataset, missing), self.has_room(dataset))
        self._tasks.put_wanted(
            dataset, missing[~self._tasks.in_flight(dataset)[missing]], self.sessions.distance_to
        )
        return self._waiting.add(dataset, reasons, wait_s)

    def last_miss(self, dataset: Dataset, number: int) -> dict[str, Any] | None:
        return self._waiting.last.get((dataset.record.lineage, dataset.id, number))

    def has_room(self, dataset: Dataset) -> bool:
        return self.sizes.samples_that_fit(dataset, 1) > 0

    def planned(self, dataset: Dataset, samples: Numbers) -> Mask:
        """Which of these samples a task, a job or a reader's order has."""
        planned: Mask = self._tasks.in_flight(dataset)[samples] | self.jobs.waiting(dataset, samples)
        return planned | self.sessions.expected(dataset, samples)

    # Tasks

    def _dispatch(self) -> bool:
        """Give out one task: what readers wait for, what they need soon, the oldest job. False: nothing."""
        if len(self._disk) >= NOT_YET_DURABLE_MAX:
            return False
        if self._dispatch_for_readers():
            return True
        if lot := self.jobs.next_lot() or (self.hot.next_lot() if self._is_quiet() else None):
            self._build(lot)
            return True
        return False

    def _dispatch_for_readers(self) -> bool:
        tasks = self._tasks
        if lot := tasks.next_suspect():
            self._build(lot)
            return True
        if lot := tasks.next_urgent():
            if len(rest := self._build_together(lot)):
                tasks.put_urgent(replace(lot, samples=rest))
            return True
        for session in self.sessions.by_need():
            dataset = session.dataset
            if not tasks.may_begin(dataset.spec, is_urgent=True):
                continue
            largest = self.sizes.samples_that_fit(dataset, self.sizes.shard_samples_max(dataset))
            reach = dataset.count
            if largest < NEAR_SAMPLES and largest < len(session.order) - session.cursor:
                # What is staged ahead takes the place of what is kept: go no further than a part of it.
                largest = self._transients.samples_ahead(self.sizes.bytes_for(dataset, 1))
                kept = self.cache.budget.used_bytes / self.sizes.mean_row_bytes(dataset)
                reach = max(REACH_MIN, int(REACH_PART * kept))
            samples = session.ahead(tasks.in_flight(dataset), largest, reach) if largest else NONE
            if len(samples):
                lot = Lot(dataset, samples, dataset.choose_format("auto")[0], Purpose.READ)
                session.look_again(self._build_together(lot))
                return True
        return False

    def _is_quiet(self) -> bool:
        """Whether nobody needs anything now or soon, and what is staged unasked is no more than it may be."""
        is_asked = self.jobs.busy() or len(self._waiting) or not self.sessions.have_all()
        return not is_asked and self._tasks.count(Purpose.HOT) < self._tasks.pool.size

    def _build_together(self, lot: Lot) -> Numbers:
        """Give out a lot with what is fetched with it; return what of it was too much."""
        whole = self._tasks.together(lot, partial(self.planned, lot.dataset))
        self._build(whole, read=lot.samples)
        return np.setdiff1d(lot.samples, whole.samples)

    def _build(self, lot: Lot, read: Numbers | None = None) -> None:
        """Give out a shard. What a reader needs and the budget has no room for goes through memory.

        `read`: of samples for a reader, those that it is going to read; the rest is fetched with them. None:
        it reads all.
        """
        read = lot.samples if read is None else read
        fit = self.sizes.samples_that_fit(lot.dataset, len(lot.samples), lot.format)
        try:
            if lot.purpose is not Purpose.READ or fit == len(lot.samples):
                self._tasks.build(lot)
                return
            keep = self._evictor.make_room(lot.dataset, lot.samples, read, self.sizes.room_bytes())
            keep = keep[: self.sizes.samples_that_fit(lot.dataset, len(keep), lot.format)]
            if len(keep):
                self._tasks.build(replace(lot, samples=keep))
            rest = np.setdiff1d(np.intersect1d(lot.samples, read), keep)
            if len(rest):
                self._tasks.build(replace(lot, samples=rest, purpose=Purpose.MEMORY))
        except NoSpace as error:
            if lot.is_for_reader or isinstance(error, NeverRoom):  # not even memory has room
                self._give_up(lot.dataset, lot.samples, error)
            else:  # the disk was filled since we looked: what a job waits for it takes again
                self.jobs.wait_for_room()

    def _ended(self, outcome: Outcome) -> None:
        """A task is over: its job, and everyone who waits for its samples, hears of it."""
        task = outcome.task
        try:
            if isinstance(outcome, TaskFailed):
                raise outcome.error
            if isinstance(outcome, ScanDone):
                self._scanned(outcome.task, outcome.told)
            else:
                self._built(outcome.task, outcome.built)
        except Exception as caught:  # a bug that one job runs into must not end all others
            if not isinstance(caught, StagerError | OSError):
                log.exception("task failed id=%d dataset=%s", task.id, task.spec.name)
            self._failed(task, known_error(caught, str(self.cache.directory)))

    def _failed(self, task: Task, error: StagerError) -> None:
        if self.jobs.waits(task, error):
            for outcome in self._tasks.again(task):
                self._ended(outcome)
            return
        if (job := self.jobs.find(task.job)) is not None:
            self.jobs.end(job, "failed", error)
        if isinstance(task, ScanTask):
            task.scan.unlink()
        elif isinstance(error, NoSpace) and not task.lot.is_for_memory:
            self._put_back(task.lot)
        else:
            if task.lot.purpose is Purpose.HOT:
                self.hot.rest(task.lot.dataset)
            self._give_up(task.lot.dataset, task.lot.samples, error)

    def _put_back(self, lot: Lot) -> None:
        """The disk was fuller than we reckoned: jobs wait for room, readers get them through memory."""
        self.jobs.wait_for_room()
        if lot.is_for_reader:
            self._tasks.put_urgent(Lot(lot.dataset, lot.samples, lot.format, Purpose.MEMORY))

    def _give_up(self, dataset: Dataset, samples: Numbers, error: StagerError) -> None:
        """These samples cannot be staged now, through no fault of theirs: end what needs them."""
        log.warning(
            "staging failed dataset=%s samples=%d error=%r", dataset.name, len(samples), error.message
        )
        self.jobs.fail(dataset, samples, error)
        self._waiting.fail(dataset, samples, error)

    def _scanned(self, task: ScanTask, told: Scanned) -> None:
        job = self.jobs.find(task.job)
        self.jobs.groundwork.scanned(job, task.scan, told) if job else task.scan.unlink()

    def _built(self, task: MeasureTask | BuildTask, built: Built) -> None:
        """A shard is complete under its final name, or was only measured."""
        dataset = task.lot.dataset
        if isinstance(task, BuildTask):
            if built.samples:
                self._publish(task, np.asarray(built.samples, dtype=np.int64), built.size_bytes)
            failures = [Failure(*failed) for failed in built.failed]
            self.cache.record_failures(dataset, failures)
            self.jobs.left(dataset, np.asarray([failure.sample for failure in failures], dtype=np.int64))
        self.cache.catalog.count_origin(dataset.id, built.reads, built.read_bytes)
        if (job := self.jobs.find(task.job)) is not None:
            self.jobs.groundwork.planned(job, built)

    def _publish(self, task: BuildTask, samples: Numbers, size_bytes: int) -> None:
        """Show a shard to the readers at once; make it durable right behind."""
        dataset, wall = task.lot.dataset, self._clock.wall()
        row = ShardRow(task.shard, dataset.id, task.lot.format, size_bytes, samples, False, wall)
        if task.lot.is_for_memory:
            self._transients.publish(dataset, row)
            return
        row = self.cache.publish(dataset, row)
        self.jobs.left(dataset, samples[row.samples < 0], 1)  # they are kept elsewhere
        if np.any(row.samples >= 0):
            self._disk.add(dataset, row)
        else:
            self.cache.departures.take_back(dataset, row)

    def _durable(self, event: Durable) -> None:
        """Only now the shard counts as staged."""
        row, dataset = event.row, event.dataset
        self._disk.done(event)
        samples = row.samples[row.samples >= 0]
        try:
            if event.error is not None:  # never sync again: the kernel may call lost pages clean
                told = f"{self.cache.directory}: the disk failed: {event.error.strerror}"
                raise CacheError(told, hint="check the disk, then run it again")
            is_asked = bool(self.jobs.waiting(dataset, samples).any())
            is_pinned = self.pins.has_any(dataset, samples)
            self.cache.record(dataset, replace(row, is_asked=is_asked, is_pinned=is_pinned))
            self.pins.came(dataset, samples)
        except CacheError as error:
            self.cache.departures.take_back(dataset, row)
            self._give_up(dataset, samples, error)
            return
        about = (dataset.name, row.number, len(samples), row.bytes)
        log.info("shard staged dataset=%s shard=%08x samples=%d bytes=%d", *about)
        self.jobs.left(dataset, samples, row.bytes)
