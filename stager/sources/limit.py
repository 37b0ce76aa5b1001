"""No more bytes a second of a source than a person allows, by all workers together.

A bucket is one number that all of them map: when the next bytes are due. Whoever asks for an object moves it
by the time that these bytes take at the rate that holds now; until it has come, all wait. So a rate that
changes, or ends, holds for the next object, and a process that dies owes nothing.
"""

import fcntl
import mmap
import os
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from stager.interfaces import Fetched, Scanning, Source
from stager.reader.values import ObjectInfo, Part

BURST_S: Final = 0.2  # bytes may be asked for so much before they are due
ROUNDING_S: Final = 1e-6  # of floats: nobody waits for so little
LOOK_EVERY_S: Final = 0.5  # while it waits, whether the limit is another one by now
_WORD: Final = struct.Struct("=d")


class Rate(NamedTuple):
    """A limit that holds now: bytes a second, and the bucket that counts them."""

    bucket: int
    bytes_per_s: float


def claim(due_s: float, now_s: float, seconds: float) -> tuple[float, float]:
    """Bytes are asked for that take so many seconds. When the next are due, and how long to wait: 0, go on.

    Who must wait has claimed nothing.
    """
    wait_s = due_s - now_s - BURST_S
    if wait_s > ROUNDING_S:
        return due_s, wait_s
    return max(due_s, now_s) + seconds, 0.0


class Buckets:
    """Those of a cache, in a file that its workers map."""

    def __init__(self, path: Path, most: int) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.ftruncate(fd, most * _WORD.size)
        self._fd, self._lock = fd, threading.Lock()
        self._mapped = mmap.mmap(fd, most * _WORD.size)

    def claim(self, rates: list[Rate], size_bytes: int, now_s: float) -> float:
        """Ask all these buckets for so many bytes; how long to wait, if one of them has none now."""
        with self._ours():
            found = []
            for rate in rates:
                (due_s,) = _WORD.unpack_from(self._mapped, rate.bucket * _WORD.size)
                found.append(claim(due_s, now_s, size_bytes / rate.bytes_per_s))
            wait_s = max((wait for _, wait in found), default=0.0)
            if not wait_s:
                for rate, (due_s, _) in zip(rates, found, strict=True):
                    _WORD.pack_into(self._mapped, rate.bucket * _WORD.size, due_s)
            return wait_s

    @contextmanager
    def _ours(self) -> Iterator[None]:
        """For a moment: of our threads by one lock, of processes by the kernel's, which ends with them."""
        with self._lock:
            fcntl.lockf(self._fd, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.lockf(self._fd, fcntl.LOCK_UN)


class Limits:
    """What holds now, as the owner has told this worker. Any thread may ask."""

    def __init__(self) -> None:
        self._buckets: Buckets | None = None
        self._of_all: Rate | None = None
        self._of: Mapping[str, Rate] = {}

    def set(self, path: Path, most: int, of_all: Rate | None, of: Mapping[str, Rate]) -> None:
        """From now on: of all sources together, and of each data set by its name. `most`: buckets there."""
        if self._buckets is None and (of_all or of):
            self._buckets = Buckets(path, most)
        self._of_all, self._of = of_all, of

    def rates(self, name: str) -> list[Rate]:
        return [rate for rate in (self._of_all, self._of.get(name)) if rate is not None]

    def claim(self, name: str, size_bytes: int, now_s: float) -> float:
        """How long a data set must wait with its next bytes; 0: it may ask for them now."""
        rates = self.rates(name)
        return self._buckets.claim(rates, size_bytes, now_s) if rates and self._buckets else 0.0


class LimitedSource:
    """Any source, asked for a data set's parts one after the other, each when its bytes are due."""

    def __init__(
        self,
        inner: Source,
        name: str,
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`clock`: one that all workers share."""
        self.inner, self._name, self._limits = inner, name, limits
        self._clock, self._sleep = clock, sleep
        self._line: deque[tuple[Part, Callable[[Fetched], None]]] = deque()
        self._lock = threading.Lock()

    def scan(self, scanning: Scanning | None = None) -> Iterator[ObjectInfo]:
        return self.inner.scan(scanning)

    def start(self, part: Part, done: Callable[[Fetched], None]) -> None:
        with self._lock:
            if not self._line and not self._limits.rates(self._name):
                is_first = None  # there is no limit: nobody waits, and no thread has to do with it
            else:
                is_first = not self._line
                self._line.append((part, done))
        if is_first is None:
            self.inner.start(part, done)
        elif is_first:
            threading.Thread(target=self._let_in, name="limit", daemon=True).start()

    def _let_in(self) -> None:
        while True:
            part, done = self._line[0]
            size_bytes = max(min(part.size, part.info.size), 0)
            while wait_s := self._limits.claim(self._name, size_bytes, self._clock()):
                self._sleep(min(wait_s, LOOK_EVERY_S))
            self.inner.start(part, done)
            with self._lock:
                self._line.popleft()
                if not self._line:
                    return
