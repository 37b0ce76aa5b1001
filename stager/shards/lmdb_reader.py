"""Read an LMDB shard by its trailer.

LMDB writes the file and any LMDB reads it; we map it ourselves. Through LMDB each open shard costs a
descriptor, a second open in one process is refused, and an environment must not be used after a fork.
"""

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


class LmdbReader(OpenShard):
    """An open LMDB shard."""

    def __init__(self, path: Path) -> None:
        data = map_file(path)
        super().__init__(path, data, len(data))
        self._data = data
        (offsets,) = self._parts
        self._offsets: npt.NDArray[np.uint64] = np.frombuffer(offsets, "<u8")
        self._fields = [(field.name, RowField(field)) for field in self.header.fields]

    def row(self, row: int) -> Arrays:
        arrays = {}
        offset = self._offsets.item(row)
        try:
            for name, field in self._fields:
                arrays[name], offset = field.view(self._data, offset)
        except (ValueError, OverflowError, struct.error) as error:
            raise ShardCorrupt(f"{self.path}: row {row}: {error}") from None
        return arrays

    def block(self, field: str) -> npt.NDArray[Any] | None:
        """None: rows are not side by side."""


class RowField:
    """How a field lies in a row's value: its bytes; if rows differ, sides (if raw) and size before them."""

    def __init__(self, field: Field) -> None:
        self.dtype = stored_dtype(field)
        self.shape: Any = field.shape
        self.row_bytes = field.row_bytes
        self.sides = len(field.shape) if field.encoding == "raw" else 0
        self.prefix = struct.Struct(f"<{self.sides}IQ")

    def view(self, data: memoryview, offset: int) -> tuple[npt.NDArray[Any], int]:
        """The array at `offset`, and the offset behind it."""
        if self.row_bytes is not None:
            array = view_array(data, offset, self.row_bytes, self.shape, self.dtype)
            return array, offset + self.row_bytes
        *shape, size_bytes = self.prefix.unpack_from(data, offset)
        offset += self.prefix.size
        array = view_array(data, offset, size_bytes, shape if self.sides else (size_bytes,), self.dtype)
        return array, offset + size_bytes
