"""Files that somebody still writes are left as the last version had them, until they rest."""

from collections.abc import Callable, Iterable, Iterator

from stager.reader.values import ObjectInfo


class Ripening:
    """Files of a directory whose time is of the last moments, and their folders."""

    def __init__(self, now_ns: int, rest_ns: int) -> None:
        self._now_ns, self._rest_ns = now_ns, rest_ns
        self.folders: set[str] = set()  # those that have such files

    def passed(
        self, objects: Iterable[ObjectInfo], known: Callable[[str], ObjectInfo | None]
    ) -> Iterator[ObjectInfo]:
        """All objects but for those. `known`: what the last version has under a key: that stays."""
        for info in objects:
            if not self._is_late(info):
                yield info
                continue
            before = known(info.key)
            if before != info:
                self.folders.add(info.key.rpartition("/")[0])
            if before is not None:
                yield before

    def _is_late(self, info: ObjectInfo) -> bool:
        """A time that is far in the future is of another clock, and says nothing."""
        written_ns = int(info.version.rpartition("-")[0])
        return abs(self._now_ns - written_ns) < self._rest_ns
