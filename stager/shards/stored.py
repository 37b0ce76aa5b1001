"""How one array of a sample lies in a shard, whatever the format."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stager.model import Field, Row


def stored_dtype(field: Field) -> np.dtype[Any]:
    """A raw array is stored as it is, an encoded one as its bytes."""
    return np.dtype(field.dtype if field.encoding == "raw" else np.uint8)


def stored_arrays(field: Field, rows: Sequence[Row]) -> list[npt.NDArray[Any]]:
    """One contiguous array a row. Raise ValueError if one is not what the field says."""
    dtype = stored_dtype(field)
    sides = field.shape if field.encoding == "raw" else (None,)
    arrays = [np.asarray(row.arrays[field.name], order="C") for row in rows]
    for row, array in zip(rows, arrays, strict=True):
        fits = len(array.shape) == len(sides) and all(
            side in (None, actual) for side, actual in zip(sides, array.shape, strict=True)
        )
        if array.dtype != dtype or not fits:
            raise ValueError(
                f"{row.key!r}: {field.name} is {array.dtype}{list(array.shape)}, not {dtype}{list(sides)}"
            )
    return arrays


def bytes_of(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """The bytes of a contiguous array, not copied."""
    return array.reshape(-1).view(np.uint8)


def view_array(
    data: Any, offset: int, size_bytes: int, shape: Sequence[int], dtype: np.dtype[Any]
) -> npt.NDArray[Any]:
    """A view of `size_bytes` of `data`. Raise ValueError if shape and size disagree or leave the data."""
    if offset < 0:  # numpy would take it, and read before the data
        raise ValueError(f"negative offset {offset}")
    try:
        array: npt.NDArray[Any] = np.ndarray(shape, dtype, data, offset)
    except TypeError as error:  # numpy's word for a buffer that is too small
        raise ValueError(str(error)) from None
    if array.nbytes != size_bytes:
        raise ValueError(f"{size_bytes} bytes are no {dtype}{list(shape)}")
    return array
