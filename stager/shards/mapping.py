"""Map whole files without holding their descriptors."""

import ctypes
import mmap
import os
import weakref
from pathlib import Path
from typing import Any

import numpy as np

from stager.errors import ShardError, ShardGone

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
)  # fmt: skip
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_MAP_FAILED = ctypes.c_void_p(-1).value


class _Mapping:
    """The memory of one mapped file. Every view of it keeps this object; its end unmaps the file."""

    def __init__(self, address: int, size_bytes: int) -> None:
        self.__array_interface__: dict[str, Any] = {
            "version": 3,
            "shape": (size_bytes,),
            "typestr": "|u1",
            "data": (address, True),  # True: read-only, and numpy lets no view change that
        }
        end = weakref.finalize(self, _libc.munmap, address, size_bytes)
        end.atexit = False  # at exit views may outlive us, and the kernel unmaps anyway


def map_file(path: Path) -> memoryview:
    """Return a file's bytes, read-only. They, and arrays over them, stay valid as long as they are held.

    mmap.mmap, np.memmap and pa.memory_map each keep a descriptor a file, and a reader has thousands of
    shards open: so libc's mmap, and the descriptor is closed at once. It holds after a fork, too.
    No madvise: MADV_RANDOM made cold reads of 150 KB rows eight times slower, the others changed nothing.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return _map_descriptor(fd)
        finally:
            os.close(fd)
    except FileNotFoundError:
        raise ShardGone(f"{path}: no such shard") from None
    except OSError as error:
        raise ShardError(f"{path}: cannot be mapped: {error.strerror}") from error


def _map_descriptor(fd: int) -> memoryview:
    size_bytes = os.fstat(fd).st_size
    if size_bytes == 0:  # mmap refuses it
        return memoryview(b"")
    address = _libc.mmap(None, size_bytes, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    if address == _MAP_FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return np.asarray(_Mapping(address, size_bytes)).data
