"""A source as a layout sees it while it is scanned."""

from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue

from stager.interfaces import Fetched, Scanning, Source
from stager.reader.values import ObjectInfo, Part


class SourceListing:
    """The objects of a source, and the bytes of those that a layout asks for: a table, a header."""

    def __init__(
        self,
        source: Source,
        scanning: Scanning,
        passed: Callable[[Iterable[ObjectInfo]], Iterator[ObjectInfo]] = iter,
    ) -> None:
        """`passed` is given the objects, and yields them: it tells how far the scan is."""
        self._source, self._scanning, self._passed = source, scanning, passed

    def objects(self) -> Iterator[ObjectInfo]:
        return self._passed(self._source.scan(self._scanning))

    def read(self, part: Part) -> memoryview:
        came: SimpleQueue[Fetched] = SimpleQueue()
        self._source.start(part, came.put)  # a source ends each read
        fetched = came.get()
        if isinstance(fetched, memoryview):
            return fetched
        raise fetched
