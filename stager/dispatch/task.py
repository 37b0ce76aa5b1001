"""What one worker does now, of what it is made, and how it ended: a type each."""

from dataclasses import dataclass
from enum import Enum, auto

from stager.cache.budget import Reservation
from stager.cache.dataset import Dataset
from stager.errors import StagerError
from stager.reader.record import DatasetSpec
from stager.reader.values import Numbers
from stager.scan.scan import Scan
from stager.worker.messages import Built, ShardFile


class Purpose(Enum):
    """What samples are staged for, and so where they may lie."""

    KEEP = auto()  # for a job, or because they are hot: on the disk, or later
    READ = auto()  # a reader needs them: where the disk has no room, memory will do
    MEMORY = auto()  # a reader needs them, and the disk is full: to memory at once


@dataclass(frozen=True, slots=True)
class Lot:
    """Samples that are to make one shard."""

    dataset: Dataset
    samples: Numbers
    format: str
    purpose: Purpose = Purpose.KEEP

    @property
    def is_for_reader(self) -> bool:
        return self.purpose is not Purpose.KEEP

    @property
    def is_for_memory(self) -> bool:
        return self.purpose is Purpose.MEMORY


@dataclass(frozen=True, slots=True)
class Suspect(Lot):
    """One sample with which a worker died: now it is tried with nothing beside it."""


@dataclass(slots=True)
class ScanTask:
    """A source is listed for a job."""

    id: int
    spec: DatasetSpec
    job: int
    scan: Scan
    tries: int
    done: int = 0  # objects seen


@dataclass(slots=True)
class MeasureTask:
    """Some samples are prepared for a job's plan, and nothing is written."""

    id: int
    lot: Lot
    job: int
    done: int = 0  # samples prepared

    @property
    def spec(self) -> DatasetSpec:
        return self.lot.dataset.spec


@dataclass(slots=True)
class BuildTask:
    """One shard is built."""

    id: int
    lot: Lot
    shard: int
    file: ShardFile
    reservation: Reservation
    job: int | None  # whose plan waits for it
    done: int = 0  # samples prepared

    @property
    def spec(self) -> DatasetSpec:
        return self.lot.dataset.spec


Task = ScanTask | MeasureTask | BuildTask


@dataclass(frozen=True, slots=True)
class ScanDone:
    task: ScanTask
    left_out: str


@dataclass(frozen=True, slots=True)
class BuildDone:
    """Its samples are there, or measured, or failed one by one."""

    task: MeasureTask | BuildTask
    built: Built


@dataclass(frozen=True, slots=True)
class TaskFailed:
    """It came to nothing, by an error that is nobody's single sample."""

    task: Task
    error: StagerError


Outcome = ScanDone | BuildDone | TaskFailed
