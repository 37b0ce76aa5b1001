"""One computation at a time for one key, in all processes and threads. A lock is gone with its holder."""

import fcntl
import logging
import os
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from stager.errors import WaitTimeout
from stager.reader.memo.store import place_of

log = logging.getLogger("stager")

LOOK_FIRST_S, LOOK_EVERY_S = 0.01, 0.3
SAY_S: Final = 5.0  # whoever waits for longer is told for whom
_FLOCK: Final = "hhqqi4x"  # struct flock: type, whence, start, length, process

# A process has a lock until it closes any descriptor of the file: so there is one, and it stays open.
_files: dict[Path, int] = {}
_opening = threading.Lock()
_threads: dict[tuple[int, int], Any] = {}
os.register_at_fork(after_in_child=_threads.clear)  # a child has none of our locks


def lock_file(path: Path, mode: int) -> int:
    """The descriptor of the file whose bytes are locked, one for each key."""
    with _opening:
        if path not in _files:
            _files[path] = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
            if os.fstat(_files[path]).st_uid == os.geteuid():
                os.fchmod(_files[path], mode)  # whatever the umask is
        return _files[path]


@contextmanager
def one_at_a_time(fd: int, key: str, name: str, wait_s: float) -> Iterator[None]:
    """Hold the lock of a key. Raise WaitTimeout, which names the holder, if it is held for longer."""
    place, deadline = place_of(key), time.monotonic() + wait_s
    ours = _threads.setdefault((fd, place), threading.RLock())
    if not ours.acquire(timeout=wait_s):
        raise _too_long(name, f"another thread of process {os.getpid()}", wait_s)
    try:
        _wait(fd, place, name, deadline, wait_s)
        try:
            yield
        finally:
            fcntl.lockf(fd, fcntl.LOCK_UN, 1, place)
    finally:
        ours.release()


def _wait(fd: int, place: int, name: str, deadline: float, wait_s: float) -> None:
    began, pause_s, is_told = time.monotonic(), LOOK_FIRST_S, False
    while True:
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
            return
        except (BlockingIOError, PermissionError):  # which of the two, systems differ in
            now = time.monotonic()
        holder = _holder(fd, place)
        if now >= deadline:
            raise _too_long(name, holder, wait_s)
        if not is_told and now - began >= SAY_S:
            log.warning("waiting for %s, which computes %s", holder, name)
            is_told = True
        time.sleep(min(pause_s, deadline - now))
        pause_s = min(1.5 * pause_s, LOOK_EVERY_S)


def _holder(fd: int, place: int) -> str:
    asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, place, 1, 0)
    kind, *_, pid = struct.unpack(_FLOCK, fcntl.fcntl(fd, fcntl.F_GETLK, asked))
    return f"process {pid}" if kind != fcntl.F_UNLCK else "a process that has just ended"


def _too_long(name: str, holder: str, wait_s: float) -> WaitTimeout:
    return WaitTimeout(
        f"{holder} has computed {name} for more than {wait_s:g} s",
        hint="look at that process, or give memo a larger wait_s",
    )
