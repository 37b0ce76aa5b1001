"""The bytes of .npy and .npz files as arrays, and never anything that would be code."""

import io
import math
import zipfile
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from stager.errors import SampleError

MAGIC: Final = b"\x93NUMPY"
NPZ_MAGIC: Final = b"PK\x03\x04"
MEMBER_BYTES_MAX: Final = 512 << 20  # of an archive, unpacked
HEAD_BYTES: Final = 1 << 16  # NumPy writes a few hundred at most
_HEADERS: Final = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def parse_array(data: memoryview, member: str = "") -> npt.NDArray[Any]:
    """A .npy file, or a member of a .npz file; without a name, its only one. Raise SampleError."""
    if bytes(data[: len(NPZ_MAGIC)]) != NPZ_MAGIC:
        return parse_npy(data)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            known = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            found = known.get(member) if member else next(iter(known.values()), None)
            if found is None or (not member and len(known) > 1):
                asked = f"no array {member!r}" if member else "no array of its own"
                raise SampleError("unknown_format", f"it has {asked}, but {', '.join(sorted(known)[:9])}")
            if found.file_size > MEMBER_BYTES_MAX:
                raise SampleError("too_large", f"{member}: {found.file_size} bytes, unpacked")
            unpacked = memoryview(archive.read(found))
    except SampleError:
        raise
    except Exception as error:  # whatever zipfile makes of a damaged archive
        raise SampleError("corrupt", f"its archive is invalid: {type(error).__name__}") from None
    return parse_npy(unpacked)


class NpyHeader(NamedTuple):
    """What a .npy file says of its array."""

    shape: tuple[int, ...]
    is_by_column: bool
    dtype: np.dtype[Any]
    stop: int  # where the array begins


def parse_npy_header(data: memoryview) -> NpyHeader:
    """The header of a .npy file, by its first bytes. Raise SampleError if it is none."""
    if bytes(data[: len(MAGIC)]) != MAGIC:
        raise SampleError("unknown_format", "it is not a .npy file")
    head = io.BytesIO(data[:HEAD_BYTES])
    try:
        shape, is_by_column, dtype = _HEADERS[np.lib.format.read_magic(head)](head)
    except Exception as error:  # whatever NumPy's parser makes of a damaged header
        raise SampleError("corrupt", f"its header is invalid: {type(error).__name__}") from None
    if dtype.hasobject:
        raise SampleError("unknown_format", "it holds Python objects")
    return NpyHeader(shape, is_by_column, dtype, head.tell())


def parse_npy(data: memoryview) -> npt.NDArray[Any]:
    """Raise SampleError if it is no .npy file, or not whole."""
    shape, is_by_column, dtype, begin = parse_npy_header(data)
    size, there = math.prod(shape) * dtype.itemsize, len(data) - begin
    if size != there:
        reason = "truncated" if there < size else "corrupt"
        raise SampleError(reason, f"{dtype}{list(shape)} are {size} bytes, there are {there}")
    flat: npt.NDArray[Any] = np.frombuffer(data, dtype, math.prod(shape), begin)
    return flat.reshape(shape, order="F" if is_by_column else "C")
