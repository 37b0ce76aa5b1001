"""An object as a file that is read by ranges: a library may look around in it, and most is never read."""

import io
from collections.abc import Callable
from typing import Any, Final

from stager.errors import SampleError
from stager.reader.values import ObjectInfo, Part

READ_BYTES_MIN: Final = 16 << 10
READ_BYTES_FIRST: Final = 64 << 10
READ_BYTES_MAX: Final = 4 << 20
ASKED_BYTES_MAX: Final = 64 << 20  # no header nor footer is larger; who asks for more believes in damage


def next_read(read_bytes: int, skipped_bytes: int) -> int:
    """How much to read at once, after so much of the object was passed over.

    Where what is wanted lies close together, it grows until the object is streamed; else it shrinks.
    """
    if 0 <= skipped_bytes <= read_bytes:
        return min(2 * read_bytes, READ_BYTES_MAX)
    return max(read_bytes // 4, READ_BYTES_MIN)


class SeekableFile(io.RawIOBase):
    """A file that has a position. How its bytes are read, each says itself."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes, self._position = size_bytes, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = max(0, offset + {0: 0, 1: self._position, 2: self._size_bytes}[whence])
        return self._position


class RangedFile(SeekableFile):
    """It reads more than it is asked for, and keeps what it read last."""

    def __init__(self, info: ObjectInfo, read: Callable[[Part], memoryview]) -> None:
        super().__init__(info.size)
        self._info, self._read = info, read
        self._start, self._held = 0, memoryview(b"")
        self._read_bytes = READ_BYTES_FIRST // 2

    def read(self, size: int = -1) -> bytes:
        left = max(self._info.size - self._position, 0)
        wanted = left if size < 0 else min(size, left)
        if wanted > ASKED_BYTES_MAX:
            raise SampleError("too_large", f"{wanted} bytes at once: its headers cannot be true")
        start = self._position - self._start
        if not 0 <= start <= start + wanted <= len(self._held):
            self._fetch(wanted)
            start = 0
        self._position += wanted
        return bytes(self._held[start : start + wanted])

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _fetch(self, wanted: int) -> None:
        skipped = self._position - self._start - len(self._held)
        self._read_bytes = next_read(self._read_bytes, skipped)
        stop = min(self._position + max(wanted, self._read_bytes), self._info.size)
        self._held = self._read(Part(self._info, self._position, stop))
        self._start = self._position
