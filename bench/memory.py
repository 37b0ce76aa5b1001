"""Memory that is there when a run takes it.

A virtual machine hands memory that is free for some seconds back to its host. The first touch of such a page
costs 8 us here, a row of 150 KB that is written to a file 350 us instead of 35: as much as a fifth of a
decoder's work, at times, and at other times nothing. So memory is held for all who take part, and let go of
as they take it.
"""

import mmap
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

PAGE: Final = os.sysconf("SC_PAGESIZE")
CHUNK_BYTES: Final = 8 << 20
AHEAD_BYTES: Final = 32 << 20  # free, and so fresh that the host still has it
LOOK_EVERY_S: Final = 0.01
SHARE: Final = 0.25  # of what is free, at most


@contextmanager
def backed_memory(size_bytes: int) -> Iterator[None]:
    """Whoever takes up to so much memory meanwhile, files that are written included, finds it backed."""
    size_bytes = min(size_bytes + AHEAD_BYTES, int(_available_bytes() * SHARE))
    held = [_touched(CHUNK_BYTES) for _ in range(0, size_bytes, CHUNK_BYTES)]
    free_bytes = _free_bytes()
    is_over = threading.Event()

    def let_go() -> None:
        while held and not is_over.is_set():
            lacking = free_bytes + AHEAD_BYTES - _free_bytes()
            for _ in range(0, max(lacking, 0), CHUNK_BYTES):
                if held:
                    held.pop().close()
            is_over.wait(LOOK_EVERY_S)

    giver = threading.Thread(target=let_go, name="memory", daemon=True)
    giver.start()
    try:
        yield
    finally:
        is_over.set()
        giver.join()
        for memory in held:
            memory.close()


def _touched(size_bytes: int) -> mmap.mmap:
    memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    for at in range(0, size_bytes, PAGE):
        memory[at] = 1
    return memory


def _free_bytes() -> int:
    """Asked often, and so by one system call: to read /proc/meminfo took 1.3 % of a run's CPU."""
    return os.sysconf("SC_AVPHYS_PAGES") * PAGE


def _available_bytes() -> int:
    told = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(told["MemAvailable"].split()[0]) * 1024
