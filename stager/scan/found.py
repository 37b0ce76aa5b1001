"""What a scan finds: samples with labels, parts and attributes, as columns, before they have numbers."""

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stager.interfaces import Entry, Folders, Layout, Listing
from stager.reader.samples.segments import OBJECT, PARTS
from stager.reader.values import (
    Attribute,
    ObjectInfo,
    canonical_json,
    digest_of,
    encode_key,
    key_hash,
    sample_tag,
    version_of,
)

CHUNK_ENTRIES: Final = 16_384  # entries held as Python values at once
PROGRESS_ENTRIES: Final = 1_000

# What is found of each sample, before it has a number.
SCHEMA: Final = pa.schema(
    [
        ("key", pa.large_binary()),
        ("size", pa.int64()),
        ("version", pa.large_string()),
        ("label", pa.int32()),
        ("split", pa.int8()),
        ("key_hash", pa.uint64()),
        ("tag", pa.uint64()),
    ]
)
_TYPES: Final = {
    "bool": pa.bool_(),
    "int64": pa.int64(),
    "float64": pa.float64(),
    "string": pa.large_string(),
}


@dataclass(frozen=True, slots=True)
class FoundSamples:
    """Samples in the manifest's order: by split, class and key. `table` has SCHEMA's columns."""

    table: pa.Table
    classes: Sequence[str]
    splits: Sequence[str]
    attributes: Sequence[Attribute] = ()
    values: Sequence[pa.Array] = ()  # a column for each attribute
    parts: pa.Table | None = None  # as PARTS has it; None: each sample is one whole object
    objects: pa.Table | None = None  # that the parts refer to
    table_rows: pa.Array | None = None  # where the row of each sample stands in a table
    is_whole: bool = False  # nothing that the layout found is missing: a later scan may take of it

    def digest(self) -> str:
        """The manifest's: the same on every machine."""
        about: list[Any] = [self.classes, self.splits]
        if self.attributes:
            about += [self.attributes, [column.to_pylist() for column in self.values]]
        if self.table_rows is not None:
            about.append(self.table_rows.to_pylist())
        return digest_of(canonical_json(about).encode(), *content_of(self.table))


def find(layout: Layout, listing: Listing, progress: Callable[[int], None]) -> FoundSamples:
    """Have a layout name the samples of a source."""
    columns = Columns(layout)
    columns.take(layout.entries(listing), progress)
    return columns.found()


class _Column:
    """A column that grows in place: Arrow's chunks would have to be held twice to become one."""

    def __init__(self, field: pa.Field) -> None:
        self._type = field.type
        self.data = bytearray()
        self.ends = bytearray(8) if field.type in (pa.large_binary(), pa.large_string()) else None

    def add(self, values: Sequence[Any]) -> None:
        if self.ends is None:
            self.data += np.asarray(values, self._type.to_pandas_dtype()).tobytes()
        else:
            ends = np.cumsum([len(value) for value in values], dtype=np.int64) + len(self.data)
            self.ends += ends.tobytes()
            self.data += b"".join(values)

    def whole(self) -> pa.Array:
        """The column as Arrow has it, not copied. It grows no more."""
        width = 8 if self.ends is not None else self._type.byte_width
        count = (len(self.data) if self.ends is None else len(self.ends) - 8) // width
        buffers = [self.data] if self.ends is None else [self.ends, self.data]
        return pa.Array.from_buffers(self._type, count, [None, *map(pa.py_buffer, buffers)])


class Columns:
    """All columns of the samples of one layout."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.paths: dict[Folders, int] = {}
        self._columns = {field.name: _Column(field) for field in SCHEMA}
        self._parts = None if layout.is_plain else _Parts()
        self._values: list[list[Any]] = []
        self._table_rows: list[str] = []  # empty, if no entry is a row of a table

    def take(self, entries: Iterable[Entry], progress: Callable[[int], None]) -> None:
        """Add all entries, and tell now and then how many there are so far."""
        chunk: list[Entry] = []
        seen = 0
        for entry in entries:
            chunk.append(entry)
            seen += 1
            if seen % PROGRESS_ENTRIES == 0:
                progress(seen)
            if len(chunk) == CHUNK_ENTRIES:
                self._append(chunk)
                chunk.clear()
        self._append(chunk)
        progress(seen)

    def _append(self, chunk: Sequence[Entry]) -> None:
        """Add entries. Their `label` is, for now, a number for the entry's path."""
        versions = [version_of(entry.key, entry.parts, entry.at, entry.inputs) for entry in chunk]
        values: dict[str, Sequence[Any]] = {
            "key": [encode_key(entry.key) for entry in chunk],
            "size": [sum(part.size for part in entry.parts) for entry in chunk],
            "version": [version.encode() for version in versions],
            "label": [self.paths.setdefault(entry.path, len(self.paths)) for entry in chunk],
            "split": [0] * len(chunk),
            "key_hash": [key_hash(entry.key) for entry in chunk],
            "tag": [sample_tag(entry.key, version) for entry, version in zip(chunk, versions, strict=True)],
        }
        for name, column in self._columns.items():
            column.add(values[name])
        self._values = self._values or [[] for _ in self._layout.attributes]
        for number, of_one in enumerate(self._values):
            of_one += [entry.values[number] for entry in chunk]
        if self._parts is not None:
            self._parts.append(chunk)
        if self._table_rows or any(entry.table_row for entry in chunk):
            self._table_rows += [entry.table_row for entry in chunk]

    def whole(self) -> pa.Table:
        """All rows as they came; the label is a number of `paths`."""
        return pa.table([self._columns.pop(name).whole() for name in SCHEMA.names], schema=SCHEMA)

    def found(self) -> FoundSamples:
        """Turn path numbers into labels and splits, and sort by split, class and key, as ImageFolder does."""
        classes, splits, numbers = name_paths(self._layout, self.paths)
        at = self._columns["label"].whole().to_numpy()
        labels, split = (of_path[at] for of_path in numbers)
        order = np.lexsort((labels, split))  # stable, and the entries came in their order
        order = order[int((labels < 0).sum()) :]  # those of a path that the layout does not name come first
        is_sorted = len(order) == len(at) and not np.any(np.diff(order) < 0)  # a folder a class: by key, too
        place = None if is_sorted else pa.array(order)
        whole = []
        for name in SCHEMA.names:  # one by one: a million samples are not held twice
            column = self._columns.pop(name).whole()
            column = (
                pa.array({"label": labels, "split": split}[name]) if name in ("label", "split") else column
            )
            whole.append(_taken(column, place))
        attributes = self._layout.attributes
        values = [
            _taken(pa.array(of_one, _TYPES[attribute.type]), place)
            for attribute, of_one in zip(attributes, self._values, strict=True)
        ]
        table = pa.table(whole, schema=SCHEMA)
        if self._parts is None:
            return FoundSamples(table, classes, splits, attributes, values, is_whole=len(table) == len(at))
        parts, objects = self._parts.tables()
        where = _taken(pa.array(self._table_rows, pa.large_string()), place) if self._table_rows else None
        return FoundSamples(table, classes, splits, attributes, values, _taken(parts, place), objects, where)


def name_paths(
    layout: Layout, paths: Iterable[Folders]
) -> tuple[list[str], list[str], tuple[npt.NDArray[np.int32], npt.NDArray[np.int8]]]:
    """The classes and splits that a layout makes of paths; and the label and the split of each, or -1."""
    paths = list(paths)
    said = layout.label(paths)
    classes = sorted({name for _, name in said.values()})
    splits = sorted({split for split, _ in said.values()})
    class_of = {name: number for number, name in enumerate(classes)}
    split_of = {name: number for number, name in enumerate(splits)}
    labels = [class_of[said[path][1]] if path in said else -1 for path in paths]
    split = [split_of[said[path][0]] if path in said else -1 for path in paths]
    return classes, splits, (np.asarray(labels, dtype=np.int32), np.asarray(split, dtype=np.int8))


class _Parts:
    """The parts of samples, the place inside them, and their inputs. An object stands once."""

    def __init__(self) -> None:
        self._objects: dict[str, tuple[int, ObjectInfo]] = {}
        self._object, self._start, self._stop = array("i"), array("q"), array("q")
        self._ends = array("i", [0])
        self._at: list[str | None] = []
        self._inputs: list[str | None] = []

    def append(self, chunk: Sequence[Entry]) -> None:
        for entry in chunk:
            for info, start, stop in entry.parts:
                number, _ = self._objects.setdefault(info.key, (len(self._objects), info))
                self._object.append(number)
                self._start.append(start)
                self._stop.append(-1 if stop is None else stop)
            self._ends.append(len(self._object))
            self._at.append(None if entry.at is None else canonical_json(entry.at))
            self._inputs.append(canonical_json(entry.inputs) if entry.inputs else None)

    def tables(self) -> tuple[pa.Table, pa.Table]:
        """The parts of each sample, and the objects that they refer to."""
        told = [np.asarray(values) for values in (self._object, self._start, self._stop)]
        struct = pa.StructArray.from_arrays(
            [pa.array(of_one) for of_one in told], ["object", "start", "stop"]
        )
        parts = pa.ListArray.from_arrays(pa.array(np.asarray(self._ends, np.int32)), struct)
        texts = [pa.array(of_one, pa.large_string()) for of_one in (self._at, self._inputs)]
        infos = [info for _, info in self._objects.values()]
        columns = [
            pa.array([encode_key(info.key) for info in infos], pa.large_binary()),
            pa.array([info.size for info in infos], pa.int64()),
            pa.array([info.version for info in infos], pa.large_string()),
        ]
        return pa.table([parts, *texts], schema=PARTS), pa.table(columns, schema=OBJECT)


def _taken(column: Any, places: pa.Array | None) -> Any:
    return column if places is None else column.take(places)


def content_of(table: pa.Table) -> Iterator[memoryview]:
    """The bytes that the digest covers: keys, sizes, versions, labels and splits; not Arrow's padding."""
    for name in ("key", "size", "version", "label", "split"):
        for chunk in table[name].chunks:
            if name in ("key", "version"):
                offsets = np.frombuffer(chunk.buffers()[1], dtype="<i8")[: len(chunk) + 1]
                yield offsets.data.cast("B")
                yield memoryview(chunk.buffers()[2] or b"")[: int(offsets[-1])]
            else:
                yield chunk.to_numpy().data.cast("B")
