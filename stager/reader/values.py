"""The values that sources, layouts, recipes and shards hand to one another."""

import base64
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt
import xxhash

Arrays = dict[str, npt.NDArray[Any]]
Mask = npt.NDArray[np.bool_]  # which of some samples
Numbers = npt.NDArray[
    np.int64
]  # of samples: numbers for life (sample_list.py), places in a manifest, positions
Starts = npt.NDArray[np.int64]  # of rows: their offsets in a file
Shape = tuple[int | None, ...]  # None: that side varies from sample to sample


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One object of a source. `version` changes when the bytes do: an etag, or mtime and size."""

    key: str  # relative to the source's root; bytes that are no UTF-8 are kept by surrogateescape
    size: int
    version: str


class Inner(NamedTuple):
    """Which of the objects that lie in one, behind or before an index of where each is: a Zarr shard's."""

    number: int
    places: int  # how many there can be
    is_index_last: bool
    has_checksum: bool  # the index has one


@dataclass(frozen=True, slots=True)
class Unlisted(ObjectInfo):
    """A chunk that no listing told of: what is there now is taken. `size`: about as many bytes as it has.

    If it is not there, it is empty, as long as `witness` is: where all is gone, that says nothing of a chunk.
    `version`: of what told that there may be such a chunk.
    """

    witness: str
    inner: Inner | None = None


@dataclass(frozen=True, slots=True)
class Enclosed(ObjectInfo):
    """A chunk in a listed object, behind an index of where each is. `size`: about as many bytes as it has."""

    object: ObjectInfo
    inner: Inner


@dataclass(frozen=True, slots=True)
class Absent(ObjectInfo):
    """A chunk that a listing did not have: it is empty, and nobody is asked for it."""


class Part(NamedTuple):
    """An object, or the bytes of it from `start` to `stop`: a tar's member, a chunk of a Zarr shard."""

    info: ObjectInfo
    start: int = 0
    stop: int | None = None  # None: to its end

    @property
    def size(self) -> int:
        """In bytes, as the listing has them."""
        return (self.info.size if self.stop is None else self.stop) - self.start


class SampleInfo(NamedTuple):
    """What a worker needs to make one sample."""

    key: str
    version: str  # of one whole object its own; else a digest of all parts' versions, ranges and inputs
    parts: tuple[Part, ...]  # () for a generated sample
    at: Any = None  # the place inside what a part opens to: a Parquet row, a brick's origin
    inputs: tuple[Any, ...] = ()  # what the recipe needs of the attributes: a box, a seed, a row of numbers

    @property
    def size(self) -> int:
        """Bytes to fetch for it."""
        return sum(part.size for part in self.parts)


@dataclass(frozen=True, slots=True)
class Unpacked(ObjectInfo):
    """What a part becomes once it is unpacked: read by ranges, as any object. `size`: unpacked.

    `by`: what unpacks it, as its layout says it; `at`: which chunk it is, if it is one.
    """

    packed: Part
    by: str
    at: tuple[int, ...] = ()

    def file_name(self, source: "SourceSpec") -> str:
        """Of the file in which it waits: the same for the same bytes of a source, and for no others."""
        told = [repr(source), repr(self.packed), self.by, self.at, self.size]
        return f"unpacked-{digest_of(canonical_json(told).encode())}"


class Attribute(NamedTuple):
    """A column of the user's table that every sample has a value of: fold, weight, anything."""

    name: str
    type: str  # one of ATTRIBUTE_TYPES


ATTRIBUTE_TYPES: Final = ("bool", "int64", "float64", "string")


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """Where a source is and how to get in. `url`: s3://bucket/prefix, or a directory."""

    url: str
    endpoint_url: str | None = None
    region: str | None = None
    profile: str | None = None
    anonymous: bool = False


@dataclass(frozen=True, slots=True)
class Field:
    """One array of a sample. `None` in the shape: that side varies from sample to sample.

    `axes`, `batch` and `rate` say how a client hands it out, and nothing of how it is stored.
    """

    name: str
    dtype: str
    shape: Shape
    encoding: str = "raw"  # raw | jpeg: how the array is stored
    axes: str = ""  # a letter a side; torch has "HWC" as CHW
    batch: str = "stack"  # stack | pad | ragged: how samples of different shape make a batch
    rate: int = 0  # how many items of its first side are a second; 0: nobody says

    def __str__(self) -> str:
        """For people: `image uint8 224x224x3`. A side that varies is a question mark."""
        sides = "x".join("?" if side is None else str(side) for side in self.shape)
        return f"{self.name} {self.dtype} {sides}".rstrip()

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

    def stored(self) -> dict[str, Any]:
        """As shards say it: what is not of the client's."""
        return {name: getattr(self, name) for name in ("name", "dtype", "shape", "encoding")}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Field":
        stored = value["name"], value["dtype"], tuple(value["shape"]), value["encoding"]
        return cls(*stored, value.get("axes", ""), value.get("batch", "stack"), value.get("rate", 0))


@dataclass(frozen=True, slots=True)
class ShardHeader:
    """What a shard says of itself."""

    dataset: str
    manifest: str
    recipe: str
    fields: tuple[Field, ...]

    def to_json(self) -> str:
        names = {"dataset": self.dataset, "manifest": self.manifest, "recipe": self.recipe}
        return canonical_json({**names, "fields": [field.stored() for field in self.fields]})

    @classmethod
    def from_json(cls, text: str | bytes) -> "ShardHeader":
        value = json.loads(text)
        fields = tuple(Field.from_json(field) for field in value["fields"])
        return cls(value["dataset"], value["manifest"], value["recipe"], fields)


@dataclass(frozen=True, slots=True)
class Prepared:
    """One sample on its way into a shard."""

    key: str
    version: str
    arrays: Arrays
    checksum: int


class StoredArray(NamedTuple):
    """Where one array of a row lies in a shard's file, and what it is."""

    offset: int
    size_bytes: int
    shape: Sequence[Any]
    dtype: np.dtype[Any]

    def checked(self) -> Self:
        """The same. Raise ValueError if shape and size, which the file says for each row, disagree."""
        if math.prod(self.shape) * self.dtype.itemsize != self.size_bytes or min(self.shape, default=0) < 0:
            raise ValueError(f"{self.size_bytes} bytes are no {self.dtype}{list(self.shape)}")
        return self


class ShardReader(Protocol):
    """An open shard, which any thread may read, and a forked child."""

    header: ShardHeader
    checksums: npt.NDArray[np.uint64]

    def __len__(self) -> int: ...

    def row(self, row: int) -> Arrays:
        """The arrays of one row, as stored, in memory of their own. Raise ShardError or IndexError."""

    def stored(self, row: int) -> dict[str, StoredArray]:
        """Where the arrays of a row lie. Raise ShardError or IndexError."""

    def read(self, stored: StoredArray) -> npt.NDArray[Any]:
        """One of them, in memory of its own. Raise ShardError."""

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


def is_number(text: str) -> bool:
    """Whether it is as we write numbers of samples, and others write those of chunks."""
    return text.isascii() and text.isdecimal() and len(text) < 20 and (text == "0" or text[0] != "0")


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
    """Keys need not be UTF-8: what is not is kept by halves of characters."""
    return raw.decode("utf-8", "surrogateescape")


def key_hash(key: str) -> int:
    """A number for a key, whatever its version: draws and joins go by it."""
    return xxhash.xxh3_64_intdigest(encode_key(key))


def sample_tag(key: str, version: str) -> int:
    """A number for one version of one key."""
    return xxhash.xxh3_64_intdigest(encode_key(key) + b"\0" + version.encode())


def version_of(key: str, parts: Sequence[Part], at: Any, inputs: Sequence[Any]) -> str:
    """One whole object's own version, under its key; else a digest of all that makes the sample.

    Under another key the version would not say which object it is: two files may have one time and size.
    """
    is_whole = len(parts) == 1 and parts[0][1:] == (0, None) and parts[0].info.key == key
    if is_whole and at is None and not inputs:
        return parts[0].info.version
    told = [(part.info.key, part.info.version, part.start, part.stop) for part in parts]
    return digest_of(canonical_json([told, at, inputs]).encode())


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
