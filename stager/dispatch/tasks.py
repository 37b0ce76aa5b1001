"""What the workers do now: scans and shards, given out, watched, and given out again when a worker dies."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from stager.cache.cache import Cache
from stager.cache.dataset import Dataset
from stager.config import STALL_S
from stager.dispatch.memory_shards import Transients
from stager.dispatch.pending.in_flight import InFlight
from stager.dispatch.pending.mates import together
from stager.dispatch.pending.scans import Scans
from stager.dispatch.pending.suspects import Suspects
from stager.dispatch.pending.urgent import Urgent
from stager.dispatch.places import Places
from stager.dispatch.pool import Pool, WorkerProcess
from stager.dispatch.sizes import Sizes
from stager.dispatch.task import (
    BuildDone,
    BuildTask,
    Lot,
    MeasureTask,
    Outcome,
    Purpose,
    ScanDone,
    ScanTask,
    ScanToCome,
    Suspect,
    Task,
    TaskFailed,
    build_message,
)
from stager.dispatch.unpacked import UnpackedFiles
from stager.errors import SourceBusy
from stager.reader.index import is_failed, is_resident
from stager.reader.record import DatasetSpec
from stager.reader.samples.by_number import ByNumber
from stager.reader.values import Mask, Numbers
from stager.scan.scan import Scan
from stager.worker.messages import (
    NOTHING_BUILT,
    Answer,
    BuildShard,
    Built,
    Failed,
    FileToWrite,
    Progress,
    Relist,
    Scanned,
    ScanSource,
    ShardBuilt,
    SilenceTold,
)

log = logging.getLogger("stager")

LAST: Final = 1 << 40  # behind whatever a reader waits for
NONE: Final = np.zeros(0, dtype=np.int64)
WANT_SHARD_SAMPLES: Final = 64  # at least
SCAN_TRIES: Final = 3  # when workers die under it
HUNG_S: Final = 30.0  # so long after its source fell silent, a task is given up


class Tasks:
    """Gives tasks to workers and keeps track of which samples are in one."""

    def __init__(
        self, cache: Cache, transients: Transients, pool: Pool, can_relist: Callable[[str], bool]
    ) -> None:
        """`can_relist`: nobody uses the numbers that a data set's samples have now."""
        self.cache, self.transients, self.pool = cache, transients, pool
        self._can_relist = can_relist
        self.places = Places(cache.clock)
        self.unpacked = UnpackedFiles(cache)
        self.sizes = Sizes(cache.budget, processes=pool.size * max(pool.threads - 1, 1))
        self._open: dict[int, Task] = {}
        self._urgent = Urgent(self.places)
        self._suspects = Suspects()
        self._scans = Scans(cache, can_relist)
        self._in_flight = InFlight()
        self._last = 0

    # Giving out

    def scan(self, job: int, spec: DatasetSpec, is_urgent: bool, relist: Relist | None = None) -> None:
        """Have a source listed for a job, once no other scan of the data set is under way."""
        self._scan_again(ScanToCome(job, spec, is_urgent, relist))

    def _scan_again(self, scan: ScanToCome) -> None:
        self._scans.put(scan)
        self.begin_scans()

    def forget_scan(self, job: int) -> None:
        """A job has ended: a scan for it that has not begun need not begin."""
        self._scans.forget(job)

    def begin_scans(self) -> None:
        """Give out the scans that can begin."""
        for scan in self._scans.ready(self._may_scan):
            self._send(*self._scans.begin(self._next_number(), scan))

    def _may_scan(self, spec: DatasetSpec) -> bool:
        return all(task.spec.name != spec.name for task in self._scan_tasks()) and self._may_try(spec)

    def build(self, lot: Lot, plan_of: int | None = None) -> None:
        """Have one shard built; raise NoSpace if there is no room. `plan_of`: whose plan waits for it."""
        dataset, samples, number = lot.dataset, lot.samples, self._next_number()
        size_bytes = self.sizes.bytes_for(dataset, len(samples), lot.format)
        unpacked = self.unpacked.take(number, lot, 0 if lot.is_for_memory else size_bytes)
        dataset.index.make_room(samples)
        shard, path = self.cache.next_shard(dataset, lot.format)
        if lot.is_for_memory:
            path = self.transients.path_of(shard, lot.format)
            scratch = path.with_suffix(".scratch")  # a rename stays in one file system
            file = FileToWrite(path, scratch, size_bytes, free_before=0)
            reservation = self.transients.take(size_bytes, dataset, samples)
        else:
            scratch = self.cache.scratch / f"shard-{shard:08x}"
            file = FileToWrite(path, scratch, size_bytes, self.cache.budget.free_before(size_bytes))
            reservation = self.cache.budget.take(size_bytes)
        task = BuildTask(number, lot, shard, file, reservation, plan_of)
        self._in_flight.mark(lot)
        is_kept = dataset.is_made and not lot.is_for_memory
        made = self.cache.made.directory if is_kept else None
        self._send(task, replace(build_message(task.id, lot, file), made=made, unpacked=unpacked))

    def measure(self, lot: Lot, plan_of: int) -> None:
        """Have samples prepared for a job's plan, and nothing written: as little unpacked as can be."""
        number, dataset = self._next_number(), lot.dataset
        if dataset.records.unpacked(lot.samples):
            mates = dataset.records.mates(lot.samples[:1])
            lot = replace(lot, samples=mates[: len(lot.samples)])
        unpacked = self.unpacked.take(number, lot)
        self._send(
            MeasureTask(number, lot, plan_of), replace(build_message(number, lot, None), unpacked=unpacked)
        )

    def _next_number(self) -> int:
        self._last += 1
        return self._last

    def put_urgent(self, lot: Lot, distance: int = 0) -> None:
        """Samples that come before all jobs: a reader waits for them, or a dead worker had them.

        A reader has several batches under way, and asks for them in any order: the first is given out first.
        `distance`: how many samples it reads before.
        """
        self._urgent.put(lot, distance)

    def put_wanted(
        self, dataset: Dataset, samples: Numbers, distance_to: Callable[[Dataset, Numbers], int]
    ) -> None:
        """Samples that a reader waits for, spread over all workers."""
        each = max(WANT_SHARD_SAMPLES, -(-len(samples) // self.pool.size))
        each = min(each, self.sizes.shard_samples_max(dataset))
        for at in range(0, len(samples), each):
            lot = Lot(dataset, samples[at : at + each], dataset.choose_format("auto")[0], Purpose.READ)
            self.put_urgent(lot, distance_to(dataset, lot.samples))

    def next_urgent(self) -> Lot | None:
        """The next urgent samples that are still missing, not in a task, and may be given out."""
        return self._urgent.take(self._may_begin_lot, self._missing)

    def next_suspect(self) -> Lot | None:
        """The next sample that must be tried alone."""
        return self._suspects.take(self._may_begin_lot, self._missing)

    def may_begin(self, spec: DatasetSpec, is_urgent: bool) -> bool:
        """Whether a shard of a data set may be given out now, for a reader or not.

        Not if the workers of its place have enough, if its source hangs, or if a suspect is being tried
        there, or will be once all others are done.
        """
        place = self.places.of(spec.source)
        if self.pool.free_slots(place, is_urgent) <= 0 or not self._may_try(spec):
            return False
        there = [task for task in self._builds() if self.places.of(task.spec.source) == place]
        if any(isinstance(task.lot, Suspect) for task in there):
            return False
        suspects = any(self.places.of(suspect.dataset.spec.source) == place for suspect in self._suspects)
        return not suspects or not self._has_task(place)

    def _may_begin_lot(self, lot: Lot) -> bool:
        return self.may_begin(lot.dataset.spec, lot.is_for_reader)

    def _may_try(self, spec: DatasetSpec) -> bool:
        """Whether a source may be asked anything more."""
        place = self.places.of(spec.source)
        return self.places.may_try(place, self._has_task(place))

    def _has_task(self, place: str) -> bool:
        return any(self.places.of(task.spec.source) == place for task in self._open.values())

    def _missing(self, lot: Lot) -> Lot | None:
        """What of a lot is neither there nor in a task, if anything is."""
        if not self.cache.is_open(lot.dataset):
            return None  # nobody can wait for them any more
        words = lot.dataset.index.words[lot.samples]
        missing = ~is_resident(words) & ~is_failed(words)
        missing &= ~self.in_flight(lot.dataset, lot.is_for_reader)[lot.samples]
        return replace(lot, samples=lot.samples[missing]) if missing.any() else None

    def together(self, lot: Lot, is_wanted: Callable[[Numbers], Mask]) -> Lot:
        """A lot with what shares an object with its samples and is wanted, too: that is fetched once."""
        flying, records = self.in_flight(lot.dataset), lot.dataset.records
        lot, rest = together(lot, is_wanted, lambda mates: ~flying[mates], self.sizes, self._missing)
        if lot.is_for_reader and len(rest) and records.unpacked(rest[:1]):
            self.put_urgent(replace(lot, samples=rest[:1]), LAST)  # and so on, while it is unpacked
        return lot

    def may_adopt(self, scan: Scan, name: str) -> bool:
        """Whether a scan can become the newest version now: a list that is made anew must have no users."""
        return not len(scan.read_joins().moved) or self._can_relist(name)

    def _send(self, task: Task, message: ScanSource | BuildShard) -> None:
        self._open[task.id] = task
        place = self.places.of(task.spec.source)
        task.began_at = self.cache.clock.now()
        if isinstance(task, ScanTask):
            task.heard_at = task.began_at
        self.places.tried(place)
        self.pool.send(message, place)

    # Hearing of them

    def answered(self, worker: WorkerProcess, message: Answer) -> Outcome | None:
        """Take a worker's message; a task that is over has an outcome."""
        if isinstance(message, SilenceTold):
            self.places.told(message.source, message.seconds, message.what)
            return None
        worker.heard_at = self.cache.clock.now()
        task = self._open.get(message.task)
        if task is None:
            return None
        if isinstance(message, Progress):
            task.done = message.done
            if isinstance(task, ScanTask):  # each word of it is one of its source
                task.heard_at = worker.heard_at
                self.places.answered(task.spec.source)
            return None
        worker.tasks.discard(task.id)
        if isinstance(message, Failed):
            self._abandon(task)
            return TaskFailed(task, message.to_error())
        if isinstance(task, ScanTask):
            assert isinstance(message, Scanned)
            self._close(task)
            self.places.answered(task.spec.source)
            return ScanDone(task, message)
        assert isinstance(message, ShardBuilt)
        return self._built(task, message.built)

    def _built(self, task: MeasureTask | BuildTask, built: Built) -> BuildDone:
        self._close(task, built.size_bytes if built.samples else 0)
        if built.samples:
            self.places.answered(task.spec.source)
            self.sizes.note(task.lot.dataset, built)
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
                self._scan_again(task.to_come(task.tries + 1))  # the worker had other tasks, too
                return None
            url = task.spec.source.url
            return TaskFailed(
                task, SourceBusy(f"{url}: the scan's process died", hint="see the log; try again")
            )
        log.warning("worker died dataset=%s samples=%d", task.spec.name, len(task.lot.samples))
        failed = self._suspects.put_back(task.lot, self.put_urgent) if isinstance(task, BuildTask) else []
        return (
            BuildDone(task, replace(NOTHING_BUILT, failed=failed)) if failed or task.job is not None else None
        )

    def stalled(self) -> list[Outcome]:
        """Leave workers behind that hang in a source, or were silent for long; their other tasks go on."""
        self.places.forget_old()
        self.unpacked.drop_idle()
        outcomes: list[Outcome] = []
        for worker in list(self.pool.workers):
            late = {
                number for number in worker.tasks if number in self._open and self._is_late(worker, number)
            }
            if late:
                self.pool.drop(worker)
                for task in self._take_from(worker):
                    if task.id in late:
                        outcomes.append(TaskFailed(task, self.places.silent(task.spec.source, STALL_S)))
                    else:
                        outcomes += self.again(task)
        return outcomes

    def _is_late(self, worker: WorkerProcess, number: int) -> bool:
        now, task = self.cache.clock.now(), self._open[number]
        hung = self.places.hung(task.spec.source)
        if hung is not None and now - max(hung.since, task.began_at) > HUNG_S:
            return True
        heard_at = task.heard_at if isinstance(task, ScanTask) else worker.heard_at
        return now - heard_at > STALL_S and not self.pool.is_starved(worker)

    def again(self, task: Task) -> list[Outcome]:
        """Have a task done again, once its source may be asked. A plan does not wait for that."""
        if isinstance(task, ScanTask):
            self._scans.put(task.to_come(task.tries))
        elif isinstance(task, MeasureTask):
            self.measure(task.lot, task.job)
        else:
            self.put_urgent(task.lot)
            return [BuildDone(task, NOTHING_BUILT)] if task.job is not None else []
        return []

    def _take_from(self, worker: WorkerProcess) -> list[Task]:
        tasks = [self._open[number] for number in worker.tasks if number in self._open]
        worker.tasks.clear()
        for task in tasks:
            self._abandon(task)
        return tasks

    def _close(self, task: Task, written_bytes: int = 0) -> None:
        """A task is over, and has left a file of so many bytes, or none."""
        del self._open[task.id]
        self.unpacked.release(task.id)
        if isinstance(task, BuildTask):
            others = (other.lot for other in self._builds() if isinstance(other, BuildTask))
            self._in_flight.clear(task.lot, others)
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

    def _scan_tasks(self) -> list[ScanTask]:
        return [task for task in self._open.values() if isinstance(task, ScanTask)]

    def _builds(self) -> list[MeasureTask | BuildTask]:
        return [task for task in self._open.values() if not isinstance(task, ScanTask)]

    # Small facts

    def in_flight(self, dataset: Dataset, for_reader: bool = False) -> ByNumber:
        """Which samples of a data set are in a task. None is when its list is made anew.

        `for_reader`: in one for a reader. Others give way to all that runs: who waits does not wait for them.
        """
        return self._in_flight.of(dataset, for_reader)

    def samples_in_flight(self, dataset: Dataset) -> Numbers:
        """The samples of a data set that are in a task."""
        lots = [task.lot for task in self._builds() if isinstance(task, BuildTask)]
        return np.concatenate([NONE, *(lot.samples for lot in lots if lot.dataset is dataset)])

    def count(self, purpose: Purpose) -> int:
        """How many shards are being built for a purpose."""
        return sum(task.lot.purpose is purpose for task in self._builds())

    def datasets(self) -> set[int]:
        """The ids of data sets that have a task, or samples that wait for one."""
        lots = [*self._urgent, *self._suspects, *(task.lot for task in self._builds())]
        return {lot.dataset.id for lot in lots}

    def scanned(self, job: int) -> int:
        """Objects that the scan for a job has seen so far."""
        return sum(task.done for task in self._scan_tasks() if task.job == job)

    def under_way(self, dataset: Dataset) -> int:
        """Samples that are prepared but whose shard is not complete."""
        return sum(task.done for task in self._builds() if task.lot.dataset is dataset)

    def paths(self) -> set[Path]:
        """Files that may be there and that the catalog does not have."""
        scans = [task.scan for task in self._scan_tasks()]
        files = [task.file for task in self._builds() if isinstance(task, BuildTask)]
        paths = {path for scan in scans for path in scan.paths} | self.unpacked.paths()
        return paths | {path for file in files for path in (file.path, file.scratch)}
