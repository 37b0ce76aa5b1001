"""Files that are read by offset, of which thousands may be open."""

import errno
import fcntl
import os
import resource
import threading
import weakref
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Final

from stager.errors import ShardCorrupt, ShardError, ShardGone

OPEN_MAX: Final = 4096  # descriptors of ours in a process: 256 GB in shards of 64 MB
OTHERS: Final = 1024  # descriptors below are left to others: select() knows no higher ones


class Descriptor(int):
    """A file descriptor that is closed when nobody holds it any more.

    So no thread can find it closed, or another file behind its number, while it reads: as long as a call
    has it, it is open. In a forked child it is the child's own.
    """

    def __del__(self) -> None:
        _close(self)


_close = os.close  # modules lose their names when Python ends


class ShardFile:
    """A file that never changes. It keeps no descriptor for good: the one opened first makes room for others.

    Reading takes no place of a process's memory but the bytes that are asked for, and a file that is cut
    short, or a disk that fails, is an error; with a mapping it would be the end of the process.
    """

    def __init__(self, path: Path) -> None:
        """Raise ShardGone if there is no such file, ShardError if it cannot be read."""
        self.path = path
        self._held: Descriptor | None = None
        self._is: os.stat_result | None = None
        self.descriptor()

    @property
    def size_bytes(self) -> int:
        assert self._is is not None
        return self._is.st_size

    def descriptor(self) -> Descriptor:
        """To read by offset: it stays open as long as it is held. Opened again if it was closed."""
        held = self._held
        if held is not None:
            return held
        try:
            held = _open(self.path)
            found = os.fstat(held)
        except FileNotFoundError:
            raise ShardGone(f"{self.path}: no such shard") from None
        except OSError as error:
            raise self._unreadable(error) from error
        if self._is is not None and not os.path.samestat(found, self._is):
            raise ShardGone(f"{self.path}: another file has taken its place")
        self._is, self._held = found, held
        open_files.add(self)
        return held

    def held(self) -> Descriptor | None:
        """The descriptor, if there is one right now."""
        return self._held

    def is_gone(self) -> bool:
        """Whether its name was taken away."""
        held = self._held
        try:
            return os.fstat(held).st_nlink == 0 if held is not None else not self.path.exists()
        except OSError:
            return False  # whoever reads it finds out

    def check(self, offset: int, size_bytes: int) -> None:
        """Raise ShardCorrupt if the file has not so many bytes there."""
        if offset < 0 or size_bytes < 0 or offset + size_bytes > self.size_bytes:
            raise ShardCorrupt(f"{self.path}: there are no {size_bytes} bytes at {offset}")

    def read(self, offset: int, size_bytes: int) -> bytes:
        """Raise ShardCorrupt if the file has not so many bytes there, ShardError if it cannot be read."""
        self.check(offset, size_bytes)
        parts = []
        try:
            while size_bytes:
                part = os.pread(self.descriptor(), size_bytes, offset)
                parts.append(part)
                size_bytes, offset = size_bytes - len(part), offset + len(part)
                if not part:
                    raise self._short(offset)
        except OSError as error:
            raise self._unreadable(error) from error
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read_into(self, room: memoryview, offset: int) -> None:
        """Fill `room`, which is of bytes. Raise as `read` does."""
        self.check(offset, len(room))
        try:
            while room:
                got = os.preadv(self.descriptor(), [room], offset)
                if not got:
                    raise self._short(offset)
                room, offset = room[got:], offset + got
        except OSError as error:
            raise self._unreadable(error) from error

    def close(self) -> None:
        """Let go of the descriptor. A thread that reads right now has it to its end."""
        self._held = None

    def _short(self, offset: int) -> ShardCorrupt:
        return ShardCorrupt(f"{self.path}: it ends at {offset}, and had {self.size_bytes} bytes")

    def _unreadable(self, error: OSError) -> ShardError:
        return ShardError(f"{self.path}: cannot be read: {error.strerror}")


class _OpenFiles:
    """The files that have a descriptor, in the order of opening. Those that nobody holds are not here."""

    def __init__(self) -> None:
        self._files: weakref.WeakValueDictionary[int, ShardFile] = weakref.WeakValueDictionary()
        self._numbers = count()
        self.closings = 0  # so often was one closed to make room: who holds descriptors lets go of its own
        self.renew_lock()

    def renew_lock(self) -> None:
        """In a forked child: a thread that is not there may have held it."""
        self._lock = threading.Lock()  # nothing that Python may call at any time, as __del__, takes it

    def add(self, file: ShardFile) -> None:
        """Take in a file that was opened, and close those that are too many."""
        with self._lock:
            self._files[next(self._numbers)] = file
        _, most = _room()
        while len(self._files) > most and self.close_first():
            pass

    def close_first(self) -> bool:
        """Close the file that was opened first. False: there is none."""
        with self._lock:
            number = next(self._files.keys(), None)
            file = None if number is None else self._files.pop(number, None)
            self.closings += file is not None
        if file is not None:
            file.close()
        return number is not None


open_files = _OpenFiles()
os.register_at_fork(after_in_child=open_files.renew_lock)


def _open(path: Path) -> Descriptor:
    """Open a file under a high number. Where the process has no descriptor left, one of ours is closed."""
    while True:
        first, _ = _room()
        try:
            low = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                return Descriptor(fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, first))
            finally:
                os.close(low)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE) or not open_files.close_first():
                raise


def _room() -> tuple[int, int]:
    """The lowest number for descriptors of ours, and how many we may have.

    The usual limit of 1,024 is a soft one, for the sake of select(): we raise it by what we need, and use
    the numbers above. Where the hard limit leaves us nothing there, we take a quarter of what there is.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    want = OTHERS + OPEN_MAX
    if soft == resource.RLIM_INFINITY:
        return OTHERS, OPEN_MAX
    if soft < want and soft != hard:
        more = want if hard == resource.RLIM_INFINITY else min(want, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (more, hard))
            soft = more
    if soft >= 2 * OTHERS:
        return OTHERS, min(soft - OTHERS, OPEN_MAX)
    return 0, max(soft // 4, 1)
