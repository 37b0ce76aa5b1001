"""Read an LMDB shard by its trailer.

LMDB writes the file and any LMDB reads it; we read it ourselves. Through LMDB the whole file is mapped, a
second open in one process is refused, and an environment must not be used after a fork.
"""

import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stager.reader.shards.file import ShardFile
from stager.reader.shards.opened import OpenShard
from stager.reader.shards.stored import stored_dtype
from stager.reader.values import Field, Starts, StoredArray


class LmdbReader(OpenShard):
    """An open LMDB shard."""

    def __init__(self, path: Path) -> None:
        file = ShardFile(path)
        super().__init__(file, file.size_bytes)

    def _take_parts(self) -> None:
        (offsets,) = self._parts
        # A wrong one is at the end of the file, where there is nothing to read.
        self._offsets: npt.NDArray[np.uint64] = np.minimum(
            np.frombuffer(self._file.read(*offsets), "<u8"), self._file.size_bytes, dtype=np.uint64
        )
        if len(self._offsets) != len(self):
            raise ValueError(f"{len(self._offsets)} values for {len(self)} rows")
        self._fields = [(field.name, RowField(field)) for field in self.header.fields]

    def starts(self, field: str) -> Starts | None:
        before = 0
        for name, stored in self._fields:
            if stored.row_bytes is None:
                return None
            if name == field:
                return self._offsets.astype(np.int64) + before
            before += stored.row_bytes
        raise KeyError(field)

    def _stored(self, row: int) -> Iterator[tuple[str, StoredArray]]:
        offset = self._offsets.item(row)
        for name, field in self._fields:
            stored = field.at(self._file, offset)
            offset = stored.offset + stored.size_bytes
            yield name, stored


class RowField:
    """How a field lies in a row's value: its bytes; if rows differ, sides (if raw) and size before them."""

    def __init__(self, field: Field) -> None:
        self.dtype = stored_dtype(field)
        self.shape = field.shape
        self.row_bytes = field.row_bytes
        self.sides = len(field.shape) if field.encoding == "raw" else 0
        self.prefix = struct.Struct(f"<{self.sides}IQ")

    def at(self, file: ShardFile, offset: int) -> StoredArray:
        """The array that begins, or whose prefix begins, at `offset`."""
        if self.row_bytes is not None:
            return StoredArray(offset, self.row_bytes, self.shape, self.dtype)
        *shape, size_bytes = self.prefix.unpack(file.read(offset, self.prefix.size))
        shape = shape if self.sides else [size_bytes]
        return StoredArray(offset + self.prefix.size, size_bytes, shape, self.dtype).checked()
