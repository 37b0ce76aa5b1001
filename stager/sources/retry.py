"""Asking again. The only retry loop in stager: what is below has its own retries switched off."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

from stager.errors import SourceBusy
from stager.model import Fetched, ObjectInfo, Scanning, Source, encode_key

WAITS_S: Final = (0.2, 0.5, 1.0, 2.0, 4.0)


def sleep_about(wait_s: float) -> None:
    """Sleep, but not in step with the others who were turned away at the same moment."""
    time.sleep(wait_s * random.uniform(0.5, 1.5))


class RetryingSource:
    """Any source, asked again when it is busy. Its last SourceBusy comes through."""

    def __init__(
        self,
        inner: Source,
        waits_s: tuple[float, ...] = WAITS_S,
        sleep: Callable[[float], None] = sleep_about,
    ) -> None:
        self.inner = inner
        self.waits_s = waits_s
        self.sleep = sleep

    def scan(self, scanning: Scanning | None = None) -> Iterator[ObjectInfo]:
        last: ObjectInfo | None = None
        for wait_s in self.waits_s:
            try:
                for info in self._scan_after(last, scanning):
                    yield info
                    last = info
                return
            except SourceBusy:
                self.sleep(wait_s)
        yield from self._scan_after(last, scanning)

    def start(self, info: ObjectInfo, done: Callable[[Fetched], None]) -> None:
        self._try(info, done, self.waits_s)

    def _try(self, info: ObjectInfo, done: Callable[[Fetched], None], waits_s: tuple[float, ...]) -> None:
        def answered(fetched: Fetched) -> None:
            if not waits_s or not isinstance(fetched, SourceBusy):
                done(fetched)
                return
            # It waits in a thread of its own: whoever answered us has others to answer.
            threading.Thread(target=try_again, name="retry", daemon=True).start()

        def try_again() -> None:
            self.sleep(waits_s[0])
            self._try(info, done, waits_s[1:])

        self.inner.start(info, answered)

    def _scan_after(self, last: ObjectInfo | None, scanning: Scanning | None) -> Iterator[ObjectInfo]:
        """A scan is in key order, so a new one goes on where a broken one ended."""
        if last is None:
            return self.inner.scan(scanning)
        done = encode_key(last.key)
        return (info for info in self.inner.scan(scanning) if encode_key(info.key) > done)
