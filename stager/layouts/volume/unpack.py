"""What is packed as a whole becomes bytes that are read by ranges: gzip, and chunks that are large."""

import json
import zlib
from collections.abc import Iterator
from typing import Final

import numpy as np

from stager.errors import SampleError
from stager.layouts.volume.formats.array import DECODED_BYTES_MAX
from stager.layouts.volume.opener import decode
from stager.reader.values import Unpacked

PIECE_BYTES: Final = 4 << 20  # unpacked at once
MORE_BYTES_MAX: Final = 1 << 20  # behind what the header says: some writers leave a little there
CORRUPT: Final = "it cannot be unpacked"


def unpack(info: Unpacked, came: Iterator[memoryview]) -> Iterator[memoryview]:
    """The bytes of an object, in pieces, of those that come of its packed part. Raise SampleError."""
    if json.loads(info.by).get("format") == "gzip":
        yield from _gunzipped(info, came)
        return
    if info.size > DECODED_BYTES_MAX:
        raise SampleError("too_large", f"{info.size} bytes in one chunk are more than {DECODED_BYTES_MAX}")
    pieces = list(came)
    data = pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))
    array = np.ascontiguousarray(decode(info.by, info.at, data))
    if array.nbytes != info.size:
        raise SampleError("corrupt", f"{CORRUPT}: {array.nbytes} bytes and not {info.size}")
    yield memoryview(array.reshape(-1).view(np.uint8).data)


def _gunzipped(info: Unpacked, came: Iterator[memoryview]) -> Iterator[memoryview]:
    """To its end, for its checksum is there; but no more than its header says, and a little."""
    stream = zlib.decompressobj(31)
    left, has_any = info.size, False
    try:
        for piece in came:
            data: bytes | memoryview = piece
            made = b""
            while len(data) or len(made) == PIECE_BYTES:  # it may have more, of what it was given before
                if stream.eof:
                    if not bytes(data).strip(b"\0"):
                        break  # padding
                    stream = zlib.decompressobj(31)  # files may be several, one behind the other
                made, has_any = stream.decompress(data, PIECE_BYTES), True
                if made and left > 0:
                    yield memoryview(made)[:left]
                left -= len(made)
                if left < -MORE_BYTES_MAX:
                    raise SampleError("corrupt", f"{CORRUPT}: it has more than the {info.size} bytes it says")
                data = stream.unused_data if stream.eof else stream.unconsumed_tail
    except zlib.error as error:
        raise SampleError("corrupt", f"{CORRUPT}: {error}") from None
    if not has_any or not stream.eof or left > 0:
        there = info.size - max(left, 0)
        raise SampleError("truncated", f"it ends after {there} of {info.size} bytes, unpacked")
