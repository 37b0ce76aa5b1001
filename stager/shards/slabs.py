"""Write a file in slabs, which the page cache keeps whole.

The page cache has the bytes of one write side by side, as far as they begin and end at a multiple of their
size. A slab of 2 MiB is one page to the CPU, where the file system can do that: staging is 5 to 12 % faster
than in slabs of 256 KiB (of 1 MiB: no difference).
"""

import os
import threading
from typing import Final

SLAB_BYTES: Final = 2 << 20
PARTS_MAX: Final = 1024  # that one system call takes


def write_at(fd: int, data: memoryview, at: int) -> None:
    """Write at an offset, in slabs. Raise OSError."""
    while data:
        written = os.pwrite(fd, data[: SLAB_BYTES - at % SLAB_BYTES], at)
        data, at = data[written:], at + written


class SlabWriter:
    """Rows side by side in a file, from any thread: a slab is written once all of it is there.

    Rows are not copied: they are kept until then, so whoever gives one must not change it any more.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._slabs: dict[int, _Slab] = {}  # by their offsets: begun, and not written yet
        self._lock = threading.Lock()

    def write(self, data: memoryview, at: int) -> None:
        """Take the bytes for an offset. Raise OSError if a slab that is whole now cannot be written."""
        while data:
            start = at - at % SLAB_BYTES
            part = data[: start + SLAB_BYTES - at]
            with self._lock:
                if start not in self._slabs:
                    self._slabs[start] = _Slab()
                slab = self._slabs[start]
                slab.parts[at] = part
                slab.lacking_bytes -= len(part)
                is_whole = not slab.lacking_bytes
                if is_whole:
                    del self._slabs[start]
            if is_whole:
                self._write(slab)
            data, at = data[len(part) :], at + len(part)

    def finish(self) -> None:
        """Write the slabs that are not whole: the last, for no more rows come."""
        for _, slab in sorted(self._slabs.items()):
            self._write(slab)
        self._slabs.clear()

    def _write(self, slab: "_Slab") -> None:
        """Write the parts of a slab, which lie side by side, at once."""
        at = min(slab.parts)
        parts = [slab.parts[offset] for offset in sorted(slab.parts)]
        for begin in range(0, len(parts), PARTS_MAX):
            some = parts[begin : begin + PARTS_MAX]
            size_bytes = sum(map(len, some))
            written = os.pwritev(self._fd, some, at)
            if written < size_bytes:  # a signal, or the disk is full: the next write tells
                write_at(self._fd, memoryview(b"".join(some))[written:], at + written)
            at += size_bytes


class _Slab:
    """Parts of rows by their offsets, and how many bytes are not there yet."""

    __slots__ = ("lacking_bytes", "parts")

    def __init__(self) -> None:
        self.lacking_bytes = SLAB_BYTES
        self.parts: dict[int, memoryview] = {}
