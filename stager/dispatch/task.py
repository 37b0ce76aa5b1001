"""What one worker does now, of what it is made, and how it ended: a type each."""

from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from stager.cache.budget import Reservation
from stager.cache.dataset import Dataset
from stager.errors import StagerError
from stager.reader.record import DatasetSpec
from stager.reader.values import Numbers
from stager.scan.scan import Scan
from stager.worker.messages import BuildShard, Built, FileToWrite, ListPlace, Relist, Scanned


class Purpose(Enum):
    """What samples are staged for, and so where they may lie."""

    KEEP = auto()  # for a job: on the disk, or later
    HOT = auto()  # nobody has asked for them: on the disk, or not at all
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
        """Somebody waits for it now."""
        return self.purpose in (Purpose.READ, Purpose.MEMORY)

    @property
    def is_for_memory(self) -> bool:
        """It does not fit the budget: readers have it once."""
        return self.purpose is Purpose.MEMORY


@dataclass(frozen=True, slots=True)
class Suspect(Lot):
    """One sample with which a worker died: now it is tried with nothing beside it."""


class ScanToCome(NamedTuple):
    """A source that is to be listed for a job."""

    job: int
    spec: DatasetSpec
    is_urgent: bool  # a reader waits for it
    relist: Relist | None
    tries: int = 1


@dataclass(slots=True)
class ScanTask:
    """A source is listed for a job."""

    id: int
    spec: DatasetSpec
    job: int
    scan: Scan
    is_urgent: bool  # a reader waits for it
    tries: int
    relist: Relist | None
    done: int = 0  # objects seen
    began_at: float = 0.0
    heard_at: float = 0.0

    def to_come(self, tries: int) -> ScanToCome:
        """The same scan, once more."""
        return ScanToCome(self.job, self.spec, self.is_urgent, self.relist, tries)


@dataclass(slots=True)
class MeasureTask:
    """Some samples are prepared for a job's plan, and nothing is written."""

    id: int
    lot: Lot
    job: int
    done: int = 0  # samples prepared
    began_at: float = 0.0

    @property
    def spec(self) -> DatasetSpec:
        return self.lot.dataset.spec


@dataclass(slots=True)
class BuildTask:
    """One shard is built."""

    id: int
    lot: Lot
    shard: int
    file: FileToWrite
    reservation: Reservation
    job: int | None  # whose plan waits for it
    done: int = 0  # samples prepared
    began_at: float = 0.0

    @property
    def spec(self) -> DatasetSpec:
        return self.lot.dataset.spec


Task = ScanTask | MeasureTask | BuildTask


@dataclass(frozen=True, slots=True)
class ScanDone:
    task: ScanTask
    told: Scanned


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


def build_message(number: int, lot: Lot, file: FileToWrite | None) -> BuildShard:
    """How a worker is told of a lot."""
    dataset = lot.dataset
    manifest, records = dataset.record.manifest, list_of(dataset)
    samples = lot.samples.tolist()
    return BuildShard(number, dataset.spec, manifest, records, samples, lot.format, lot.is_for_reader, file)


def list_of(dataset: Dataset) -> ListPlace:
    """Where a worker finds the records of a data set's samples."""
    return ListPlace(dataset.directory, dataset.record.lineage, tuple(dataset.record.segments))
