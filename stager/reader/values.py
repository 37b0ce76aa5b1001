"""The values that sources, layouts, recipes and shards hand to one another."""

import base64
import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Protocol, Self

import numpy as np
import numpy.typing as npt
import xxhash

Arrays = dict[str, npt.NDArray[Any]]
Numbers = npt.NDArray[np.int64]  # of samples: numbers for life (records.py), places in a manifest, positions
Starts = npt.NDArray[np.int64]  # of rows: their offsets in a file


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One object of a source. `version` changes when the bytes do: an etag, or mtime and size."""

    key: str  # relative to the source's root; bytes that are no UTF-8 are kept by surrogateescape
    size: int
    version: str


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """Where a source is and how to get in. `url`: s3://bucket/prefix, or a directory."""

    url: str
    endpoint_url: str | None = None
    region: str | None = None
    profile: str | None = None
    anonymous: bool = False


# What a scan may leave out: one, and several of it.
_LEFT_OUT: Final = {
    "link_out": ("link that leads out", "links that lead out"),
    "link_nowhere": ("link that leads nowhere", "links that lead nowhere"),
    "link_in_circle": ("link in a circle", "links in a circle"),
    "no_folder": ("image in no folder", "images in no folder"),
    "no_class": (
        "image of a split that is in no class folder",
        "images of a split that are in no class folder",
    ),
    "no_image": ("file that is no image", "files that are no images"),
}
_ENDING: Final = re.compile(r"\.[a-z0-9]{1,10}")  # others may be anything, and are shown to nobody
ENDINGS_COUNTED: Final = 100
ENDINGS_SHOWN: Final = 5


class LeftOut:
    """What a scan left out, counted by reason."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._endings: Counter[str] = Counter()  # of what is no image

    def count(self, reason: str, number: int = 1) -> None:
        assert reason in _LEFT_OUT, reason
        self._counts[reason] += number

    def count_file(self, key: str) -> None:
        """One more file that is no image."""
        self._counts["no_image"] += 1
        ending = key[key.rfind(".") :].lower()
        known = ending in self._endings or len(self._endings) < ENDINGS_COUNTED
        self._endings[ending if known and _ENDING.fullmatch(ending) else ""] += 1

    def clear(self) -> None:
        self._counts.clear()
        self._endings.clear()

    def add(self, other: "LeftOut") -> None:
        self._counts += other._counts
        self._endings += other._endings

    def line(self) -> str:
        """As a person is told it; nothing, if nothing was left out."""
        told = [
            f"{self._counts[reason]:,} {words[self._counts[reason] > 1]}"
            for reason, words in _LEFT_OUT.items()
            if self._counts[reason]
        ]
        endings = f": {', '.join(self._shown_endings())}" if self._endings else ""
        return f"left out: {', '.join(told)}{endings}" if told else ""

    def _shown_endings(self) -> list[str]:
        named = [(ending, count) for ending, count in self._endings.items() if ending]
        shown = sorted(named, key=lambda item: (-item[1], item[0]))[:ENDINGS_SHOWN]
        others = self._endings.total() - sum(count for _, count in shown)
        told = [f"{count:,} {ending}" for ending, count in shown]
        return [*told, f"{others:,} other{'s' * (others > 1)}"] if others else told


class Scanning:
    """What a scan tells beside its objects: that it goes on, and what it left out.

    A source calls `went_on` whenever it has heard from the place it lists, from any thread.
    """

    def __init__(self, went_on: Callable[[], None] = lambda: None) -> None:
        self.went_on = went_on
        self.left_out = LeftOut()


Fetched = memoryview | Exception  # an object's bytes, or why they cannot be had


class Source(Protocol):
    """A read-only place objects come from. Two verbs; everything else is a wrapper."""

    def scan(self, scanning: Scanning | None = None) -> Iterator[ObjectInfo]:
        """Yield every object once, in key order. Raise SourceError if the place cannot be listed."""

    def start(self, info: ObjectInfo, done: Callable[[Fetched], None]) -> None:
        """Begin to read exactly this version, and return at once.

        `done` gets its bytes, or SampleError if this object cannot be had (missing, changed, forbidden,
        unreadable), SourceBusy if asking again may help, another SourceError if the whole source is out of
        reach. It is called once, in a thread of the source's, and must be quick.
        """


class BlockingSource(Protocol):
    """A source that reads one object a call. `ThreadedSource` makes a Source of it."""

    def scan(self, scanning: Scanning | None = None) -> Iterator[ObjectInfo]: ...

    def read(self, info: ObjectInfo) -> memoryview:
        """Return the bytes, or raise what `Source.start` tells of."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An object that is a sample, and the folders that decide its split and class."""

    info: ObjectInfo
    path: tuple[str, ...]


class Layout(Protocol):
    """How a source's objects become samples with labels."""

    def entries(self, objects: Iterable[ObjectInfo]) -> Iterator[Entry]:
        """Keep the objects that are samples, in the order they come."""

    def label(self, paths: Iterable[tuple[str, ...]]) -> dict[tuple[str, ...], tuple[str, str]]:
        """Say (split, class) for each path, once all are known. No splits: the split is ''.

        Samples of a path that it does not name are left out.
        """


@dataclass(frozen=True, slots=True)
class Field:
    """One array of a sample. `None` in the shape: that side varies from sample to sample."""

    name: str
    dtype: str
    shape: tuple[int | None, ...]
    encoding: str = "raw"  # raw | jpeg: how the array is stored

    @property
    def is_fixed(self) -> bool:
        """Whether all rows have one size."""
        return self.encoding == "raw" and None not in self.shape

    @property
    def row_bytes(self) -> int | None:
        """Bytes of one stored row, or None if rows differ."""
        if not self.is_fixed:
            return None
        return math.prod(side or 0 for side in self.shape) * np.dtype(self.dtype).itemsize

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Field":
        return cls(value["name"], value["dtype"], tuple(value["shape"]), value["encoding"])


class Recipe(Protocol):
    """How an object's bytes become a sample's arrays. Equal digests give equal samples."""

    @property
    def digest(self) -> str: ...

    @property
    def fields(self) -> tuple[Field, ...]: ...

    def prepare(self, data: memoryview) -> Arrays:
        """Return one array a field, as stored (a jpeg field: its bytes as uint8). Raise SampleError."""


@dataclass(frozen=True, slots=True)
class ShardHeader:
    """What a shard says of itself."""

    dataset: str
    manifest: str
    recipe: str
    fields: tuple[Field, ...]

    def to_json(self) -> str:
        return canonical_json(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> "ShardHeader":
        value = json.loads(text)
        fields = tuple(Field.from_json(field) for field in value["fields"])
        return cls(value["dataset"], value["manifest"], value["recipe"], fields)


@dataclass(frozen=True, slots=True)
class Row:
    """One sample on its way into a shard."""

    key: str
    version: str
    arrays: Arrays
    checksum: int


class ShardReader(Protocol):
    """An open shard, which any thread may read, and a forked child."""

    header: ShardHeader
    checksums: npt.NDArray[np.uint64]

    def __len__(self) -> int: ...

    def row(self, row: int) -> Arrays:
        """The arrays of one row, as stored, in memory of their own. Raise ShardError or IndexError."""

    def starts(self, field: str) -> Starts | None:
        """Where in the file each row of a field begins, if all rows are of one size; else None."""

    def descriptor(self) -> int:
        """The file, to read by offset; open as long as this very value is held. Raise ShardError."""

    def held(self) -> int | None:
        """The same, if it is open right now."""

    def identities(self) -> list[tuple[str, str]]:
        """(key, version) of each row."""

    def places(self, row: int) -> list[tuple[int, int]]:
        """Where in the file the arrays of a row lie: offset and size in bytes of each."""

    def is_gone(self) -> bool:
        """Whether the file was taken away, so far as one can tell without opening it."""

    def close(self) -> None:
        """Let go of the file. It is opened again if it is read again."""


class ShardWriter(Protocol):
    """A shard that is being written. Left without `finish`, there is no file."""

    def add(self, row: Row) -> int:
        """Take one more row and return its number. Any thread may; an OSError spoils the whole shard."""

    def finish(self) -> None:
        """Complete the file. Not durable yet: the caller syncs it."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class ShardFormat(Protocol):
    """A way to keep samples in one immutable file."""

    suffix: str

    def begin(self, path: Path, header: ShardHeader, rows_max: int, room_bytes: int) -> ShardWriter:
        """Begin a new file of at most so many rows, for which so many bytes are reserved.

        It takes its room now: raise OSError if the disk has none.
        """

    def write(self, path: Path, header: ShardHeader, rows: Sequence[Row]) -> None:
        """Write a whole shard to a new file. Not durable yet: the caller syncs it."""

    def open(self, path: Path) -> ShardReader:
        """Raise ShardGone if there is no such file, ShardCorrupt if it is not whole."""


def grown(values: npt.NDArray[Any], count: int, fill: Any) -> npt.NDArray[Any]:
    """An array by sample number, made longer for samples that came later; these have `fill`."""
    if count <= len(values):
        return values
    return np.concatenate([values, np.full(count - len(values), fill, values.dtype)])


class ByNumber:
    """Values by sample number, of those samples that there were; samples that came later have `other`."""

    def __init__(self, values: npt.NDArray[Any], other: Any) -> None:
        self._values, self._other = values, other

    def __getitem__(self, numbers: Numbers) -> npt.NDArray[Any]:
        if not len(numbers) or int(numbers.max()) < len(self._values):
            return np.asarray(self._values[numbers])
        found = np.full(len(numbers), self._other, self._values.dtype)
        inside = numbers < len(self._values)
        found[inside] = self._values[numbers[inside]]
        return found


def pack_numbers(numbers: Numbers) -> str:
    """Sample numbers as text that JSON can carry."""
    return base64.b64encode(numbers.astype("<u4").tobytes()).decode()


def unpack_numbers(text: str) -> Numbers:
    """Raise ValueError if it is not what `pack_numbers` made."""
    return np.frombuffer(base64.b64decode(text, validate=True), "<u4").astype(np.int64)


def encode_key(key: str) -> bytes:
    """A key as the bytes its source has."""
    return key.encode("utf-8", "surrogateescape")


def decode_key(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def key_hash(key: str) -> int:
    """A number for a key, whatever its version: draws and joins go by it."""
    return xxhash.xxh3_64_intdigest(encode_key(key))


def sample_tag(key: str, version: str) -> int:
    """A number for one version of one key."""
    return xxhash.xxh3_64_intdigest(encode_key(key) + b"\0" + version.encode())


def checksum_of(
    tag: int, recipe: str, fields: Sequence[Field], arrays: Mapping[str, npt.NDArray[Any]]
) -> int:
    """The checksum of a sample. It covers which sample it is (tag), the recipe, shapes and bytes."""
    state = xxhash.xxh3_64(seed=tag ^ int(recipe[:16], 16))
    for field in fields:
        array = arrays[field.name]
        if not field.is_fixed:
            state.update(np.asarray((*array.shape, array.nbytes), dtype="<u8").tobytes())
        state.update(np.ascontiguousarray(array).data)
    return state.intdigest()


def canonical_json(value: Any) -> str:
    """The one text of a value: sorted keys, no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def digest_of(*parts: bytes | memoryview) -> str:
    """32 hex digits that name these bytes."""
    state = hashlib.blake2b(digest_size=16)
    for part in parts:
        state.update(part)
    return state.hexdigest()
