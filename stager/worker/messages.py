"""What the service and its workers say to each other. Each message is one line of JSON."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

from stager import errors
from stager.errors import StagerError
from stager.reader.record import DatasetSpec


class Message:
    """Whatever is sent is a dataclass of one of the kinds below."""

    __slots__ = ()

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        return cls(**value)


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
    """What a scan is compared with. `relist`: have its list of samples made anew."""

    records: ListPlace
    manifest: Path
    relist: bool

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "KnownVersion":
        return cls(ListPlace.from_json(value["records"]), Path(value["manifest"]), value["relist"])


@dataclass(frozen=True, slots=True)
class ShardFile:
    """A file that is to be written: under which name, and which it has meanwhile."""

    path: Path
    scratch: Path
    room_bytes: int  # reserved for it
    free_before: int  # bytes that must be free on the disk right before

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "ShardFile":
        return cls(Path(value["path"]), Path(value["scratch"]), value["room_bytes"], value["free_before"])


@dataclass(frozen=True, slots=True)
class OpenSource(Message):
    """Open a source that is likely to be asked for. There is no answer."""

    dataset: DatasetSpec

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "OpenSource":
        return cls(DatasetSpec.from_json(value["dataset"]))


@dataclass(frozen=True, slots=True)
class ScanSource(Message):
    """List a source and write its manifest to `path`."""

    task: int
    dataset: DatasetSpec
    path: Path
    known: KnownVersion | None  # None: it was never scanned before

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "ScanSource":
        known = KnownVersion.from_json(value["known"]) if value["known"] else None
        return cls(value["task"], DatasetSpec.from_json(value["dataset"]), Path(value["path"]), known)


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
    file: ShardFile | None

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
            ShardFile.from_json(value["file"]) if value["file"] else None,
        )


# From a worker


@dataclass(frozen=True, slots=True)
class Progress(Message):
    """A task goes on: so many objects were seen, or samples prepared."""

    task: int
    done: int


@dataclass(frozen=True, slots=True)
class Scanned(Message):
    """A scan is done. `left_out`: what it passed by, and why."""

    task: int
    left_out: str = ""


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
    prepare_s: float  # the median of one sample: the first ones also load the decoders


NOTHING_BUILT: Final = Built([], [], 0, 0, 0, 0, 0.0, 0.0)


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
        return cls(task, errors.to_json(error))

    def to_error(self) -> StagerError:
        return errors.from_json(self.error)


@dataclass(frozen=True, slots=True)
class NativeTold(Message):
    """Which way the worker prepares samples."""

    native: str


@dataclass(frozen=True, slots=True)
class Logged(Message):
    """A line for the owner's log: there is one log, in one format."""

    level: int
    event: str


Task = ScanSource | BuildShard
Answer = Progress | Scanned | ShardBuilt | Failed
ToWorker = OpenSource | Task
FromWorker = Answer | NativeTold | Logged

_TO_WORKER: Final[dict[str, type[ToWorker]]] = {
    kind.__name__: kind for kind in (OpenSource, ScanSource, BuildShard)
}
_FROM_WORKER: Final[dict[str, type[FromWorker]]] = {
    kind.__name__: kind for kind in (Progress, Scanned, ShardBuilt, Failed, NativeTold, Logged)
}


def line_of(message: ToWorker | FromWorker) -> str:
    return json.dumps({"kind": type(message).__name__, **asdict(message)}, default=str) + "\n"  # paths


def read_by_worker(line: str) -> ToWorker:
    """What the service says in a line."""
    value = json.loads(line)
    return _TO_WORKER[value.pop("kind")].from_json(value)


def read_by_service(line: str) -> FromWorker:
    """What a worker says in a line. Raise ValueError if it was cut off."""
    value = json.loads(line)
    return _FROM_WORKER[value.pop("kind")].from_json(value)
