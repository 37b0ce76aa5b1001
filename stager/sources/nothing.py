"""The source of generated samples: it has no objects."""

from collections.abc import Callable, Iterator

from stager.errors import SampleError
from stager.interfaces import Fetched, Scanning
from stager.reader.values import ObjectInfo, Part


class NoObjects:
    """Nothing is listed, and nothing can be read."""

    def scan(self, scanning: Scanning | None = None) -> Iterator[ObjectInfo]:
        return iter(())

    def start(self, part: Part, done: Callable[[Fetched], None]) -> None:
        done(SampleError("missing", f"{part.info.key}: there are no objects, samples are generated"))
