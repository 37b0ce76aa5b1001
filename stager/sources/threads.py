"""Many parts at a time from a source that reads one a call: a thread for each that is under way."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Final

from stager.errors import SourceBusy, SourceSilent
from stager.interfaces import BlockingSource, Fetched, Scanning
from stager.reader.values import ObjectInfo, Part
from stager.sources.keys import shown

THREADS: Final = 128
READ_S: Final = 60.0  # a read that takes longer hangs
SLOWEST_BYTES_PER_S: Final = 500_000  # a large object gets more time
HUNG_MOST: Final = 32  # reads that hang, and their threads, which nobody can end
LOOK_EVERY: Final = 10  # times while a read may take
_MOUNT_HINT: Final = "is the mount alive?"


@dataclass(eq=False, slots=True)
class _Read:
    """One read in the hands of a thread."""

    part: Part
    done: Callable[[Fetched], None]
    until_s: float


class ThreadedSource:
    """A blocking source, read by as many threads as are needed at once. Reads beyond that wait.

    A read that hangs in a mount cannot be ended: it is given up, and its thread left behind. It is not tried
    again while it hangs, nor another part of its object, and where many hang, the source is busy.
    """

    def __init__(self, inner: BlockingSource, threads: int = THREADS, read_s: float = READ_S) -> None:
        self.inner, self._most, self._read_s = inner, threads, read_s
        self._asked: SimpleQueue[tuple[Part, Callable[[Fetched], None]]] = SimpleQueue()
        self._lock = threading.Lock()
        self._under_way = self._threads = 0
        self._reads: set[_Read] = set()  # that are not given up
        self._hung: set[_Read] = set()
        self._is_watched = False

    def scan(self, scanning: Scanning | None = None) -> Iterator[ObjectInfo]:
        return self.inner.scan(scanning)

    def start(self, part: Part, done: Callable[[Fetched], None]) -> None:
        self._asked.put((part, done))
        with self._lock:
            self._under_way += 1
            is_watched, self._is_watched = self._is_watched, True
        self._start_thread()
        if not is_watched:
            threading.Thread(target=self._watch, name="watch-reads", daemon=True).start()

    def _start_thread(self) -> None:
        with self._lock:
            needs_thread = self._threads < min(self._under_way, self._most)
            self._threads += needs_thread
        if needs_thread:
            threading.Thread(target=self._read_on, name="read", daemon=True).start()

    def _read_on(self) -> None:
        while True:
            part, done = self._asked.get()
            read = _Read(part, done, time.monotonic() + self._read_s + part.size / SLOWEST_BYTES_PER_S)
            with self._lock:
                refused = self._refusal(part.info)
                if refused is None:
                    self._reads.add(read)
            fetched = refused or self._read(part)
            with self._lock:
                if refused is None and read not in self._reads:
                    self._hung.discard(read)
                    return  # another thread has taken this one's place
                self._reads.discard(read)
                self._under_way -= 1
            done(fetched)
            del fetched, done, read, refused  # or they would be held until the next one is asked for

    def _refusal(self, info: ObjectInfo) -> SourceBusy | None:
        """Why an object is not read now."""
        if any(read.part.info == info for read in self._hung):
            return SourceSilent(f"{shown(info.key)}: a read of it still hangs", _MOUNT_HINT)
        if len(self._hung) >= HUNG_MOST:
            return SourceBusy(f"{shown(info.key)}: {len(self._hung)} reads hang", _MOUNT_HINT)
        return None

    def _read(self, part: Part) -> Fetched:
        try:
            return self.inner.read(part)
        except Exception as error:
            return error

    def _watch(self) -> None:
        """Give up reads that hang; end when nothing is under way."""
        while True:
            time.sleep(self._read_s / LOOK_EVERY)
            now_s = time.monotonic()
            with self._lock:
                if not self._under_way:
                    self._is_watched = False
                    return
                late = [read for read in self._reads if now_s > read.until_s]
                self._reads.difference_update(late)
                self._hung.update(late)
                self._under_way -= len(late)
                self._threads -= len(late)
            for read in late:
                self._start_thread()
                told = f"{shown(read.part.info.key)}: no answer for {self._read_s:.0f} s"
                read.done(SourceSilent(told, _MOUNT_HINT))
