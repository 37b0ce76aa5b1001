"""How many requests are in flight to a source: more while that brings more, fewer when it is too much."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from stager.errors import ObjectBusy, SourceBusy
from stager.interfaces import Fetched, Scanning, Source
from stager.reader.values import ObjectInfo, Part

START: Final = 64
MOST: Final = 128
GROWTH: Final = 1.5
WORTH: Final = (
    0.3  # of what growing brings if only latency holds us, this part must come, or it is taken back
)
ANSWERS: Final = 3  # a rate is measured over so many answers a request in flight
REST_S: Final = 10.0  # after growing was not worth it, or the source was busy, until it is tried again
CUT_EVERY_S: Final = 1.0  # all that were in flight at that moment are refused together: that is one refusal


class Pace:
    """The decision alone: it is told of answers and refusals, and says how many may be in flight."""

    def __init__(self, now_s: float, start: int = START, most: int = MOST) -> None:
        self.limit, self._most = start, most
        self._since_s, self._answers = now_s, 0
        self._before: tuple[int, float] | None = None  # the limit we grew from, and the rate it had
        self._grow_at_s = now_s
        self._cut_at_s = now_s - CUT_EVERY_S

    def answered(self, now_s: float, is_full: bool) -> None:
        """A request was answered. `is_full`: another one was waiting, so the limit was what held us."""
        if not is_full:
            self._measure_anew(now_s)
            return
        self._answers += 1
        if self._answers < ANSWERS * self.limit or now_s <= self._since_s:
            return
        rate = self._answers / (now_s - self._since_s)
        if self._before is not None and not self._was_worth(rate, *self._before):
            self.limit, self._before = self._before[0], None
            self._grow_at_s = now_s + REST_S
        elif now_s >= self._grow_at_s and self.limit < self._most:
            self._before = (self.limit, rate)
            self.limit = min(self._most, int(self.limit * GROWTH) + 1)
        else:
            self._before = None
        self._measure_anew(now_s)

    def _was_worth(self, rate: float, limit_before: int, rate_before: float) -> bool:
        return rate / rate_before - 1 >= WORTH * (self.limit / limit_before - 1)

    def refused(self, now_s: float) -> None:
        """The source was busy: half as many, and a while without growing."""
        if now_s - self._cut_at_s >= CUT_EVERY_S:
            self.limit, self._before = max(1, self.limit // 2), None
            self._cut_at_s, self._grow_at_s = now_s, now_s + REST_S
        self._measure_anew(now_s)

    def _measure_anew(self, now_s: float) -> None:
        self._since_s, self._answers = now_s, 0


class PacedSource:
    """Any source, with as many reads under way as it can take. The others wait in line."""

    def __init__(self, inner: Source, clock: Callable[[], float] = time.monotonic) -> None:
        self.inner = inner
        self.pace = Pace(clock())
        self._clock = clock
        self._in_flight = 0
        self._line: deque[tuple[Part, Callable[[Fetched], None]]] = deque()
        self._lock = threading.Lock()

    def scan(self, scanning: Scanning | None = None) -> Iterator[ObjectInfo]:
        return self.inner.scan(scanning)

    def start(self, part: Part, done: Callable[[Fetched], None]) -> None:
        with self._lock:
            self._line.append((part, done))
        self._let_in()

    def _let_in(self) -> None:
        while True:
            with self._lock:
                if not self._line or self._in_flight >= self.pace.limit:
                    return
                part, done = self._line.popleft()
                self._in_flight += 1
            self.inner.start(part, partial(self._answered, done))

    def _answered(self, done: Callable[[Fetched], None], fetched: Fetched) -> None:
        with self._lock:
            self._in_flight -= 1
            if isinstance(fetched, SourceBusy) and not isinstance(fetched, ObjectBusy):
                self.pace.refused(self._clock())
            else:
                self.pace.answered(self._clock(), is_full=bool(self._line))
        self._let_in()
        done(fetched)
