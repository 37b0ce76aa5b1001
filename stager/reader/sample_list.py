"""Every sample that a data set ever had, by its number: an append-only list of immutable segments.

A *number* is for life: one version of one key has it, in every manifest, index and shard of this data set on
this machine, and nobody else ever gets it. A *place* is a row of a manifest, a *position* is in a subset.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stager.errors import CacheError
from stager.reader.sealed import read_tables
from stager.reader.values import Numbers, ObjectInfo, Part, SampleInfo, decode_key

# Of samples that are not one whole object each, the columns of PARTS come after these, and the objects that
# parts refer to are a second table of the file.
RECORD: Final = pa.schema(
    [
        ("key", pa.large_binary()),
        ("size", pa.int64()),
        ("version", pa.large_string()),
        ("key_hash", pa.uint64()),
        ("tag", pa.uint64()),
    ]
)
PARTS: Final = pa.schema(
    [
        ("parts", pa.list_(pa.struct([("object", pa.int32()), ("start", pa.int64()), ("stop", pa.int64())]))),
        ("at", pa.large_string()),  # JSON
        ("inputs", pa.large_string()),  # JSON
    ]
)
OBJECT: Final = pa.schema([("key", pa.large_binary()), ("size", pa.int64()), ("version", pa.large_string())])
NUMBERS_MAX: Final = 0xFFFFFFFF  # 32 bits, and the last one says "gone"


class Segment(NamedTuple):
    """One file of a list: records, and the objects that their parts refer to, if they have any."""

    batch: pa.RecordBatch
    objects: pa.RecordBatch | None = None


class SampleList:
    """The list as it was when it was opened. Later segments only add to it."""

    def __init__(self, lineage: str, names: Sequence[str], segments: Sequence[Segment]) -> None:
        self.lineage, self.names = lineage, tuple(names)
        self._segments = list(segments)
        self._batches = [segment.batch for segment in segments] or [_empty()]
        self._ends = np.cumsum([len(batch) for batch in self._batches])
        self._columns: dict[str, list[npt.NDArray[Any]]] = {
            name: [batch.column(name).to_numpy(zero_copy_only=True) for batch in self._batches]
            for name in ("size", "key_hash", "tag")
        }

    @classmethod
    def open(cls, directory: Path, lineage: str, names: Iterable[str]) -> "SampleList":
        """Raise CacheError if a segment is missing or damaged."""
        names = tuple(names)
        return cls(lineage, names, [read_segment(directory / name) for name in names])

    def plus(self, name: str, segment: Segment) -> "SampleList":
        """The list with one more segment."""
        return SampleList(self.lineage, (*self.names, name), [*self._segments, segment])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def key(self, number: int) -> str:
        segment, row = self._find(number)
        return decode_key(self._batches[segment].column("key")[row].as_py())

    def tag(self, number: int) -> int:
        segment, row = self._find(number)
        return int(self._columns["tag"][segment][row])

    @property
    def is_plain(self) -> bool:
        """Whether each sample is one whole object, under the object's key."""
        return all(segment.objects is None for segment in self._segments)

    def infos(self, numbers: Sequence[int] | Numbers) -> list[SampleInfo]:
        """What these samples are made of: all at once, for one by one costs ten times as much."""
        if self.is_plain:
            return self._plain_infos(numbers)
        wanted = np.asarray(numbers, dtype=np.int64)
        segments = np.searchsorted(self._ends, wanted, side="right")
        found: dict[int, SampleInfo] = {}
        for segment in np.unique(segments).tolist():
            here = np.flatnonzero(segments == segment)
            rows = wanted[here] - self._start(segment)
            if self._segments[segment].objects is None:
                made = self._plain_infos(wanted[here])
            else:
                made = _infos_of(self._segments[segment], rows)
            found |= dict(zip(here.tolist(), made, strict=True))
        return [found[at] for at in range(len(wanted))]

    def _plain_infos(self, numbers: Sequence[int] | Numbers) -> list[SampleInfo]:
        keys, sizes, versions = (
            self.column(name, numbers).to_pylist() for name in ("key", "size", "version")
        )
        objects = map(ObjectInfo, map(decode_key, keys), sizes, versions)
        return [SampleInfo(info.key, info.version, (Part(info),)) for info in objects]

    def cost(self, numbers: Numbers) -> tuple[int, int]:
        """How many requests it takes to have these samples, and how many bytes."""
        if self.is_plain:
            return len(numbers), int(self.values("size", numbers).sum())
        parts = {part for info in self.infos(numbers) for part in info.parts}
        return len(parts), sum(part.size for part in parts)

    def mates(self, numbers: Numbers) -> Numbers:
        """Those, and all samples that share an object with one of them, in rising order."""
        if self.is_plain or not len(numbers):
            return np.unique(numbers)
        segments = np.searchsorted(self._ends, numbers, side="right")
        found = [numbers]
        for segment in np.unique(segments).tolist():
            if self._segments[segment].objects is not None:
                rows = numbers[segments == segment] - self._start(segment)
                found.append(_rows_with(self._segments[segment], rows) + self._start(segment))
        return np.unique(np.concatenate(found))

    def column(self, name: str, numbers: Sequence[int] | Numbers) -> Any:
        """A column as Arrow has it, of these samples in this order."""
        wanted = np.asarray(numbers, dtype=np.int64)
        if (run := self._run(wanted)) is not None:
            segment, rows = run
            return self._batches[segment].column(name).slice(rows.start, rows.stop - rows.start)
        # Segment by segment: to take from a chunked array copies all of it.
        segments = np.searchsorted(self._ends, wanted, side="right")
        order = np.argsort(segments, kind="stable")
        parts = [
            self._batches[segment]
            .column(name)
            .take(pa.array(wanted[segments == segment] - self._start(segment)))
            for segment in np.unique(segments).tolist()
        ]
        back = np.empty(len(order), dtype=np.int64)
        back[order] = np.arange(len(order))
        return parts[0] if len(parts) == 1 else pa.concat_arrays(parts).take(pa.array(back))

    def values(self, name: str, numbers: Numbers) -> npt.NDArray[Any]:
        """`size`, `key_hash` or `tag` of these samples. Of a run of one segment it is no copy."""
        columns = self._columns[name]
        if (run := self._run(numbers)) is not None:
            return columns[run[0]][run[1]]
        if len(columns) == 1:
            return np.asarray(columns[0][numbers])
        found = np.empty(len(numbers), columns[0].dtype)
        segments = np.searchsorted(self._ends, numbers, side="right")
        for segment in np.unique(segments).tolist():
            here = segments == segment
            found[here] = columns[segment][numbers[here] - self._start(segment)]
        return found

    def _run(self, numbers: npt.NDArray[Any]) -> tuple[int, slice] | None:
        """A segment and its rows, if these numbers are just those one after the other; else None."""
        if not len(numbers):
            return 0, slice(0, 0)
        first, last = int(numbers[0]), int(numbers[-1])
        if last - first != len(numbers) - 1 or (len(numbers) > 2 and not np.all(np.diff(numbers) == 1)):
            return None
        segment, row = self._find(first)
        return (segment, slice(row, row + len(numbers))) if last < self._ends[segment] else None

    def _find(self, number: int) -> tuple[int, int]:
        if not 0 <= number < len(self):
            raise IndexError(f"no sample has the number {number}")
        segment = int(np.searchsorted(self._ends, number, side="right"))
        return segment, number - self._start(segment)

    def _start(self, segment: int) -> int:
        return int(self._ends[segment - 1]) if segment else 0


def read_segment(path: Path) -> Segment:
    """Raise CacheError if it is missing, damaged, or no segment."""
    table, *objects = read_tables(path)
    if not set(RECORD.names) <= set(table.schema.names):
        raise CacheError(f"{path} has no records", hint="use one version of stager on both sides")
    (batch,) = table.to_batches() or [_empty()]
    return Segment(batch, objects[0].combine_chunks().to_batches()[0] if objects else None)


def _infos_of(segment: Segment, rows: Numbers) -> list[SampleInfo]:
    """What some rows of a segment are made of. Their objects are made once."""
    assert segment.objects is not None
    columns = [segment.batch.column(name).take(pa.array(rows)) for name in ("key", "version", *PARTS.names)]
    keys, versions, parts, places, inputs = (column.to_pylist() for column in columns)
    wanted = sorted({part["object"] for of_one in parts for part in of_one})
    told = segment.objects.take(pa.array(wanted, pa.int64())).to_pydict()
    objects = {
        number: ObjectInfo(decode_key(key), size, version)
        for number, key, size, version in zip(wanted, told["key"], told["size"], told["version"], strict=True)
    }
    return [
        SampleInfo(
            decode_key(key),
            version,
            tuple(_part(objects[part["object"]], part["start"], part["stop"]) for part in of_one),
            None if at is None else json.loads(at),
            () if given is None else tuple(json.loads(given)),
        )
        for key, version, of_one, at, given in zip(keys, versions, parts, places, inputs, strict=True)
    ]


def _part(info: ObjectInfo, start: int, stop: int) -> Part:
    return Part(info, start, None if stop < 0 else stop)


def _rows_with(segment: Segment, rows: Numbers) -> Numbers:
    """The rows of a segment that refer to an object which one of these refers to."""
    parts = segment.batch.column("parts")
    objects = parts.flatten().field("object").to_numpy()
    ends = parts.offsets.to_numpy()
    asked = [objects[ends[row] : ends[row + 1]] for row in rows.tolist()]
    shares = np.isin(objects, np.concatenate([objects[:0], *asked]))
    row_of = np.repeat(np.arange(len(parts)), np.diff(ends))
    return np.unique(row_of[shares]).astype(np.int64)


def _empty() -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in RECORD], schema=RECORD)
