"""What the workers do now: scans and shards, given out, watched, and given out again when a worker dies."""

import logging
import mmap
import os
from bisect import insort
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from stager.cache.cache import Cache
from stager.cache.dataset import Dataset
from stager.config import SHARD_BYTES, STALL_S
from stager.dispatch.memory_shards import Transients
from stager.dispatch.pool import Pool, WorkerProcess
from stager.dispatch.task import (
    BuildDone,
    BuildTask,
    Lot,
    MeasureTask,
    Outcome,
    Purpose,
    ScanDone,
    ScanTask,
    Suspect,
    Task,
    TaskFailed,
)
from stager.errors import SourceBusy
from stager.reader.index import is_failed, is_resident
from stager.reader.record import DatasetSpec, manifest_path
from stager.reader.values import ByNumber, Mask, Numbers
from stager.scan.scan import Scan
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
    ShardBuilt,
    ShardFile,
)

log = logging.getLogger("stager")

GUESS_ROW_BYTES: Final = 1 << 20  # for rows of unknown size, until the first ones are known
SHARD_OVERHEAD_BYTES: Final = 64 << 10
ROW_OVERHEAD_BYTES: Final = 512  # key, version, checksum, padding
LMDB_PAGE_HEAD_BYTES: Final = 16  # a row that is larger than half a page has pages of its own
SHARD_SAMPLES_MAX: Final = 4096
NONE: Final = np.zeros(0, dtype=np.int64)
SCAN_TRIES: Final = 3  # when workers die under it


class Tasks:
    """Gives tasks to workers and keeps track of which samples are in one."""

    def __init__(
        self, cache: Cache, transients: Transients, pool: Pool, can_relist: Callable[[str], bool]
    ) -> None:
        """`can_relist`: nobody uses the numbers that a data set's samples have now."""
        self.cache, self.transients, self.pool = cache, transients, pool
        self._can_relist = can_relist
        self._open: dict[int, Task] = {}
        self._urgent: list[tuple[int, Lot]] = []  # the nearest first
        self._suspects: list[Suspect] = []
        self._scans_to_come: list[tuple[int, DatasetSpec, int]] = []  # for which job, and how often tried
        self._in_flight: dict[int, ByNumber] = {}  # data set id -> samples in a task
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
            if not any(task.spec.name == name for task in self._scans()):
                self._scans_to_come.remove(scan)
                self._begin_scan(*scan)

    def _begin_scan(self, job: int, spec: DatasetSpec, tries: int) -> None:
        number = self._next_number()
        path = self.cache.scratch / f"scan-{os.getpid()}-{number}"  # an owner before us may have one
        name, known = spec.name, self.cache.known(spec.name)
        before = None
        if known is not None:
            manifest = manifest_path(known.directory, known.record.manifest, known.record.lineage)
            relist = self.cache.is_outgrown(name) and self._can_relist(name)
            before = KnownVersion(_list_of(known), manifest, relist)
        task = ScanTask(number, spec, job, Scan(path), tries)
        self._send(task, ScanSource(task.id, spec, path, before))

    def build(self, lot: Lot, plan_of: int | None = None) -> None:
        """Have one shard built; raise NoSpace if there is no room. `plan_of`: whose plan waits for it."""
        dataset, samples = lot.dataset, lot.samples
        size_bytes = self.bytes_for(dataset, len(samples), lot.format)
        dataset.index.make_room(samples)
        shard, path = self.cache.next_shard(dataset, lot.format)
        if lot.is_for_memory:
            path = self.transients.path_of(shard, lot.format)
            scratch = path.with_suffix(".scratch")  # a rename stays in one file system
            file = ShardFile(path, scratch, size_bytes, free_before=0)
            reservation = self.transients.take(size_bytes, dataset, samples)
        else:
            scratch = self.cache.scratch / f"shard-{shard:08x}"
            file = ShardFile(path, scratch, size_bytes, self.cache.budget.free_before(size_bytes))
            reservation = self.cache.budget.take(size_bytes)
        task = BuildTask(self._next_number(), lot, shard, file, reservation, plan_of)
        self.in_flight(dataset)[samples] = True
        self._send(task, _build_message(task.id, lot, file))

    def measure(self, lot: Lot, plan_of: int) -> None:
        """Have samples prepared for a job's plan, and nothing written."""
        task = MeasureTask(self._next_number(), lot, plan_of)
        self._send(task, _build_message(task.id, lot, None))

    def _next_number(self) -> int:
        self._last += 1
        return self._last

    def put_urgent(self, lot: Lot, distance: int = 0) -> None:
        """Samples that come before all jobs: a reader waits for them, or a dead worker had them.

        A reader has several batches under way, and asks for them in any order: the first is given out first.
        `distance`: how many samples it reads before.
        """
        insort(self._urgent, (distance, lot), key=lambda urgent: urgent[0])

    def next_urgent(self) -> Lot | None:
        """The next urgent samples that are still missing and not in a task."""
        while self._urgent:
            _, lot = self._urgent.pop(0)
            if (missing := self._missing(lot)) is not None:
                return missing
        return None

    def next_suspect(self) -> Lot | None:
        """The next sample that must be tried alone."""
        while self._suspects:
            if (missing := self._missing(self._suspects.pop(0))) is not None:
                return missing
        return None

    @property
    def must_wait(self) -> bool:
        """Whether nothing may be given out: a suspect is being tried, or will be once all others are done."""
        tried = any(isinstance(task.lot, Suspect) for task in self._builds())
        return tried or bool(self._suspects and self._open)

    def _missing(self, lot: Lot) -> Lot | None:
        """What of a lot is neither there nor in a task, if anything is."""
        if not self.cache.is_open(lot.dataset):
            return None  # nobody can wait for them any more
        words = lot.dataset.index.words[lot.samples]
        missing = ~is_resident(words) & ~is_failed(words)
        missing &= ~self.in_flight(lot.dataset)[lot.samples]
        return replace(lot, samples=lot.samples[missing]) if missing.any() else None

    def together(self, lot: Lot, is_wanted: Callable[[Numbers], Mask]) -> Lot:
        """A lot with what shares an object with its samples and is wanted, too: that is fetched once."""
        dataset = lot.dataset
        if dataset.records.is_plain:
            return lot
        mates = np.setdiff1d(dataset.records.mates(lot.samples), lot.samples)
        mates = mates[is_wanted(mates)]
        more = self._missing(replace(lot, samples=mates)) if len(mates) else None
        if more is None:
            return lot
        most = max(self.shard_samples_max(dataset), len(lot.samples))
        samples = np.concatenate([lot.samples, more.samples])[:most]
        fits = self.samples_that_fit(dataset, len(samples), lot.format)
        return replace(lot, samples=samples) if fits == len(samples) else lot

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
            self._abandon(task)
            return TaskFailed(task, message.to_error())
        if isinstance(task, ScanTask):
            assert isinstance(message, Scanned)
            self._close(task)
            return ScanDone(task, message.left_out)
        assert isinstance(message, ShardBuilt)
        return self._built(task, message.built)

    def _built(self, task: MeasureTask | BuildTask, built: Built) -> BuildDone:
        self._close(task, built.size_bytes if built.samples else 0)
        if built.samples:
            self._row_bytes[task.lot.dataset.id] = built.size_bytes / len(built.samples)
        return BuildDone(task, built)

    def worker_died(self, worker: WorkerProcess) -> list[Outcome]:
        """Its shards are built again in halves, until a sample that kills workers is alone and has failed."""
        self.pool.drop(worker)
        found = [self._died(task) for task in self._take_from(worker)]
        return [outcome for outcome in found if outcome is not None]

    def _died(self, task: Task) -> Outcome | None:
        """What a task that a dead worker had comes to. None: it is done again."""
        if isinstance(task, ScanTask):
            log.warning("worker died dataset=%s", task.spec.name)
            if task.tries < SCAN_TRIES:
                self.scan(task.job, task.spec, task.tries + 1)  # the worker had other tasks, too
                return None
            url = task.spec.source.url
            return TaskFailed(
                task, SourceBusy(f"{url}: the scan's process died", hint="see the log; try again")
            )
        log.warning("worker died dataset=%s samples=%d", task.spec.name, len(task.lot.samples))
        failed = self._put_back(task.lot) if isinstance(task, BuildTask) else []
        return (
            BuildDone(task, replace(NOTHING_BUILT, failed=failed)) if failed or task.job is not None else None
        )

    def _put_back(self, lot: Lot) -> list[tuple[int, str, str]]:
        """Have the samples of a dead worker staged again, in halves; return those that failed for good."""
        purpose = Purpose.READ if lot.is_for_reader else Purpose.KEEP
        if len(lot.samples) > 1:
            for half in np.array_split(lot.samples, 2):
                self.put_urgent(Lot(lot.dataset, half, lot.format, purpose))
            return []
        if not isinstance(lot, Suspect):  # the worker had other tasks, too: it may have been one of theirs
            self._suspects.append(Suspect(lot.dataset, lot.samples, lot.format, purpose))
            return []
        return [(int(lot.samples[0]), "crashed", "preparing it ended the worker")]

    def stalled(self) -> list[Outcome]:
        """Leave workers behind that have been silent for long: most likely they hang in their source."""
        outcomes: list[Outcome] = []
        for worker in list(self.pool.workers):
            if worker.tasks and self.cache.clock.now() - worker.heard_at > STALL_S:
                self.pool.drop(worker)
                for task in self._take_from(worker):
                    silent = SourceBusy(
                        f"{task.spec.source.url}: no answer for {STALL_S:.0f} s",
                        hint="check the mount or the network, then run it again",
                    )
                    outcomes.append(TaskFailed(task, silent))
        return outcomes

    def _take_from(self, worker: WorkerProcess) -> list[Task]:
        tasks = [self._open[number] for number in worker.tasks if number in self._open]
        worker.tasks.clear()
        for task in tasks:
            self._abandon(task)
        return tasks

    def _close(self, task: Task, written_bytes: int = 0) -> None:
        """A task is over, and has left a file of so many bytes, or none."""
        del self._open[task.id]
        if isinstance(task, BuildTask):
            self.in_flight(task.lot.dataset)[task.lot.samples] = False
            task.reservation.charge(written_bytes) if written_bytes else task.reservation.release()

    def _abandon(self, task: Task) -> None:
        """Close a task that came to nothing, and remove what it may have left, under either name."""
        self._close(task)
        if isinstance(task, ScanTask):
            task.scan.unlink()
        elif isinstance(task, BuildTask):
            task.file.scratch.unlink(missing_ok=True)
            task.file.path.unlink(missing_ok=True)

    def stop(self) -> None:
        """End all workers; what they had under way is worth nothing."""
        self.pool.stop()
        for task in [*self._open.values()]:
            self._abandon(task)

    def _scans(self) -> list[ScanTask]:
        return [task for task in self._open.values() if isinstance(task, ScanTask)]

    def _builds(self) -> list[MeasureTask | BuildTask]:
        return [task for task in self._open.values() if not isinstance(task, ScanTask)]

    # Small facts

    def in_flight(self, dataset: Dataset) -> ByNumber:
        """Which samples of a data set are in a task. None is when its list is made anew."""
        return self._in_flight.setdefault(dataset.id, ByNumber(np.bool_))

    def samples_in_flight(self, dataset: Dataset) -> Numbers:
        """The samples of a data set that are in a task."""
        lots = [task.lot for task in self._builds() if isinstance(task, BuildTask)]
        return np.concatenate([NONE, *(lot.samples for lot in lots if lot.dataset is dataset)])

    def datasets(self) -> set[int]:
        """The ids of data sets that have a task, or samples that wait for one."""
        lots = [*(lot for _, lot in self._urgent), *self._suspects, *(task.lot for task in self._builds())]
        return {lot.dataset.id for lot in lots}

    def scanned(self, job: int) -> int:
        """Objects that the scan for a job has seen so far."""
        return sum(task.done for task in self._scans() if task.job == job)

    def under_way(self, dataset: Dataset) -> int:
        """Samples that are prepared but whose shard is not complete."""
        return sum(task.done for task in self._builds() if task.lot.dataset is dataset)

    def paths(self) -> set[Path]:
        """Files that may be there and that the catalog does not have."""
        scans = [task.scan for task in self._scans()]
        files = [task.file for task in self._builds() if isinstance(task, BuildTask)]
        paths = {path for scan in scans for path in scan.paths}
        return paths | {path for file in files for path in (file.path, file.scratch)}

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


def _build_message(number: int, lot: Lot, file: ShardFile | None) -> BuildShard:
    dataset = lot.dataset
    manifest, records = dataset.record.manifest, _list_of(dataset)
    samples = lot.samples.tolist()
    return BuildShard(number, dataset.spec, manifest, records, samples, lot.format, lot.is_for_reader, file)


def _list_of(dataset: Dataset) -> ListPlace:
    return ListPlace(dataset.directory, dataset.record.lineage, tuple(dataset.record.segments))
