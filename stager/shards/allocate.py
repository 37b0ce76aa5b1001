"""The blocks of a file: take them before anything is written, or give back those of a part."""

import ctypes
import errno
import os
from typing import Final

_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_CANNOT: Final = (errno.EOPNOTSUPP, errno.ENOSYS)  # this file system does not know how
_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


def take_room(fd: int, size_bytes: int) -> bool:
    """Take the blocks for so many bytes; the file is as long as it was. False: this file system cannot."""
    return size_bytes <= 0 or _allocate(fd, _KEEP_SIZE, 0, size_bytes)


def give_back(fd: int, offset: int, size_bytes: int) -> bool:
    """Give the blocks of a part back; it reads as zeros from then on. False: this file system cannot."""
    return _allocate(fd, _PUNCH_HOLE | _KEEP_SIZE, offset, size_bytes)


def _allocate(fd: int, mode: int, offset: int, size_bytes: int) -> bool:
    if _libc.fallocate(fd, mode, offset, size_bytes) == 0:
        return True
    code = ctypes.get_errno()
    if code in _CANNOT:
        return False
    raise OSError(code, os.strerror(code))
