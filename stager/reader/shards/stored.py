"""How one array of a sample lies in a shard, whatever the format."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from stager.reader.shards.file import ShardFile
from stager.reader.values import Field, Prepared, Window


def stored_dtype(field: Field) -> np.dtype[Any]:
    """A raw array is stored as it is, an encoded one as its bytes."""
    return np.dtype(field.dtype if field.encoding == "raw" else np.uint8)


def stored_arrays(field: Field, rows: Sequence[Prepared]) -> list[npt.NDArray[Any]]:
    """One contiguous array a row. Raise ValueError if one is not what the field says."""
    dtype = stored_dtype(field)
    sides = field.shape if field.encoding == "raw" else (None,)
    arrays = [np.asarray(row.arrays[field.name], order="C") for row in rows]
    for row, array in zip(rows, arrays, strict=True):
        fits = array.shape == sides or (
            len(array.shape) == len(sides)
            and all(side in (None, actual) for side, actual in zip(sides, array.shape, strict=True))
        )
        if array.dtype != dtype or not fits:
            raise ValueError(
                f"{row.key!r}: {field.name} is {array.dtype}{list(array.shape)}, not {dtype}{list(sides)}"
            )
    return arrays


def bytes_of(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """The bytes of a contiguous array, not copied."""
    return array.reshape(-1).view(np.uint8)


class StoredArray(NamedTuple):
    """Where one array of a row lies in the file, and what it is."""

    offset: int
    size_bytes: int
    shape: Sequence[Any]
    dtype: np.dtype[Any]

    def checked(self) -> Self:
        """The same. Raise ValueError if shape and size, which the file says for each row, disagree."""
        if math.prod(self.shape) * self.dtype.itemsize != self.size_bytes or min(self.shape, default=0) < 0:
            raise ValueError(f"{self.size_bytes} bytes are no {self.dtype}{list(self.shape)}")
        return self

    def read(self, file: ShardFile) -> npt.NDArray[Any]:
        """The array, in memory of its own. Raise ShardError if the file does not have it."""
        file.check(self.offset, self.size_bytes)  # before there is room for it: a size may be exabytes
        array: npt.NDArray[Any] = np.empty(self.shape, self.dtype)
        file.read_into(bytes_of(array).data, self.offset)
        return array

    def read_part(self, file: ShardFile, window: Window) -> npt.NDArray[Any]:
        """A window of the array: only the bytes from its first to its last are read."""
        if not window:
            return self.read(file)
        starts = [side.start for side in window] + [0] * (len(self.shape) - len(window))
        sides = [side.stop - side.start for side in window] + [*self.shape[len(window) :]]
        steps = [math.prod(self.shape[at + 1 :]) for at in range(len(self.shape))]  # in elements
        first = sum(start * step for start, step in zip(starts, steps, strict=True))
        count = 1 + sum((side - 1) * step for side, step in zip(sides, steps, strict=True))
        if min(sides, default=1) < 1:
            return np.empty(sides, self.dtype)
        span = self._replace(offset=self.offset + first * self.dtype.itemsize, shape=(count,))
        flat = span._replace(size_bytes=count * self.dtype.itemsize).read(file)
        strides = [step * self.dtype.itemsize for step in steps]
        part: npt.NDArray[Any] = np.ndarray(sides, self.dtype, flat, strides=strides)
        return part
