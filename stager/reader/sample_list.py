"""Every sample that a data set ever had, by its number: an append-only list of immutable segments.

A *number* is for life: one version of one key has it, in every manifest, index and shard of this data set on
this machine, and nobody else ever gets it. A *place* is a row of a manifest, a *position* is in a subset.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stager.errors import CacheError
from stager.reader.sealed import read_sealed
from stager.reader.values import Numbers, ObjectInfo, decode_key

# Further columns (parts, inputs) come after these; readers skip what they do not know.
RECORD: Final = pa.schema(
    [
        ("key", pa.large_binary()),
        ("size", pa.int64()),
        ("version", pa.large_string()),
        ("key_hash", pa.uint64()),
        ("tag", pa.uint64()),
    ]
)
NUMBERS_MAX: Final = 0xFFFFFFFF  # 32 bits, and the last one says "gone"


class SampleList:
    """The list as it was when it was opened. Later segments only add to it."""

    def __init__(self, lineage: str, names: Sequence[str], batches: Sequence[pa.RecordBatch]) -> None:
        self.lineage, self.names = lineage, tuple(names)
        self._batches = list(batches) or [_empty()]
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

    def plus(self, name: str, batch: pa.RecordBatch) -> "SampleList":
        """The list with one more segment."""
        return SampleList(self.lineage, (*self.names, name), [*(b for b in self._batches if len(b)), batch])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def key(self, number: int) -> str:
        segment, row = self._find(number)
        return decode_key(self._batches[segment].column("key")[row].as_py())

    def tag(self, number: int) -> int:
        segment, row = self._find(number)
        return int(self._columns["tag"][segment][row])

    def infos(self, numbers: Sequence[int] | Numbers) -> list[ObjectInfo]:
        """The objects of these samples: all at once, for one by one costs ten times as much."""
        keys, sizes, versions = (
            self.column(name, numbers).to_pylist() for name in ("key", "size", "version")
        )
        return list(map(ObjectInfo, map(decode_key, keys), sizes, versions))

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


def read_segment(path: Path) -> pa.RecordBatch:
    table = read_sealed(path)
    if not set(RECORD.names) <= set(table.schema.names):
        raise CacheError(f"{path} has no records", hint="use one version of stager on both sides")
    (batch,) = table.to_batches() or [_empty()]
    return batch


def _empty() -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in RECORD], schema=RECORD)
