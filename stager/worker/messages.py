"""What the service and its workers say to each other. Each message is one line of JSON."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from stager import errors
from stager.errors import StagerError
from stager.lines import Message, by_name, read_line
from stager.reader.record import DatasetSpec
from stager.reader.values import SourceSpec

BUCKETS_MOST: Final = 512  # of limits, that all workers of a cache share
BACKGROUND: Final = "background"  # the argument of a worker for what nobody waits for


# To a worker


@dataclass(frozen=True, slots=True)
class ListPlace:
    """Where a worker finds the samples of a data set."""

    directory: Path
    lineage: str
    segments: tuple[str, ...]

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "ListPlace":
        return cls(Path(value["directory"]), value["lineage"], tuple(value["segments"]))


@dataclass(frozen=True, slots=True)
class KnownVersion:
    """What a scan is compared with. `relist`: have its list of samples made anew.

    `is_alike`: it was scanned by the same layout and recipe.
    """

    records: ListPlace
    manifest: Path
    relist: bool
    is_alike: bool

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "KnownVersion":
        records, manifest = ListPlace.from_json(value["records"]), Path(value["manifest"])
        return cls(records, manifest, value["relist"], value["is_alike"])


@dataclass(frozen=True, slots=True)
class FileToWrite:
    """A file that is to be written: under which name, and which it has meanwhile."""

    path: Path
    scratch: Path
    room_bytes: int  # reserved for it
    free_before: int  # bytes that must be free on the disk right before

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "FileToWrite":
        return cls(Path(value["path"]), Path(value["scratch"]), value["room_bytes"], value["free_before"])


@dataclass(frozen=True, slots=True)
class OpenSource(Message):
    """Open a source that is likely to be asked for. There is no answer."""

    dataset: DatasetSpec

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "OpenSource":
        return cls(DatasetSpec.from_json(value["dataset"]))


@dataclass(frozen=True, slots=True)
class Relist:
    """What a watch knows of a source: it need not all be listed. What somebody still writes is left alone.

    `folders`: what lies right in these may have changed; `trees`: all below these. `is_part`: nothing else.
    `rest_s`: a file of the last seconds counts only later.
    """

    folders: tuple[str, ...]
    trees: tuple[str, ...]
    is_part: bool
    rest_s: float

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Relist":
        return cls(tuple(value["folders"]), tuple(value["trees"]), value["is_part"], value["rest_s"])


@dataclass(frozen=True, slots=True)
class SetLimits(Message):
    """What holds from now on. A limit of a source: the number of its bucket, and bytes a second."""

    buckets: Path  # where they are
    cores: float | None = None  # that may prepare; None: all
    of_all: tuple[int, float] | None = None  # of all sources together
    of: Mapping[str, tuple[int, float]] = field(default_factory=dict)  # of data sets, by name

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "SetLimits":
        return cls(**{**value, "buckets": Path(value["buckets"])})


@dataclass(frozen=True, slots=True)
class ScanSource(Message):
    """List a source and write its manifest to `path`."""

    task: int
    dataset: DatasetSpec
    path: Path
    known: KnownVersion | None  # None: it was never scanned before
    is_urgent: bool = True  # a reader waits for it
    relist: Relist | None = None  # None: a person asked, for all that is there

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "ScanSource":
        known = KnownVersion.from_json(value["known"]) if value["known"] else None
        relist = Relist.from_json(value["relist"]) if value["relist"] else None
        about = value["task"], DatasetSpec.from_json(value["dataset"]), Path(value["path"])
        return cls(*about, known, value["is_urgent"], relist)


@dataclass(frozen=True, slots=True)
class BuildShard(Message):
    """Prepare these samples and write them to a file; with none, only measure them."""

    task: int
    dataset: DatasetSpec
    manifest: str
    records: ListPlace
    samples: list[int]
    format: str
    is_urgent: bool
    file: FileToWrite | None
    made: Path | None = None  # where what a function makes is kept until the shard is durable
    unpacked: Path | None = None  # where objects are unpacked, if any are

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "BuildShard":
        return cls(
            value["task"],
            DatasetSpec.from_json(value["dataset"]),
            value["manifest"],
            ListPlace.from_json(value["records"]),
            value["samples"],
            value["format"],
            value["is_urgent"],
            FileToWrite.from_json(value["file"]) if value["file"] else None,
            Path(value["made"]) if value["made"] else None,
            Path(value["unpacked"]) if value["unpacked"] else None,
        )


# From a worker


@dataclass(frozen=True, slots=True)
class Progress(Message):
    """A task goes on: so many objects were seen, or samples prepared."""

    task: int
    done: int


@dataclass(frozen=True, slots=True)
class Scanned(Message):
    """A scan is done. `left_out`: what it passed by, and why; `ending`: of most files of another kind.

    `recipe`: with the code of its functions, if it has any. `lacks_samples`: what was passed by should have
    been samples. `unripe`: folders with files that somebody still writes.
    """

    task: int
    left_out: str = ""
    ending: str = ""
    recipe: Mapping[str, Any] | None = None
    lacks_samples: bool = False
    unripe: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Scanned":
        return cls(**{**value, "unripe": tuple(value["unripe"])})


@dataclass(frozen=True, slots=True)
class Built:
    """What came of one shard: the samples in it, in row order, and those that cannot be had."""

    samples: list[int]
    failed: list[tuple[int, str, str]]  # sample number, reason, detail
    size_bytes: int
    size_squares: int  # of the samples' sizes, for their spread
    read_bytes: int
    reads: int
    fetch_s: float  # the median of one request
    prepare_s: float  # the mean of a sample on a core, but for the first ones: they load decoders
    byte_s: float  # the median of a sample's seconds a byte, where each is one whole object; else 0
    made_s: float = 0.0  # that a person's function worked on all of them
    made_squares: float = 0.0  # of its seconds for each, for their spread


NOTHING_BUILT: Final = Built([], [], 0, 0, 0, 0, 0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class ShardBuilt(Message):
    """A shard is complete under its final name, or was measured."""

    task: int
    built: Built

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "ShardBuilt":
        failed = [(sample, reason, detail) for sample, reason, detail in value["built"]["failed"]]
        return cls(value["task"], Built(**{**value["built"], "failed": failed}))


@dataclass(frozen=True, slots=True)
class Failed(Message):
    """A task came to nothing, by an error that is nobody's single sample."""

    task: int
    error: Mapping[str, Any]  # as errors.to_json has it

    @classmethod
    def by(cls, task: int, error: StagerError) -> "Failed":
        """An error as its message."""
        return cls(task, errors.to_json(error))

    def to_error(self) -> StagerError:
        """The error again, of its own class."""
        return errors.from_json(self.error)


@dataclass(frozen=True, slots=True)
class NativeTold(Message):
    """Which way the worker prepares samples."""

    native: str


@dataclass(frozen=True, slots=True)
class SilenceTold(Message):
    """A source has not answered for so long. `what`: the call that waits; '': it answers again."""

    source: SourceSpec
    seconds: float
    what: str

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "SilenceTold":
        return cls(SourceSpec(**value["source"]), value["seconds"], value["what"])


@dataclass(frozen=True, slots=True)
class Logged(Message):
    """A line for the owner's log: there is one log, in one format."""

    level: int
    event: str


Task = ScanSource | BuildShard
Answer = Progress | Scanned | ShardBuilt | Failed | SilenceTold
ToWorker = OpenSource | SetLimits | Task
FromWorker = Answer | NativeTold | Logged

_TO_WORKER: Final = by_name(OpenSource, SetLimits, ScanSource, BuildShard)
_FROM_WORKER: Final = by_name(Progress, Scanned, ShardBuilt, Failed, SilenceTold, NativeTold, Logged)


def read_by_worker(line: str) -> ToWorker:
    """What the service says in a line."""
    return cast(ToWorker, read_line(line, _TO_WORKER))


def read_by_service(line: str) -> FromWorker:
    """What a worker says in a line. Raise ValueError if it was cut off."""
    return cast(FromWorker, read_line(line, _FROM_WORKER))
