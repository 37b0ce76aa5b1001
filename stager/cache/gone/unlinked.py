"""Files that are taken away while readers have them open: their space counts until the disk has it back."""

import fcntl
import logging
import os
from contextlib import suppress
from pathlib import Path

from stager.cache.budget import Budget
from stager.shards.holes import punch

log = logging.getLogger("stager")


class Departed:
    """Removes files so that the budget stays true.

    Where the file system can, a file is punched first: its blocks come back whoever holds it. Where it
    cannot, a file that somebody has open keeps its space: it counts as used until nobody has.
    """

    def __init__(self, budget: Budget, can_punch: bool) -> None:
        self._budget, self._can_punch = budget, can_punch
        self._held: dict[int, int] = {}  # descriptor of ours -> bytes

    def remove(self, path: Path, counted_bytes: int) -> int:
        """Remove a file of which so many bytes count as used; return how many of them are free now."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            path.unlink(missing_ok=True)
            self._budget.used_bytes -= counted_bytes
            return counted_bytes
        is_punched = self._can_punch and _punch_all(path, os.fstat(fd).st_size)
        path.unlink(missing_ok=True)
        if not is_punched and counted_bytes:
            self._held[fd] = counted_bytes
            return counted_bytes if self.settle() else 0
        os.close(fd)
        self._budget.used_bytes -= counted_bytes
        return counted_bytes

    def settle(self) -> int:
        """Count off what nobody holds any more; return the bytes."""
        free = [fd for fd in self._held if _is_ours_alone(fd)]
        freed = sum(self._held.pop(fd) for fd in free)
        for fd in free:
            os.close(fd)
        self._budget.used_bytes -= freed
        return freed

    def close(self) -> None:
        for fd in self._held:
            os.close(fd)
        self._held.clear()


def _punch_all(path: Path, size_bytes: int) -> bool:
    try:
        return punch(path, [(0, -(-size_bytes // 4096) * 4096)]) if size_bytes else True
    except OSError as error:
        log.warning("blocks not given back path=%s error=%r", path, str(error))
        return False


def _is_ours_alone(fd: int) -> bool:
    """Whether nobody else has the file open: the kernel grants a write lease only then."""
    with suppress(OSError):
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        return True
    return False
