"""What one worker process has under way: parts that come, and threads that prepare samples."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Generic, Protocol, TypeVar

from stager.config import FETCH_BYTES_IN_FLIGHT, FETCHES_IN_FLIGHT
from stager.interfaces import Fetched
from stager.reader.values import Part
from stager.worker.priority import Share

T = TypeVar("T")


class Lanes(Generic[T]):
    """A queue of two lanes: what is urgent is taken first.

    One is either waited at (`put`, `take`: any thread may) or looked at (`put_all`, `take_if`).
    """

    def __init__(self) -> None:
        self._lanes: tuple[deque[T], deque[T]] = deque(), deque()
        self._tokens: SimpleQueue[None] = SimpleQueue()  # one for each item, in whichever lane

    def put(self, item: T, urgent: bool) -> None:
        """To the end of its lane; what is urgent is taken first."""
        self._lanes[0 if urgent else 1].append(item)
        self._tokens.put(None)

    def take(self) -> T:
        """The next, once there is one."""
        self._tokens.get()
        while True:
            for lane in self._lanes:
                try:
                    return lane.popleft()
                except IndexError:  # another thread had it, so there is one in the other lane
                    continue

    def put_all(self, items: Iterable[T], urgent: bool) -> None:
        """To the end of its lane, in this order. Whoever puts or takes so holds one lock."""
        self._lanes[0 if urgent else 1].extend(items)

    def take_if(self, may: Callable[[T], bool]) -> T | None:
        """The next, if there is one and it may be taken."""
        lane = self._lanes[0] or self._lanes[1]
        return lane.popleft() if lane and may(lane[0]) else None


class Work(Protocol):
    """The samples of one shard on their way: what the pools ask of it."""

    is_urgent: bool
    is_made: bool  # by a person's function
    parts: list[Part]  # different ones, in the order in which they are needed
    sizes: list[int]  # of the parts, in bytes
    most_bytes: int  # that one sample needs

    def refusal(self, number: int) -> Exception | None:
        """Why a part is not even asked for."""

    def fetch(self, part: Part, done: Callable[[Fetched], None]) -> None: ...

    def arrived(self, number: int, fetched: Fetched) -> Sequence[int]:
        """A part is there, or cannot be had. Return the samples that have all they need now."""

    def prepare(self, at: int) -> int:
        """Make one sample. Return the bytes that nobody needs any more."""


class Pools:
    """All shards of a process share it, and samples are taken in the order in which they came.

    So the next shard is fetched while the last samples of the one before are prepared. `load` is run first by
    whoever prepares.
    """

    def __init__(
        self,
        prepare_threads: int,
        load: Callable[[], None] = lambda: None,
        bytes_max: int = FETCH_BYTES_IN_FLIGHT,
    ) -> None:
        """`bytes_max`: of what is fetched and not yet prepared. What one sample needs always gets in."""
        self._lock = threading.Lock()
        self._to_fetch: Lanes[tuple[Work, int]] = Lanes()
        self._to_prepare: Lanes[tuple[Work, int]] = Lanes()
        self._bytes_max, self._bytes, self._fetches = bytes_max, 0, 0
        self._ready = 0  # samples that have all their parts, and are not prepared yet
        self._load, self.share = load, Share()
        for number in range(prepare_threads):
            threading.Thread(target=self._prepare_on, name=f"prepare-{number}", daemon=True).start()

    def begin(self, work: Work, ready: list[int]) -> None:
        """Have all parts fetched, and each sample prepared as soon as it can be. `ready`: those without."""
        with self._lock:
            self._ready += len(ready)
            self._to_fetch.put_all([(work, number) for number in range(len(work.parts))], work.is_urgent)
        self._can_prepare(work, ready)
        self._fetch_more()

    @property
    def is_fetching(self) -> bool:
        """Whether any part is under way."""
        return self._fetches > 0

    def _fetch_more(self) -> None:
        while (admitted := self._admit()) is not None:
            work, number, part = admitted
            if refused := work.refusal(number):
                self._fetched(work, number, refused)
            else:
                work.fetch(part, partial(self._fetched_and_more, work, number))

    def _admit(self) -> tuple[Work, int, Part] | None:
        """The next to fetch, if there is one and room for it."""
        with self._lock:
            admitted = self._to_fetch.take_if(self._has_room)
            if admitted is None:
                return None
            work, number = admitted
            self._bytes += work.sizes[number]
            self._fetches += 1
            return work, number, work.parts[number]

    def _has_room(self, item: tuple[Work, int]) -> bool:
        work, number = item
        if self._fetches >= FETCHES_IN_FLIGHT:
            return False
        if not self._fetches and not self._ready:  # what is held waits for this: nothing else would free it
            return True
        return self._bytes + work.sizes[number] <= max(self._bytes_max, work.most_bytes)

    def _fetched_and_more(self, work: Work, number: int, fetched: Fetched) -> None:
        self._fetched(work, number, fetched)
        self._fetch_more()

    def _fetched(self, work: Work, number: int, fetched: Fetched) -> None:
        samples = work.arrived(number, fetched)
        with self._lock:
            self._fetches -= 1
            self._ready += len(samples)
            if not isinstance(fetched, memoryview):
                self._bytes -= work.sizes[number]
        self._can_prepare(work, samples)

    def _can_prepare(self, work: Work, samples: Sequence[int]) -> None:
        for at in samples:
            self._to_prepare.put((work, at), work.is_urgent)

    def _prepare_on(self) -> None:
        self._load()
        while True:
            self.share.wait()
            work, at = self._to_prepare.take()
            began, worked = time.monotonic(), time.thread_time()
            free = work.prepare(at)
            # A person's function works in another process, for which we wait.
            self.share.used(time.monotonic() - began if work.is_made else time.thread_time() - worked)
            with self._lock:
                self._bytes -= free
                self._ready -= 1
            self._fetch_more()
            del work
