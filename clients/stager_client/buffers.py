"""Batch buffers that are used again: a fresh 38 MB buffer a batch costs more in page faults than the copy."""

import threading
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt


class BufferPool:
    """Gives out arrays of one shape and takes each back when nobody holds it, or a view of it, any more.

    So a batch may be kept as long as one likes: it is never written again while it is held.
    """

    def __init__(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> None:
        self._shape, self._dtype = shape, np.dtype(dtype)
        self._free: list[bytearray] = []
        self._lock = threading.Lock()
        self.made = 0

    def take(self) -> npt.NDArray[Any]:
        with self._lock:
            memory = self._free.pop() if self._free else None
            self.made += memory is None
        if memory is None:
            memory = bytearray(int(np.prod(self._shape)) * self._dtype.itemsize)
        # Its base is no array, so numpy's views of it refer to it, and not past it to the memory.
        flat = np.frombuffer(memory, self._dtype)
        weakref.finalize(flat, self._free.append, memory)
        return flat.reshape(self._shape)
