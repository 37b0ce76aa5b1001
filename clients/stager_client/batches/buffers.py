"""Batch buffers that are used again: a fresh 38 MB buffer a batch costs more in page faults than the copy."""

import mmap
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

Pin = Callable[[mmap.mmap], None]  # has a device copy from this memory by itself
KEPT: Final = 8  # buffers of a pool that nobody holds


class BufferPool:
    """Gives out arrays of one shape and takes each back when nobody holds it, or a view of it, any more.

    So a batch may be kept as long as one likes: it is never written again while it is held.
    Its memory begins at a page: TensorFlow takes it as it is only from a multiple of ALIGNED_BYTES on, or
    else copies it, slowly. `pin` is called once for each piece of memory that is new.
    """

    ALIGNED_BYTES: ClassVar[int] = 64

    def __init__(self, shape: tuple[int, ...], dtype: npt.DTypeLike, pin: Pin | None = None) -> None:
        self.shape, self.dtype, self._pin = shape, np.dtype(dtype), pin
        self._count = int(np.prod(shape))
        self.size_bytes = self._count * self.dtype.itemsize
        self._free: list[mmap.mmap] = []
        self._lock = threading.Lock()
        self.made = 0

    def take(self) -> npt.NDArray[Any]:
        with self._lock:
            memory = self._free.pop() if self._free else None
            self.made += memory is None
        if memory is None:
            memory = _memory(self.size_bytes)
            if self._pin is not None:
                self._pin(memory)
        # Its base is no array, so numpy's views of it refer to it, and not past it to the memory.
        flat = np.frombuffer(memory, self.dtype, self._count)
        weakref.finalize(flat, self._give_back, memory)
        return flat.reshape(self.shape)

    def _give_back(self, memory: mmap.mmap) -> None:
        if len(self._free) < KEPT:  # whoever held a hundred batches, and let go, gets the memory back
            self._free.append(memory)


def _memory(size_bytes: int) -> mmap.mmap:
    """Memory of our own, in huge pages if there are any: then the first touch costs a quarter."""
    memory = mmap.mmap(-1, max(size_bytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
