"""Many objects at a time from a source that reads one a call: a thread for each that is under way."""

import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Final

from stager.model import BlockingSource, Fetched, ObjectInfo, Scanning

THREADS: Final = 128


class ThreadedSource:
    """A blocking source, read by as many threads as are needed at once. Reads beyond that wait."""

    def __init__(self, inner: BlockingSource, threads: int = THREADS) -> None:
        self.inner, self._most = inner, threads
        self._asked: SimpleQueue[tuple[ObjectInfo, Callable[[Fetched], None]]] = SimpleQueue()
        self._lock = threading.Lock()
        self._under_way = self._threads = 0

    def scan(self, scanning: Scanning | None = None) -> Iterator[ObjectInfo]:
        return self.inner.scan(scanning)

    def start(self, info: ObjectInfo, done: Callable[[Fetched], None]) -> None:
        with self._lock:
            self._under_way += 1
            needs_thread = self._threads < min(self._under_way, self._most)
            self._threads += needs_thread
        self._asked.put((info, done))
        if needs_thread:
            threading.Thread(target=self._read_on, name="read", daemon=True).start()

    def _read_on(self) -> None:
        while True:
            info, done = self._asked.get()
            fetched: Fetched
            try:
                fetched = self.inner.read(info)
            except Exception as error:
                fetched = error
            with self._lock:
                self._under_way -= 1
            done(fetched)
            del fetched, done  # or they would be held until the next one is asked for
