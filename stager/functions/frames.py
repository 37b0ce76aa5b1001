"""What a worker and its child say to each other: a header of JSON, and arrays or bytes behind it."""

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stager.reader.values import Arrays

HEADER_BYTES_MAX: Final = 16 << 20
FRAME_BYTES_MAX: Final = 2 << 30  # of all arrays of one sample
_HEAD: Final = struct.Struct("<QQ")  # bytes of the header, and of what follows

Data = memoryview | npt.NDArray[Any]
ReadInto = Callable[[memoryview], int]  # some bytes, as many as there are; 0: the other side has gone


class FrameTooLarge(Exception):
    """It says that it has more bytes than we take."""


def frame_of(header: Mapping[str, Any], data: Sequence[Data] = ()) -> list[memoryview]:
    """The pieces of one frame, to be sent in this order."""
    arrays = [part if isinstance(part, memoryview) else np.asarray(part, order="C") for part in data]
    told = [None if isinstance(part, memoryview) else [part.dtype.str, part.shape] for part in arrays]
    raw = [part if isinstance(part, memoryview) else part.reshape(-1).view(np.uint8).data for part in arrays]
    sizes = [part.nbytes for part in raw]
    text = json.dumps({**header, "data": list(zip(sizes, told, strict=True))}).encode()
    return [memoryview(_HEAD.pack(len(text), sum(sizes)) + text), *(part for part in raw if part.nbytes)]


def read_frame(read: ReadInto, bytes_max: int = FRAME_BYTES_MAX) -> tuple[dict[str, Any], list[Data]] | None:
    """The next frame, its data in memory of its own; None: the other side has gone."""
    head = _read(read, _HEAD.size)
    if head is None:
        return None
    header_bytes, data_bytes = _HEAD.unpack(head)
    if header_bytes > min(HEADER_BYTES_MAX, bytes_max) or data_bytes > bytes_max:
        raise FrameTooLarge(f"{data_bytes} bytes are more than {bytes_max}")
    text, raw = _read(read, header_bytes), _read(read, data_bytes)
    if text is None or raw is None:
        return None
    header = json.loads(bytes(text))
    data: list[Data] = []
    at = 0
    for size, told in header.pop("data"):
        part = raw[at : at + size]
        data.append(part if told is None else np.frombuffer(part, np.dtype(told[0])).reshape(told[1]))
        at += size
    return header, data


def named(header: Mapping[str, Any], data: Sequence[Data]) -> Arrays:
    """The arrays of a sample, by their names."""
    return {name: np.asarray(part) for name, part in zip(header["names"], data, strict=True)}


def _read(read: ReadInto, size: int) -> memoryview | None:
    data = memoryview(bytearray(size))
    done = 0
    while done < size:
        more = read(data[done:])
        if not more:
            return None
        done += more
    return data
