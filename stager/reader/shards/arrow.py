"""Read an Arrow shard: the rows of a fixed-size field lie there side by side."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stager.reader.shards.file import ShardFile
from stager.reader.shards.opened import OpenShard
from stager.reader.shards.stored import stored_dtype
from stager.reader.shards.trailer import Place
from stager.reader.values import Field, Starts, StoredArray

_END = struct.Struct("<i6s")  # the footer's size, "ARROW1"


class ArrowReader(OpenShard):
    """An open Arrow shard."""

    def __init__(self, path: Path) -> None:
        file = ShardFile(path)
        super().__init__(file, find_footer(file))

    def _take_parts(self) -> None:
        self._columns: dict[str, _Fixed | _Variable] = {}
        places, read = self._parts.copy(), self._file.read
        for field in self.header.fields:
            if field.row_bytes is not None:
                self._columns[field.name] = _Fixed(field, places.pop(0), len(self))
            else:
                offsets, data = read(*places.pop(0)), places.pop(0)
                sides = read(*places.pop(0)) if field.encoding == "raw" else None
                self._columns[field.name] = _Variable(field, offsets, data, sides, len(self))

    def starts(self, field: str) -> Starts | None:
        column = self._columns[field]
        return column.starts if isinstance(column, _Fixed) else None

    def _stored(self, row: int) -> Iterator[tuple[str, StoredArray]]:
        return ((name, column[row]) for name, column in self._columns.items())


class _Fixed:
    """A field whose rows are all of one size."""

    def __init__(self, field: Field, place: Place, rows: int) -> None:
        self.dtype, self.shape, self.row_bytes = stored_dtype(field), field.shape, field.row_bytes or 0
        self._start, self._rows = place[0], rows

    @property
    def starts(self) -> Starts:
        return self._start + self.row_bytes * np.arange(self._rows)

    def __getitem__(self, row: int) -> StoredArray:
        if row >= self._rows:
            raise IndexError(row)
        return StoredArray(self._start + row * self.row_bytes, self.row_bytes, self.shape, self.dtype)


class _Variable:
    """A field whose rows differ in size: offsets into one run of bytes, and a shape each if raw."""

    def __init__(self, field: Field, offsets: bytes, data: Place, sides: bytes | None, rows: int) -> None:
        self.dtype = stored_dtype(field)
        self.offsets: npt.NDArray[np.int64] = np.frombuffer(offsets, "<i8")
        self.starts_at, self.size_bytes = data
        self.shapes: npt.NDArray[np.int32] | None = None
        if sides is not None:
            self.shapes = np.frombuffer(sides, "<i4").reshape(rows, len(field.shape))
        if len(self.offsets) != rows + 1:
            raise ValueError(f"{len(self.offsets)} offsets for {rows} rows")

    def __getitem__(self, row: int) -> StoredArray:
        start, end = self.offsets[row : row + 2].tolist()
        if not 0 <= start <= end <= self.size_bytes:
            raise ValueError(f"bytes {start} to {end} are outside of the field's {self.size_bytes}")
        shape: Any = (end - start,) if self.shapes is None else self.shapes[row].tolist()
        return StoredArray(self.starts_at + start, end - start, shape, self.dtype).checked()


def find_footer(file: ShardFile) -> int:
    """Where an Arrow file's footer begins, by its own word: right behind the trailer."""
    if file.size_bytes < _END.size:
        return 0
    footer_bytes, _ = _END.unpack(file.read(file.size_bytes - _END.size, _END.size))
    return file.size_bytes - _END.size - int(footer_bytes)
