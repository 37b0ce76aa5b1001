"""A source as a layout sees it while it is scanned."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Final

from stager.interfaces import Asked, Fetched, Looked, Recalled, Scanning, Source
from stager.reader.values import ObjectInfo, Part

LOOKS_AT_ONCE: Final = 16


def nothing_known(info: ObjectInfo) -> Recalled | None:
    """Each object is looked into."""
    return None


class SourceListing:
    """The objects of a source, and the bytes of those that a layout asks for: a table, a header."""

    def __init__(
        self,
        source: Source,
        scanning: Scanning,
        passed: Callable[[Iterable[ObjectInfo]], Iterator[ObjectInfo]] = iter,
        known: Callable[[ObjectInfo], Recalled | None] = nothing_known,
    ) -> None:
        """`passed` is given the objects, and yields them: it tells how far the scan is."""
        self._source, self._scanning, self._passed, self.known = source, scanning, passed, known

    def objects(self, under: str = "") -> Iterator[ObjectInfo]:
        scanning = Scanning(self._scanning.went_on, under) if under else self._scanning
        return self._passed(self._source.scan(scanning))

    def read(self, part: Part) -> memoryview:
        came: SimpleQueue[Fetched] = SimpleQueue()
        self._source.start(part, came.put)  # a source ends each read
        fetched = came.get()
        self._scanning.went_on()
        if isinstance(fetched, memoryview):
            return fetched
        raise fetched

    def side_by_side(self, objects: Iterable[Asked], look: Callable[[Asked], Looked]) -> Iterator[Looked]:
        under_way: deque[Future[Looked]] = deque()
        with ThreadPoolExecutor(LOOKS_AT_ONCE, "look") as threads:
            try:
                for info in objects:
                    under_way.append(threads.submit(look, info))
                    if len(under_way) == LOOKS_AT_ONCE:
                        yield under_way.popleft().result()
                while under_way:
                    yield under_way.popleft().result()
            finally:
                for later in under_way:
                    later.cancel()
