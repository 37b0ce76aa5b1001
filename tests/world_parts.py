"""What a simulated world is made of: its clock, sources, workers and disk. No threads, no waits."""

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from random import Random
from typing import Any, Final
from zlib import crc32

import numpy as np
import numpy.typing as npt

from making import Listed
from stager.cache.budget import check_free
from stager.cache.cache import Cache
from stager.cache.dataset import Dataset
from stager.catalog.rows import ShardRow
from stager.config import TASKS_PER_WORKER
from stager.dispatch.events import Beside, Events
from stager.dispatch.pool import WorkerMessage, WorkerProcess
from stager.dispatch.sync import Durable, DurableQueue
from stager.errors import SourceBusy, SourceNotFound, StagerError, known_error
from stager.interfaces import LeftOut
from stager.layouts import open_layout
from stager.reader.record import DatasetSpec
from stager.reader.samples.manifest import Manifest
from stager.reader.samples.sample_list import SampleList
from stager.reader.values import ObjectInfo, Prepared, SampleInfo, ShardHeader, checksum_of, sample_tag
from stager.recipes import open_recipe
from stager.scan.scan import NOTHING_KNOWN, Known, write_manifest
from stager.shards import FORMATS
from stager.watch.hint import EVERYTHING
from stager.watch.messages import FromWatcher, Hinted, KnownFiles, Watching, WatchPlace
from stager.watch.process import Hear
from stager.worker.messages import (
    Answer,
    BuildShard,
    Built,
    Failed,
    ListPlace,
    Scanned,
    ScanSource,
    SetLimits,
    ShardBuilt,
    SilenceTold,
    Task,
)

OBJECT_BYTES: Final = 1000
TABLE: Final = "samples.csv"

Shown = tuple[str, str]  # what a sample shows: an object, and its version


class Killed(BaseException):
    """The owner's process ends here, in the middle of whatever it does."""


class Fuse:
    """Burns down at each point where a process may end; None: it does not burn."""

    def __init__(self) -> None:
        self.left: int | None = None

    def point(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left <= 0:
                self.left = None
                raise Killed


class SimulatedClock:
    """Both readings are under the test's control. Whoever reads it may be killed by that."""

    def __init__(self, fuse: Fuse) -> None:
        self.now_s, self.wall_s = 1000.0, 1.8e9
        self.drift_s = 0.0  # that pass between two readings
        self._fuse = fuse

    def now(self) -> float:
        self._fuse.point()
        self.now_s += self.drift_s
        return self.now_s

    def wall(self) -> float:
        self._fuse.point()
        return self.wall_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds
        self.wall_s += seconds


@lru_cache(maxsize=4096)
def pixels(key: str, version: str, crop: int) -> npt.NDArray[np.uint8]:
    """The one right array of an object: other keys, versions and recipes have other bytes in every block."""
    random = np.random.Generator(np.random.PCG64(sample_tag(key, version) ^ crop))
    made = random.integers(1, 256, (crop, crop, 3), dtype=np.uint8)  # no zeros: a hole is never right
    made.flags.writeable = False
    return made


def shown_by(info: SampleInfo) -> Shown:
    """What a sample's record says that it shows."""
    return info.parts[0].info.key, info.parts[0].info.version


class SimulatedSource:
    """Keys and the version that each has now. It may vanish, as a mount does."""

    layout = "folder"
    options: Mapping[str, str] = {}

    def __init__(self, keys: Iterable[str]) -> None:
        self.versions: dict[str, int] = dict.fromkeys(keys, 1)
        self.newest: dict[str, int] = dict(self.versions)  # that a key ever had
        self.is_there = True

    def listing(self) -> Listed:
        return Listed(self.objects())

    def objects(self) -> list[ObjectInfo]:
        if not self.is_there:
            raise SourceNotFound("simulated: no such place", hint="bring it back")
        return [ObjectInfo(key, OBJECT_BYTES, f"v{self.versions[key]}") for key in sorted(self.versions)]

    def shown(self) -> dict[str, Shown]:
        """What each sample shows now, by its key."""
        return {key: (key, f"v{version}") for key, version in self.versions.items()}

    def refusal(self, info: ObjectInfo) -> str:
        """Why a version cannot be had any more; '' if it can."""
        if info.key not in self.versions:
            return "missing"
        return "" if f"v{self.versions[info.key]}" == info.version else "changed"

    def change(self, key: str) -> None:
        self.newest[key] = self.versions[key] = self.newest[key] + 1

    def add(self, key: str) -> None:
        self.versions[key] = self.newest.setdefault(key, 0) or 1
        self.newest[key] = max(self.newest[key], 1)


class SimulatedTable(SimulatedSource):
    """Rows under keys of their own, each of which names an object; several may name the same one."""

    layout = "table"
    options = {"table": TABLE, "label": "label", "split": "", "key": "id", "at": ""}

    def __init__(self, keys: Iterable[str]) -> None:
        super().__init__(keys)
        self.rows = {f"r{number:02d}": key for number, key in enumerate([*self.versions, *self.versions])}

    def listing(self) -> Listed:
        lines = [f"{row},c{int(row[1:]) % 3},{key}" for row, key in self.rows.items()]
        data = "\n".join(["id,label,path", *lines]).encode()
        table = ObjectInfo(TABLE, len(data), f"crc-{crc32(data)}")
        return Listed([*self.objects(), table], {TABLE: data})

    def shown(self) -> dict[str, Shown]:
        there = {row: key for row, key in self.rows.items() if key in self.versions}
        return {row: (key, f"v{self.versions[key]}") for row, key in there.items()}

    def point(self, row: str, key: str) -> None:
        """A row names another object; a new row is added."""
        self.rows[row] = key


@dataclass(eq=False)
class SimulatedWorker(WorkerProcess):
    """A worker without a process. `hangs`: it does nothing any more, and says nothing."""

    hangs: bool = False
    held: list[Task] = field(default_factory=list)


class SimulatedPool:
    """Holds tasks until the world lets a worker do one, in the test's own process."""

    size, threads, native = 2, 1, "simulated"

    def __init__(self, events: Events, clock: SimulatedClock, sources: Mapping[str, SimulatedSource]) -> None:
        self.workers: list[WorkerProcess] = []
        self._events, self._clock, self._sources = events, clock, sources
        self.listed: dict[str, dict[str, Shown]] = {}  # what each manifest's samples show, by its digest
        self.unsaid: list[WorkerMessage] = []  # done, and on its way
        self.hung: set[str] = set()  # data sets whose sources do not answer

    def start(self, specs: Iterable[DatasetSpec]) -> None:
        pass

    def free_slots(self, place: str, is_urgent: bool) -> int:
        return self.size * TASKS_PER_WORKER - sum(len(worker.tasks) for worker in self._of(place, is_urgent))

    def _of(self, place: str, is_urgent: bool) -> list[WorkerProcess]:
        return [worker for worker in self.workers if (worker.place, worker.is_urgent) == (place, is_urgent)]

    def send(self, task: Task, place: str) -> None:
        about = place, task.is_urgent
        if len(self._of(*about)) < self.size:
            self.workers.append(
                SimulatedWorker(None, self._clock.now_s, place, is_urgent=task.is_urgent)  # type: ignore[arg-type]
            )
        worker = min(self._of(*about), key=lambda worker: len(worker.tasks))
        assert isinstance(worker, SimulatedWorker)
        if not worker.tasks:
            worker.heard_at = self._clock.now_s
        worker.tasks.add(task.task)
        worker.held.append(task)

    def limit(self, limits: SetLimits) -> None: ...

    def is_starved(self, worker: WorkerProcess) -> bool:
        return False

    def drop(self, worker: WorkerProcess) -> None:
        if worker in self.workers:
            self.workers.remove(worker)

    def stop(self) -> None:
        self.workers.clear()

    def busy(self) -> list[SimulatedWorker]:
        """Those that could do something now."""
        found = [worker for worker in self.workers if isinstance(worker, SimulatedWorker)]
        return [worker for worker in found if self._can_do(worker) and not worker.hangs]

    def _can_do(self, worker: SimulatedWorker) -> list[Task]:
        return [task for task in worker.held if task.dataset.name not in self.hung]

    def tell_hung(self) -> None:
        """Workers notice which of their sources do not answer."""
        for worker in self.workers:
            assert isinstance(worker, SimulatedWorker)
            for task in worker.held:
                if task.dataset.name in self.hung:
                    told = SilenceTold(task.dataset.source, 6.0, "a stat of something")
                    self.unsaid.append(WorkerMessage(worker, told))

    def answer(self) -> None:
        """All sources answer again, and who waited for them says so."""
        for worker in self.workers:
            assert isinstance(worker, SimulatedWorker)
            for task in worker.held:
                if task.dataset.name in self.hung:
                    self.unsaid.append(WorkerMessage(worker, SilenceTold(task.dataset.source, 0.0, "")))
        self.hung.clear()

    def do(self, worker: SimulatedWorker, rng: Random, fails: float) -> None:
        """One task of a worker, to its end. The answer waits in `unsaid`."""
        task = rng.choice(self._can_do(worker))
        worker.held.remove(task)
        self.unsaid.append(WorkerMessage(worker, self._done(task, rng, fails)))

    def _done(self, task: Task, rng: Random, fails: float) -> Answer:
        try:
            if rng.random() < fails / 4:
                raise SourceBusy("simulated: no answer", hint="try again")
            if isinstance(task, ScanSource):
                return self._scan(task)
            return ShardBuilt(task.task, self._build(task, rng, fails))
        except (StagerError, OSError) as error:
            return Failed.by(task.task, known_error(error, "simulated"))

    def _scan(self, task: ScanSource) -> Scanned:
        spec, known = task.dataset, NOTHING_KNOWN
        if told := task.known:
            records = _records(told.records)
            known = Known(records, Manifest.open(told.manifest, records), told.relist)
        source, recipe = self._sources[spec.name], open_recipe(spec.recipe)
        layout = open_layout(spec.layout, spec.options, recipe, LeftOut(recipe.takes))
        digest = write_manifest(task.path, layout, source.listing(), known)
        self.listed[digest] = source.shown()
        return Scanned(task.task)

    def _build(self, task: BuildShard, rng: Random, fails: float) -> Built:
        spec, file = task.dataset, task.file
        source, recipe = self._sources[spec.name], open_recipe(spec.recipe)
        if file is not None:
            check_free(file.scratch.parent, file.free_before)
        if not source.is_there:
            raise SourceNotFound("simulated: no such place", hint="bring it back")
        samples = list(task.samples)
        rng.shuffle(samples)  # rows lie in the order in which they were ready
        rows, staged, failed = [], [], []
        for number, info in zip(samples, _records(task.records).infos(samples), strict=True):
            reason = source.refusal(info.parts[0].info)
            if not reason and rng.random() < fails:
                reason = rng.choice(("corrupt", "unreadable", "forbidden"))
            if reason:
                failed.append((number, reason, f"simulated: {reason}"))
                continue
            arrays = {"image": pixels(*shown_by(info), spec.recipe["crop"])}
            checksum = checksum_of(sample_tag(info.key, info.version), recipe.digest, recipe.fields, arrays)
            rows.append(Prepared(info.key, info.version, arrays, checksum))
            staged.append(number)
        row_bytes = sum(row.arrays["image"].nbytes for row in rows)
        size_bytes = row_bytes
        if file is not None and rows:
            header = ShardHeader(spec.name, task.manifest, recipe.digest, recipe.fields)
            FORMATS[task.format].write(file.scratch, header, rows)
            size_bytes = file.scratch.stat().st_size
            file.scratch.replace(file.path)
        return Built(
            staged,
            failed,
            size_bytes,
            size_squares=row_bytes * row_bytes // max(len(rows), 1),
            read_bytes=OBJECT_BYTES * len(rows),
            reads=len(rows),
            fetch_s=0.01,
            prepare_s=0.001,
            byte_s=0.0,
        )


class SimulatedWatcher:
    """Hints when the world says so."""

    def __init__(self, place: WatchPlace, hear: Hear) -> None:
        self._hear: Hear | None = hear
        self.say(Watching("simulated"))
        self.say(Hinted(EVERYTHING))

    def say(self, message: FromWatcher | None) -> None:
        if self._hear is not None:
            self._hear(self, message)

    def tell(self, known: KnownFiles) -> None:
        pass

    def end(self) -> None:
        self._hear = None


def _records(place: ListPlace) -> SampleList:
    return SampleList.open(place.directory, place.lineage, place.segments)


class SimulatedDisk(DurableQueue):
    """Syncs when the world says so, or fails."""

    def __init__(self, cache: Cache, events: Events) -> None:
        self._cache, self._events = cache, events
        self._waiting: dict[int, tuple[Dataset, ShardRow]] = {}
        self._to_sync: list[tuple[Dataset, ShardRow]] = []

    def add(self, dataset: Dataset, row: ShardRow) -> None:
        self._waiting[row.number] = (dataset, row)
        self._to_sync.append((dataset, row))

    def stop(self) -> None:
        pass

    def sync(self, is_broken: bool = False) -> bool:
        """The next file. False: there is none."""
        if not self._to_sync:
            return False
        dataset, row = self._to_sync.pop(0)
        error = OSError(errno.EIO, os.strerror(errno.EIO)) if is_broken else None
        self._events.put(Durable(dataset, row, error))
        return True

    def rows(self) -> Iterator[ShardRow]:
        """What readers have, and the catalog not yet."""
        yield from (row for _, row in self._waiting.values())


class SimulatedBeside(Beside):
    """Does what it has when the world says so."""

    def __init__(self, events: Events) -> None:
        self._held: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []
        self._events = events

    def do(self, act: Callable[[], Any], then: Callable[[Any], None]) -> None:
        self._held.append((act, then))

    def go(self) -> bool:
        """The next piece of work. False: there is none."""
        if not self._held:
            return False
        self._run(*self._held.pop(0))
        return True

    def stop(self) -> None:
        self._held.clear()


def guarded(act: Callable[[], Any], fuse: Fuse) -> Callable[[], Any]:
    """The same, with a point before and one after where the process may end."""

    def do() -> Any:
        fuse.point()
        done = act()
        fuse.point()
        return done

    return do
