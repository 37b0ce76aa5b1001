"""The bytes of a .npy file as an array, not copied, and never anything that would be code."""

import io
import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stager.errors import SampleError

MAGIC: Final = b"\x93NUMPY"
HEAD_BYTES: Final = 1 << 16  # NumPy writes a few hundred at most
_HEADERS: Final = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def parse_npy(data: memoryview) -> npt.NDArray[Any]:
    """Raise SampleError if it is no .npy file, or not whole."""
    if bytes(data[: len(MAGIC)]) != MAGIC:
        raise SampleError("unknown_format", "it is no .npy file")
    head = io.BytesIO(data[:HEAD_BYTES])
    try:
        shape, is_by_column, dtype = _HEADERS[np.lib.format.read_magic(head)](head)
    except Exception as error:  # whatever NumPy's parser makes of a damaged header
        raise SampleError("corrupt", f"its header makes no sense: {type(error).__name__}") from None
    if dtype.hasobject:
        raise SampleError("unknown_format", "it holds Python objects")
    size, there = math.prod(shape) * dtype.itemsize, len(data) - head.tell()
    if size != there:
        reason = "truncated" if there < size else "corrupt"
        raise SampleError(reason, f"{dtype}{list(shape)} are {size} bytes, there are {there}")
    flat: npt.NDArray[Any] = np.frombuffer(data, dtype, math.prod(shape), head.tell())
    return flat.reshape(shape, order="F" if is_by_column else "C")
