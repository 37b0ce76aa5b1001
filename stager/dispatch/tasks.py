"""What the workers do now: scans and shards, given out, watched, and given out again when a worker dies."""

import logging
import mmap
import os
from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np

from stager.cache.budget import Reservation
from stager.cache.cache import Cache
from stager.cache.dataset import Dataset
from stager.cache.scan import Scan
from stager.config import SHARD_BYTES, STALL_S
from stager.dispatch.memory_shards import Transients
from stager.dispatch.pool import Pool, WorkerProcess
from stager.errors import SourceBusy, StagerError
from stager.reader.index import is_failed, is_resident
from stager.reader.record import DatasetSpec, manifest_path
from stager.reader.values import Mask, Numbers, grown
from stager.worker.messages import (
    NOTHING_BUILT,
    Answer,
    BuildShard,
    Built,
    Failed,
    KnownVersion,
    ListPlace,
    Progress,
    Scanned,
    ScanSource,
    ShardFile,
)

log = logging.getLogger("stager")

GUESS_ROW_BYTES: Final = 1 << 20  # for rows of unknown size, until the first ones are known
SHARD_OVERHEAD_BYTES: Final = 64 << 10
ROW_OVERHEAD_BYTES: Final = 512  # key, version, checksum, padding
LMDB_PAGE_HEAD_BYTES: Final = 16  # a row that is larger than half a page has pages of its own
SHARD_SAMPLES_MAX: Final = 4096
SCAN_TRIES: Final = 3  # when workers die under it


@dataclass(frozen=True, slots=True)
class Lot:
    """Samples that are to make one shard. `for_reader`: if they do not fit the budget, memory will do."""

    dataset: Dataset
    samples: Numbers
    format: str
    for_reader: bool = False
    is_suspect: bool = False  # a worker died with this sample: now it is tried with nothing beside it
    is_transient: bool = False  # to memory at once: the disk is full
    distance: int = 0  # samples that the reader who waits for it reads before


@dataclass(slots=True)
class Task:
    """A scan, or one shard. `job`: the id of the one that is scanned for, or planned by this shard."""

    id: int
    spec: DatasetSpec
    job: int | None = None
    dataset: Dataset | None = None  # None: a scan
    samples: Numbers = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    format: str = ""
    shard: int = 0
    path: Path | None = None  # None: only measured
    reservation: Reservation | None = None
    done: int = 0
    for_reader: bool = False
    is_transient: bool = False  # it goes to memory, not to the budget's disk
    is_suspect: bool = False
    tries: int = 1  # of a scan


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a task ended: with a result, or with an error that is nobody's single sample."""

    task: Task
    built: Built = NOTHING_BUILT
    left_out: str = ""  # of a scan
    error: StagerError | None = None


class Tasks:
    """Gives tasks to workers and keeps track of which samples are in one."""

    def __init__(
        self, cache: Cache, transients: Transients, pool: Pool, can_relist: Callable[[str], bool]
    ) -> None:
        """`can_relist`: nobody uses the numbers that a data set's samples have now."""
        self.cache, self.transients, self.pool = cache, transients, pool
        self._can_relist = can_relist
        self._open: dict[int, Task] = {}
        self._urgent: list[Lot] = []  # the nearest first
        self._suspects: list[Lot] = []  # one sample each
        self._scans_to_come: list[tuple[int, DatasetSpec, int]] = []  # for which job, and how often tried
        self._in_flight: dict[int, Mask] = {}  # data set id -> samples in a task
        self._row_bytes: dict[int, float] = {}  # data set id -> mean bytes of a stored sample, as seen
        self._last = 0

    # Giving out

    def scan(self, job: int, spec: DatasetSpec, tries: int = 1) -> None:
        """Have a source listed for a job, once no other scan of the data set is under way."""
        self._scans_to_come.append((job, spec, tries))
        self.begin_scans()

    def forget_scan(self, job: int) -> None:
        """A job has ended: a scan for it that has not begun need not begin."""
        self._scans_to_come = [scan for scan in self._scans_to_come if scan[0] != job]

    def begin_scans(self) -> None:
        """Give out the scans that can begin: of a data set one after the other."""
        for scan in list(self._scans_to_come):
            name = scan[1].name
            if not any(task.dataset is None and task.spec.name == name for task in self._open.values()):
                self._scans_to_come.remove(scan)
                self._begin_scan(*scan)

    def _begin_scan(self, job: int, spec: DatasetSpec, tries: int) -> None:
        self._last += 1
        path = self.cache.scratch / f"scan-{os.getpid()}-{self._last}"  # an owner before us may have one
        task = Task(self._last, spec, job, path=path, tries=tries)
        name = spec.name
        relist = self.cache.is_outgrown(name) and self._can_relist(name)
        known = self.cache.known(name)
        before = None
        if known is not None:
            manifest = manifest_path(known.directory, known.record.manifest, known.record.lineage)
            before = KnownVersion(_list_of(known), manifest, relist)
        self._send(task, ScanSource(task.id, spec, path, before))

    def build(
        self, lot: Lot, plan_of: int | None = None, is_transient: bool = False, is_measured: bool = False
    ) -> None:
        """Have one shard built; raise NoSpace if there is no room.

        `plan_of`: the job whose plan waits for it. `is_measured`: nothing is written.
        """
        self._last += 1
        dataset, samples = lot.dataset, lot.samples
        task = Task(self._last, dataset.spec, plan_of, dataset, samples, lot.format)
        task.for_reader, task.is_suspect, task.is_transient = lot.for_reader, lot.is_suspect, is_transient
        file = None
        if not is_measured:
            size_bytes, free_before = self.bytes_for(dataset, len(samples), lot.format), 0
            task.shard, task.path = self.cache.next_shard(dataset, lot.format)
            if is_transient:
                task.path = self.transients.path_of(task.shard, lot.format)
                task.reservation = self.transients.take(size_bytes, dataset, samples)
            else:
                free_before = self.cache.budget.free_before(size_bytes)
                task.reservation = self.cache.budget.take(size_bytes)
            file = ShardFile(task.path, self._scratch(task), size_bytes, free_before)
            self.in_flight(dataset)[samples] = True
        message = BuildShard(
            task.id,
            dataset.spec,
            dataset.record.manifest,
            _list_of(dataset),
            samples.tolist(),
            lot.format,
            lot.for_reader,
            file,
        )
        self._send(task, message)

    def put_urgent(self, lot: Lot) -> None:
        """Samples that come before all jobs: a reader waits for them, or a dead worker had them.

        A reader has several batches under way, and asks for them in any order: the first is given out first.
        """
        insort(self._urgent, lot, key=lambda urgent: urgent.distance)

    def next_urgent(self) -> Lot | None:
        """The next urgent samples that are still missing and not in a task."""
        return self._next(self._urgent)

    def next_suspect(self) -> Lot | None:
        """The next sample that must be tried alone."""
        return self._next(self._suspects)

    @property
    def must_wait(self) -> bool:
        """Whether nothing may be given out: a suspect is being tried, or will be once all others are done."""
        tried = any(task.is_suspect for task in self._open.values())
        return tried or bool(self._suspects and self._open)

    def _next(self, waiting: list[Lot]) -> Lot | None:
        while waiting:
            lot = waiting.pop(0)
            if not self.cache.is_open(lot.dataset):
                continue  # nobody can wait for them any more
            words = lot.dataset.index.words[lot.samples]
            missing = ~is_resident(words) & ~is_failed(words)
            missing &= ~self.in_flight(lot.dataset)[lot.samples]
            if missing.any():
                return replace(lot, samples=lot.samples[missing])
        return None

    def may_adopt(self, scan: Scan, name: str) -> bool:
        """Whether a scan can become the newest version now: a list that is made anew must have no users."""
        return not len(scan.read_joins().moved) or self._can_relist(name)

    def _send(self, task: Task, message: ScanSource | BuildShard) -> None:
        self._open[task.id] = task
        self.pool.send(message)

    # Hearing of them

    def answered(self, worker: WorkerProcess, message: Answer) -> Outcome | None:
        """Take a worker's message; a task that is over has an outcome."""
        worker.heard_at = self.cache.clock.now()
        task = self._open.get(message.task)
        if task is None:
            return None
        if isinstance(message, Progress):
            task.done = message.done
            return None
        worker.tasks.discard(task.id)
        if isinstance(message, Failed):
            self._close(task)
            self._discard(task)
            return Outcome(task, error=message.to_error())
        if isinstance(message, Scanned):
            self._close(task)
            return Outcome(task, left_out=message.left_out)
        built = message.built
        self._close(task, built.size_bytes if built.samples else 0)
        if task.dataset is not None and built.samples:
            self._row_bytes[task.dataset.id] = built.size_bytes / len(built.samples)
        return Outcome(task, built)

    def worker_died(self, worker: WorkerProcess) -> list[Outcome]:
        """Its shards are built again in halves, until a sample that kills workers is alone and has failed."""
        self.pool.drop(worker)
        outcomes = []
        for task in self._take_from(worker):
            log.warning("worker died dataset=%s samples=%d", task.spec.name, len(task.samples))
            if task.dataset is None and task.job is not None and task.tries < SCAN_TRIES:
                self.scan(task.job, task.spec, task.tries + 1)  # the worker had other tasks, too
                continue
            if task.dataset is None:
                died = SourceBusy(
                    f"{task.spec.source.url}: the scan's process died", hint="see the log; try again"
                )
                outcomes.append(Outcome(task, error=died))
                continue
            failed = self._put_back(task, task.dataset) if task.path is not None else []
            if failed or task.job is not None:
                outcomes.append(Outcome(task, replace(NOTHING_BUILT, failed=failed)))
        return outcomes

    def _put_back(self, task: Task, dataset: Dataset) -> list[tuple[int, str, str]]:
        """Have the samples of a dead worker staged again, in halves; return those that failed for good."""
        if len(task.samples) > 1:
            for half in np.array_split(task.samples, 2):
                self.put_urgent(Lot(dataset, half, task.format, task.for_reader))
            return []
        if not task.is_suspect:  # the worker had other tasks, too: it may have been one of theirs
            self._suspects.append(Lot(dataset, task.samples, task.format, task.for_reader, is_suspect=True))
            return []
        return [(int(task.samples[0]), "crashed", "preparing it ended the worker")]

    def stalled(self) -> list[Outcome]:
        """Leave workers behind that have been silent for long: most likely they hang in their source."""
        outcomes = []
        for worker in list(self.pool.workers):
            if worker.tasks and self.cache.clock.now() - worker.heard_at > STALL_S:
                self.pool.drop(worker)
                for task in self._take_from(worker):
                    silent = SourceBusy(
                        f"{task.spec.source.url}: no answer for {STALL_S:.0f} s",
                        hint="check the mount or the network, then run it again",
                    )
                    outcomes.append(Outcome(task, error=silent))
        return outcomes

    def _take_from(self, worker: WorkerProcess) -> list[Task]:
        tasks = [self._open[number] for number in worker.tasks if number in self._open]
        worker.tasks.clear()
        for task in tasks:
            self._close(task)
            self._discard(task)
        return tasks

    def _close(self, task: Task, written_bytes: int = 0) -> None:
        """A task is over, and has left a file of so many bytes, or none."""
        del self._open[task.id]
        if task.dataset is not None and task.reservation is not None:
            self.in_flight(task.dataset)[task.samples] = False
            task.reservation.charge(written_bytes) if written_bytes else task.reservation.release()

    def _discard(self, task: Task) -> None:
        """Remove what a task that came to nothing may have left, under either name."""
        if task.path is not None:
            self._scratch(task).unlink(missing_ok=True)
            Scan(task.path).unlink() if task.dataset is None else task.path.unlink(missing_ok=True)

    def stop(self) -> None:
        """End all workers; what they had under way is worth nothing."""
        self.pool.stop()
        for task in [*self._open.values()]:
            self._close(task)
            self._discard(task)

    # Small facts

    def in_flight(self, dataset: Dataset) -> Mask:
        """Which samples of a data set are in a task."""
        known = self._in_flight.get(dataset.id, np.zeros(0, dtype=np.bool_))
        if len(known) > dataset.count:  # its list was made anew: then nothing of it was in a task
            known = known[:0]
        self._in_flight[dataset.id] = known = grown(known, dataset.count, False)
        return known

    def datasets(self) -> set[int]:
        """The ids of data sets that have a task, or samples that wait for one."""
        lots = (lot.dataset.id for lot in (*self._urgent, *self._suspects))
        return {task.dataset.id for task in self._open.values() if task.dataset is not None} | set(lots)

    def scanned(self, job: int) -> int:
        """Objects that the scan for a job has seen so far."""
        scans = [task for task in self._open.values() if task.dataset is None and task.job == job]
        return sum(task.done for task in scans)

    def under_way(self, dataset: Dataset) -> int:
        """Samples that are prepared but whose shard is not complete."""
        return sum(task.done for task in self._open.values() if task.dataset is dataset)

    def paths(self) -> set[Path]:
        """Files that may be there and that the catalog does not have."""
        named = {task.path for task in self._open.values() if task.path is not None}
        for path in [task.path for task in self._open.values() if task.dataset is None and task.path]:
            named |= {Scan(path).segment, Scan(path).joins}
        return named | {self._scratch(task) for task in self._open.values()}

    def mean_row_bytes(self, dataset: Dataset) -> float:
        return dataset.row_bytes or self._row_bytes.get(dataset.id, GUESS_ROW_BYTES)

    def knows_row_bytes(self, dataset: Dataset) -> bool:
        return dataset.row_bytes is not None or dataset.id in self._row_bytes

    def shard_samples_max(self, dataset: Dataset) -> int:
        return max(1, min(int(SHARD_BYTES / self.mean_row_bytes(dataset)), SHARD_SAMPLES_MAX))

    def bytes_for(self, dataset: Dataset, samples: int, shard_format: str = "arrow") -> int:
        """What a shard of so many samples takes, at most or so."""
        return int(samples * self._stored_bytes(dataset, shard_format)) + SHARD_OVERHEAD_BYTES

    def samples_that_fit(self, dataset: Dataset, samples: int, shard_format: str = "arrow") -> int:
        """How many of so many samples the budget has room for."""
        room = self.cache.budget.room_bytes() - SHARD_OVERHEAD_BYTES
        return max(0, min(samples, int(room / self._stored_bytes(dataset, shard_format))))

    def _stored_bytes(self, dataset: Dataset, shard_format: str) -> float:
        """What a sample takes on the disk. Where rows differ in size, files that are there have shown it."""
        row_bytes = self.mean_row_bytes(dataset)
        if shard_format == "lmdb" and dataset.row_bytes is not None:
            row_bytes = -(-(row_bytes + LMDB_PAGE_HEAD_BYTES) // mmap.PAGESIZE) * mmap.PAGESIZE
        return row_bytes + ROW_OVERHEAD_BYTES

    def _scratch(self, task: Task) -> Path:
        if task.is_transient and task.path is not None:
            return task.path.with_suffix(".scratch")  # a rename stays in one file system
        return self.cache.scratch / f"shard-{task.shard:08x}"


def _list_of(dataset: Dataset) -> ListPlace:
    return ListPlace(dataset.directory, dataset.record.lineage, tuple(dataset.record.segments))
