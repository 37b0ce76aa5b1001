"""A scan becomes a manifest: labels, order, digest, and for each sample its number in the data set's records.

All of it happens in a worker: the loop that adopts a scan only renames files.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stager.errors import CacheError
from stager.interfaces import Entry, Layout
from stager.reader.manifest import MANIFEST_FORMAT, PLACE, Manifest
from stager.reader.sample_list import NUMBERS_MAX, RECORD, SampleList
from stager.reader.sealed import write_sealed
from stager.reader.values import (
    Numbers,
    ObjectInfo,
    canonical_json,
    digest_of,
    encode_key,
    key_hash,
    sample_tag,
)

CHUNK_ENTRIES: Final = 16_384  # entries held as Python values at once
PROGRESS_ENTRIES: Final = 1_000

# What a scan finds of each object, before its samples have numbers.
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


class Column:
    """A column that grows in place: Arrow's chunks would have to be held twice to become one."""

    def __init__(self, field: pa.Field) -> None:
        self._type = field.type
        self.data = bytearray()
        self.ends = bytearray(8) if field.type in (pa.large_binary(), pa.large_string()) else None

    def whole(self) -> pa.Array:
        """The column as Arrow has it, not copied. It grows no more."""
        width = 8 if self.ends is not None else self._type.byte_width
        count = (len(self.data) if self.ends is None else len(self.ends) - 8) // width
        buffers = [self.data] if self.ends is None else [self.ends, self.data]
        return pa.Array.from_buffers(self._type, count, [None, *map(pa.py_buffer, buffers)])


Columns = dict[str, Column]  # by name


@dataclass(frozen=True, slots=True)
class Scan:
    """What a scan wrote: a manifest, and beside it whatever the data set's records do not have yet."""

    path: Path  # of the manifest

    @property
    def segment(self) -> Path:
        """The records that are new. Not there: none is."""
        return self.path.with_suffix(".samples")

    @property
    def joins(self) -> Path:
        """How the scan's numbers came to be: `Joins`."""
        return self.path.with_suffix(".npz")

    def read_joins(self) -> "Joins":
        with np.load(self.joins) as found:
            compared = str(found["lineage"]), int(found["count"])
            return Joins(*compared, found["replaced"], found["moved"], int(found["samples"]))

    def unlink(self) -> None:
        for path in (self.path, self.segment, self.joins):
            path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class Joins:
    """The list of samples that a scan was compared with, and what became of its numbers."""

    lineage: str
    count: int  # of its samples
    replaced: npt.NDArray[np.int64]  # numbers before and now, of keys that have another version
    moved: Numbers  # the number that each has now, or -1, if the list is made anew; else empty
    samples: int  # that the scan found


@dataclass(frozen=True, slots=True)
class Known:
    """What a scan is compared with: the data set's records and its newest manifest.

    `relist`: the list has outgrown what is live. The scan's samples get new numbers, from 0, and `moved` says
    for each old number which one it has now, or -1.
    """

    records: SampleList
    newest: Manifest | None = None
    relist: bool = False


NOTHING_KNOWN: Final = Known(SampleList("", (), ()))


def write_manifest(
    path: Path,
    layout: Layout,
    objects: Iterable[ObjectInfo],
    known: Known = NOTHING_KNOWN,
    progress: Callable[[int], None] = lambda scanned: None,
) -> str:
    """Write a `Scan` of these objects, which come in key order; return the manifest's digest."""
    paths: dict[tuple[str, ...], int] = {}
    columns = {field.name: Column(field) for field in SCHEMA}
    chunk: list[Entry] = []
    seen = 0
    for entry in layout.entries(objects):
        chunk.append(entry)
        seen += 1
        if seen % PROGRESS_ENTRIES == 0:
            progress(seen)
        if len(chunk) == CHUNK_ENTRIES:
            _append(columns, chunk, paths)
            chunk.clear()
    _append(columns, chunk, paths)
    chunk.clear()
    progress(seen)
    table, classes, splits = _labelled(columns, paths, layout)
    return write_scan(Scan(path), table, classes, splits, known)


def write_scan(
    scan: Scan, table: pa.Table, classes: Sequence[str], splits: Sequence[str], known: Known
) -> str:
    """Give the samples of a table, as SCHEMA has it, their numbers, and write what that makes."""
    digest = digest_of(canonical_json([classes, splits]).encode(), *content_of(table))
    found = match(table, known.records)
    is_new = np.ones(len(found), np.bool_) if known.relist else found < 0
    first = 0 if known.relist else len(known.records)
    numbers = np.where(is_new, first + np.cumsum(is_new) - 1, found)
    if first + int(is_new.sum()) >= NUMBERS_MAX:
        raise CacheError("the data set has had too many samples", hint="evict it, and prefetch it again")
    moved = np.full(len(known.records) if known.relist else 0, -1, dtype=np.int64)
    if known.relist:
        moved[found[found >= 0]] = numbers[found >= 0]
    np.savez(
        scan.joins,
        lineage=np.asarray(known.records.lineage),
        count=len(known.records),
        replaced=_replaced(table, found < 0, numbers, known.newest),
        moved=moved,
        samples=len(table),
    )
    if is_new.any():
        added = table.select(RECORD.names)
        write_sealed(scan.segment, added if is_new.all() else added.filter(pa.array(is_new)))
    about = {"format": MANIFEST_FORMAT, "digest": digest, "classes": classes, "splits": splits}
    columns = [pa.array(numbers, pa.uint32()), table["label"], table["split"]]
    placed = pa.table(columns, schema=PLACE.with_metadata({"stager": canonical_json(about)}))
    write_sealed(scan.path, placed)
    return digest


def match(table: pa.Table, records: SampleList) -> Numbers:
    """The number of each sample that the records have, by tag and key and version; else -1."""
    everyone = np.arange(len(records))
    found = join(table["tag"].to_numpy(), records.values("tag", everyone))
    places = np.flatnonzero(found >= 0)
    for name in ("key", "version"):
        ours = (
            table[name].combine_chunks() if len(places) == len(found) else table[name].take(pa.array(places))
        )
        same = pc.equal(ours, records.column(name, found[places])).to_numpy(zero_copy_only=False)
        found[places[~same]] = -1
        places = places[same]
    return found


def _replaced(
    table: pa.Table, is_new: npt.NDArray[np.bool_], numbers: Numbers, newest: Manifest | None
) -> npt.NDArray[np.int64]:
    """Numbers before and now, two rows, of keys that the newest manifest has in another version."""
    if newest is None or not is_new.any():
        return np.zeros((2, 0), dtype=np.int64)
    places = join(table["key_hash"].to_numpy()[is_new], newest.key_hashes)
    return np.stack([newest.numbers[places[places >= 0]], numbers[is_new][places >= 0]])


def join(ours: npt.NDArray[np.uint64], others: npt.NDArray[np.uint64]) -> Numbers:
    """For each of ours, which are all different, its place among the others; -1: it is not there.

    Two scans of one source are mostly alike: what they begin and end with needs no search. For the rest,
    both are sorted: a million look-ups all over a sorted array take seconds, in rising order a moment.
    """
    shortest = min(len(ours), len(others))
    head = _alike(ours[:shortest], others[:shortest])
    tail = _alike(ours[len(ours) - shortest + head :][::-1], others[len(others) - shortest + head :][::-1])
    found = np.full(len(ours), -1, dtype=np.int64)
    found[:head] = np.arange(head)
    found[len(ours) - tail :] = np.arange(len(others) - tail, len(others))
    ours, others = ours[head : len(ours) - tail], others[head : len(others) - tail]
    if len(ours) and len(others):
        order, other_order = np.argsort(ours), np.argsort(others)
        ours, others = ours[order], others[other_order]
        places = np.searchsorted(others, ours).clip(max=len(others) - 1)
        found[head + order] = np.where(others[places] == ours, head + other_order[places], -1)
    return found


def _alike(ours: npt.NDArray[np.uint64], others: npt.NDArray[np.uint64]) -> int:
    """How many of the first are the same in both, which are equally long."""
    differ = ours != others
    return int(np.argmax(differ)) if differ.any() else len(differ)


def _append(columns: Columns, chunk: list[Entry], paths: dict[tuple[str, ...], int]) -> None:
    """Add entries to the columns. Their `label` is, for now, a number for the entry's path."""
    infos = [entry.info for entry in chunk]
    values: dict[str, Sequence[Any]] = {
        "key": [encode_key(info.key) for info in infos],
        "size": [info.size for info in infos],
        "version": [info.version.encode() for info in infos],
        "label": [paths.setdefault(entry.path, len(paths)) for entry in chunk],
        "split": [0] * len(chunk),
        "key_hash": [key_hash(info.key) for info in infos],
        "tag": [sample_tag(info.key, info.version) for info in infos],
    }
    for name, column in columns.items():
        if column.ends is None:
            column.data += np.asarray(values[name], SCHEMA.field(name).type.to_pandas_dtype()).tobytes()
        else:
            ends = np.cumsum([len(value) for value in values[name]], dtype=np.int64) + len(column.data)
            column.ends += ends.tobytes()
            column.data += b"".join(values[name])


def _labelled(
    columns: Columns, paths: dict[tuple[str, ...], int], layout: Layout
) -> tuple[pa.Table, list[str], list[str]]:
    """Turn path numbers into labels and splits, and sort by split, class and key (which ImageFolder does)."""
    said = layout.label(paths)
    classes = sorted({name for _, name in said.values()})
    splits = sorted({split for split, _ in said.values()})
    class_of = {name: number for number, name in enumerate(classes)}
    split_of = {name: number for number, name in enumerate(splits)}
    numbers = [
        (class_of[said[path][1]], split_of[said[path][0]]) if path in said else (-1, -1) for path in paths
    ]
    label_of_path = np.asarray([label for label, _ in numbers], dtype=np.int32)
    split_of_path = np.asarray([split for _, split in numbers], dtype=np.int8)
    at = columns["label"].whole().to_numpy()
    labels, split = label_of_path[at], split_of_path[at]
    order = np.lexsort((labels, split))  # stable, and the objects came in key order
    order = order[int((labels < 0).sum()) :]  # those of a path that the layout does not name come first
    is_sorted = len(order) == len(at) and not np.any(np.diff(order) < 0)  # one folder a class: by key, too
    whole = []
    for name in SCHEMA.names:  # one by one: a million samples are not held twice
        column = columns.pop(name).whole()
        column = pa.array({"label": labels, "split": split}[name]) if name in ("label", "split") else column
        whole.append(column if is_sorted else column.take(pa.array(order)))
    return pa.table(whole, schema=SCHEMA), classes, splits


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
