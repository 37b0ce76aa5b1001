"""How one array of a sample lies in a shard, whatever the format."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stager.reader.shards.file import ShardFile
from stager.reader.values import Field, Prepared, StoredArray


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


def read_stored(file: ShardFile, stored: StoredArray) -> npt.NDArray[Any]:
    """The array, in memory of its own. Raise ShardError if the file does not have it."""
    file.check(stored.offset, stored.size_bytes)  # before there is room for it: a size may be exabytes
    array: npt.NDArray[Any] = np.empty(stored.shape, stored.dtype)
    file.read_into(bytes_of(array).data, stored.offset)
    return array
