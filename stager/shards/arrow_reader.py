"""Read an Arrow shard: fixed-size fields lie there as one block."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stager.errors import ShardCorrupt
from stager.model import Arrays, Field
from stager.shards.mapping import map_file
from stager.shards.reader import OpenShard
from stager.shards.stored import stored_dtype, view_array

_END = struct.Struct("<i6s")  # the footer's size, "ARROW1"


class ArrowReader(OpenShard):
    """An open Arrow shard."""

    def __init__(self, path: Path) -> None:
        mapped = map_file(path)
        super().__init__(path, mapped, find_footer(mapped))
        self._blocks: Arrays = {}
        self._variable: dict[str, _Variable] = {}
        parts = iter(self._parts)
        for field in self.header.fields:
            if field.row_bytes is not None:
                shape: Any = (len(self), *field.shape)
                self._blocks[field.name] = np.ndarray(shape, field.dtype, next(parts))
            else:
                offsets, data = next(parts), next(parts)
                sides = next(parts) if field.encoding == "raw" else None
                self._variable[field.name] = _Variable(field, offsets, data, sides)

    def row(self, row: int) -> Arrays:
        # The ellipsis keeps a field of no sides an array.
        arrays = {name: block[row, ...] for name, block in self._blocks.items()}
        try:
            for name, column in self._variable.items():
                arrays[name] = column[row]
        except ValueError as error:
            raise ShardCorrupt(f"{self.path}: row {row}: {error}") from None
        return arrays

    def block(self, field: str) -> npt.NDArray[Any] | None:
        return self._blocks.get(field)


class _Variable:
    """A field whose rows differ in size: offsets into one run of bytes, and a shape each if raw."""

    def __init__(self, field: Field, offsets: memoryview, data: memoryview, sides: memoryview | None) -> None:
        self.dtype = stored_dtype(field)
        self.offsets: npt.NDArray[np.int64] = np.frombuffer(offsets, "<i8")
        self.data = data
        self.shapes: npt.NDArray[np.int32] | None = None
        if sides is not None:
            self.shapes = np.frombuffer(sides, "<i4").reshape(-1, len(field.shape))

    def __getitem__(self, row: int) -> npt.NDArray[Any]:
        start, end = self.offsets[row : row + 2].tolist()
        shape = (end - start,) if self.shapes is None else self.shapes[row].tolist()
        return view_array(self.data, start, end - start, shape, self.dtype)


def find_footer(data: memoryview) -> int:
    """Where an Arrow file's footer begins, by its own word: right behind the trailer."""
    if len(data) < _END.size:
        return 0
    footer_bytes, _ = _END.unpack_from(data, len(data) - _END.size)
    return len(data) - _END.size - int(footer_bytes)
