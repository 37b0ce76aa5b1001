"""Batch buffers that are used again: a fresh 38 MB buffer a batch costs more in page faults than the copy."""

import mmap
import threading
import weakref
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Room = list[memoryview]  # of one row, as os.preadv wants it


class Buffer(NamedTuple):
    """An array to be filled, and the bytes of each of its rows. `rooms` may be kept only with the array."""

    array: npt.NDArray[Any]
    rooms: list[Room]


class BufferPool:
    """Gives out arrays of one shape and takes each back when nobody holds it, or a view of it, any more.

    So a batch may be kept as long as one likes: it is never written again while it is held.
    Its memory begins at a page: TensorFlow takes it as it is only from a multiple of 64 bytes on, or else
    copies it, slowly.
    """

    def __init__(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> None:
        self.shape, self.dtype = shape, np.dtype(dtype)
        self._count = int(np.prod(shape))
        self._free: list[tuple[mmap.mmap, list[Room]]] = []
        self._lock = threading.Lock()
        self.made = 0

    def take(self) -> Buffer:
        with self._lock:
            free = self._free.pop() if self._free else None
            self.made += free is None
        memory, rooms = free or self._make()
        # Its base is no array, so numpy's views of it refer to it, and not past it to the memory.
        flat = np.frombuffer(memory, self.dtype, self._count)
        weakref.finalize(flat, self._free.append, (memory, rooms))
        return Buffer(flat.reshape(self.shape), rooms)

    def _make(self) -> tuple[mmap.mmap, list[Room]]:
        row_bytes = self._count // max(self.shape[0], 1) * self.dtype.itemsize
        memory = _memory(self._count * self.dtype.itemsize)
        whole = memoryview(memory)
        return memory, [[whole[at * row_bytes :][:row_bytes]] for at in range(self.shape[0])]


def _memory(size_bytes: int) -> mmap.mmap:
    """Memory of our own, in huge pages if there are any: then the first touch costs a quarter."""
    memory = mmap.mmap(-1, max(size_bytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
