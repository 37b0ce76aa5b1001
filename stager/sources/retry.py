"""Asking again. The only retry loop in stager: what is below has its own retries switched off."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from stager.errors import ObjectBusy, SampleError, SourceBusy, SourceError, SourceSilent, StagerError
from stager.interfaces import Fetched, Scanning, Source
from stager.reader.values import ObjectInfo, Part, encode_key

WAITS_S: Final = (0.2, 0.5, 1.0, 2.0, 4.0)
SILENT_TRIES: Final = 3  # of an object: each takes as long as a try may take


def sleep_about(wait_s: float) -> None:
    """Sleep, but not in step with the others who were turned away at the same moment."""
    time.sleep(wait_s * random.uniform(0.5, 1.5))


class RetryingSource:
    """Any source, asked again when it is busy. Its last SourceBusy comes through.

    But if other objects were answered since an object was first asked for, or it came damaged, it is not the
    source: then the object is unreadable, alone.
    """

    def __init__(
        self,
        inner: Source,
        waits_s: tuple[float, ...] = WAITS_S,
        sleep: Callable[[float], None] = sleep_about,
    ) -> None:
        self.inner = inner
        self.waits_s = waits_s
        self.sleep = sleep
        self._answered_s = 0.0  # when an object was, last

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

    def start(self, part: Part, done: Callable[[Fetched], None]) -> None:
        self._try(_Wanted(part, done, time.monotonic()), self.waits_s, SILENT_TRIES)

    def _try(self, wanted: "_Wanted", waits_s: tuple[float, ...], silent_tries: int) -> None:
        def answered(fetched: Fetched) -> None:
            if not isinstance(fetched, SourceBusy):
                if not isinstance(fetched, SourceError):
                    self._answered_s = time.monotonic()
                wanted.done(fetched)
            elif not waits_s or silent_tries <= isinstance(fetched, SourceSilent):
                wanted.done(self._given_up(wanted, fetched))
            else:
                # It waits in a thread of its own: whoever answered us has others to answer.
                left = silent_tries - isinstance(fetched, SourceSilent)
                threading.Thread(target=try_again, args=[left], name="retry", daemon=True).start()

        def try_again(silent_tries: int) -> None:
            self.sleep(waits_s[0])
            self._try(wanted, waits_s[1:], silent_tries)

        self.inner.start(wanted.part, answered)

    def _given_up(self, wanted: "_Wanted", busy: SourceBusy) -> StagerError:
        if isinstance(busy, ObjectBusy) or self._answered_s > wanted.since_s:
            return SampleError("unreadable", busy.message)
        return busy

    def _scan_after(self, last: ObjectInfo | None, scanning: Scanning | None) -> Iterator[ObjectInfo]:
        """A scan is in key order, so a new one goes on where a broken one ended."""
        if last is None:
            return self.inner.scan(scanning)
        done = encode_key(last.key)
        return (info for info in self.inner.scan(scanning) if encode_key(info.key) > done)


class _Wanted(NamedTuple):
    """What is asked for, and since when."""

    part: Part
    done: Callable[[Fetched], None]
    since_s: float
