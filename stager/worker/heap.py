"""Memory that a library frees is kept for the next sample.

By default the C library gives a freed image back to the kernel at once, and has every page of the next one
faulted in anew: of a PNG of 640 x 480 that was nearly half of the time.
"""

import ctypes
from contextlib import suppress
from typing import Final

# Of malloc.h. More than this at the end of an arena goes back; what is larger is mapped by itself, and goes.
TRIM_THRESHOLD, MMAP_THRESHOLD, ARENA_MAX = -1, -3, -8
KEPT_BYTES: Final = 32 << 20


def keep_freed(threads: int) -> None:
    """For a process with so many threads that decode. Other C libraries than glibc stay as they are."""
    with suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for name, value in (
            (TRIM_THRESHOLD, KEPT_BYTES),
            (MMAP_THRESHOLD, KEPT_BYTES),
            (ARENA_MAX, threads + 1),
        ):
            mallopt(name, value)
