"""Batch buffers that are used again: a fresh 38 MB buffer a batch costs more in page faults than the copy."""

import threading
import weakref
from typing import Any, Final

import numpy as np
import numpy.typing as npt

ALIGNMENT_BYTES: Final = (
    64  # TensorFlow takes memory as it is only if it begins there; else it copies, slowly
)


class BufferPool:
    """Gives out arrays of one shape and takes each back when nobody holds it, or a view of it, any more.

    So a batch may be kept as long as one likes: it is never written again while it is held.
    """

    def __init__(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> None:
        self.shape, self.dtype = shape, np.dtype(dtype)
        self._count = int(np.prod(shape))
        self._free: list[bytearray] = []
        self._lock = threading.Lock()
        self.made = 0

    def take(self) -> npt.NDArray[Any]:
        with self._lock:
            memory = self._free.pop() if self._free else None
            self.made += memory is None
        if memory is None:
            memory = bytearray(self._count * self.dtype.itemsize + ALIGNMENT_BYTES)
        start = -np.frombuffer(memory, np.uint8).ctypes.data % ALIGNMENT_BYTES
        # Its base is no array, so numpy's views of it refer to it, and not past it to the memory.
        flat = np.frombuffer(memory, self.dtype, self._count, start)
        weakref.finalize(flat, self._free.append, memory)
        return flat.reshape(self.shape)
