"""Local disks: the kernel tells of each change, by watchdog. A folder takes a watch; there are so many."""

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, TextIO

from watchdog.events import (
    DirCreatedEvent,
    DirDeletedEvent,
    DirMovedEvent,
    FileAttribEvent,
    FileCreatedEvent,
    FileDeletedEvent,
    FileModifiedEvent,
    FileMovedEvent,
    FileSystemEvent,
    FileSystemEventHandler,
)
from watchdog.observers.inotify import InotifyObserver

from stager.watch.hint import EVERYTHING, Hint

LIMIT: Final = Path("/proc/sys/fs/inotify/max_user_watches")
WATCHES_MOST: Final = 200_000  # a kilobyte of the kernel's memory each
EVENTS_MOST: Final = 4_096  # without a pause: the kernel's queue may have overflowed (it holds 16,384)
PAUSE_LOOKS: Final = 3  # without an event: a pause
FDINFO_CHARS: Final = 1_000  # the first watches; there may be thousands
SETTLE_S: Final = 0.5  # a folder that has just been made is watched by then
_WANTED: Final = [
    *(DirCreatedEvent, DirDeletedEvent, DirMovedEvent),
    *(FileAttribEvent, FileCreatedEvent, FileDeletedEvent, FileModifiedEvent, FileMovedEvent),
]


class TooManyFolders(Exception):
    """There are more folders than may be watched."""


def watches_allowed() -> int:
    """How many the system lets a user have."""
    try:
        return min(int(LIMIT.read_text()), WATCHES_MOST)
    except (OSError, ValueError):
        return WATCHES_MOST


class InotifyWatch:
    """Watches a folder and all below it."""

    def __init__(self, root: str, endings: tuple[str, ...] = (), most: int | None = None) -> None:
        """Raise TooManyFolders; OSError, if the folder cannot be looked through."""
        self._root, self._endings = root, endings
        self._most = watches_allowed() if most is None else most
        self._lock = threading.Lock()
        self._folders: set[str] = set()
        self._trees: set[str] = set()
        self._events = self._quiet_looks = 0
        self._is_to_count = False
        if (folders := count_folders(root, self._most)) > self._most:
            raise _too_many(folders, self._most)
        self._observer = InotifyObserver()
        try:
            self._observer.schedule(_Handler(self._heard), root, recursive=True, event_filter=_WANTED)
            self._observer.start()
            self._count()
        except OSError as error:
            self.stop()
            if error.errno in (errno.ENOSPC, errno.EMFILE):
                raise TooManyFolders(f"{error.strerror}: sysctl fs.inotify raises it") from None
            raise
        except TooManyFolders:
            self.stop()
            raise

    def _count(self) -> None:
        """See that each folder is watched: watchdog passes by what it cannot watch."""
        for is_last in (False, True):
            self.watches, folders = watches_held(), count_folders(self._root, self._most)
            if folders <= min(self.watches, self._most):
                return
            if not is_last:
                time.sleep(SETTLE_S)
        raise _too_many(folders, min(self.watches, self._most))

    def take(self) -> Hint:
        """What was heard since the last time. Raise TooManyFolders if some folders are not watched."""
        with self._lock:
            folders, self._folders = self._folders, set()
            trees, self._trees = self._trees, set()
            events = self._events
            self._quiet_looks = 0 if folders or trees else self._quiet_looks + 1
            if self._quiet_looks >= PAUSE_LOOKS:
                self._events = 0
        self._is_to_count |= bool(trees)
        if self._is_to_count and self._quiet_looks >= PAUSE_LOOKS:
            self._is_to_count = False
            self._count()
        if events > EVENTS_MOST and (folders or trees):
            return EVERYTHING
        return Hint.of(folders, trees)

    def is_alive(self) -> bool:
        """Whether anything is watched: what is unmounted is not, though the same may be mounted again."""
        return any("inotify wd:" in told.read(FDINFO_CHARS) for told in _told_by_inotify())

    def _heard(self, event: FileSystemEvent) -> None:
        with self._lock:
            self._events += 1
            for path in (event.src_path, event.dest_path):
                if path:
                    self._note(os.fsdecode(path), event.is_directory)

    def _note(self, path: str, is_folder: bool) -> None:
        key = os.path.relpath(path, self._root)
        if key.startswith("..") or any(name.startswith(".") for name in key.split("/")):
            return  # hidden, or the root itself
        if is_folder:
            self._trees.add(key)
        elif self._endings and not key.lower().endswith(self._endings):
            return
        self._folders.add(os.path.dirname(key))  # noqa: PTH120

    def stop(self) -> None:
        """Watch no more."""
        if self._observer.is_alive():
            self._observer.stop()
            self._observer.join()


class _Handler(FileSystemEventHandler):
    def __init__(self, heard: Callable[[FileSystemEvent], None]) -> None:
        self._heard = heard

    def on_any_event(self, event: FileSystemEvent) -> None:
        self._heard(event)


def _too_many(folders: int, most: int) -> TooManyFolders:
    told = f"{folders:,} folders or more, and {most:,} can be watched"
    return TooManyFolders(f"{told}: sysctl fs.inotify.max_user_watches raises it")


def count_folders(root: str, most: int) -> int:
    """How many folders there are, with the root; once they are too many, it counts no further."""
    count, to_come = 0, [root]
    while to_come and count <= most:
        folder = to_come.pop()
        try:
            with os.scandir(folder) as entries:
                to_come += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
            count += 1
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            if folder == root:
                raise
    return count


def watches_held() -> int:
    """How many watches this process has."""
    return sum(line.startswith("inotify wd:") for told in _told_by_inotify() for line in told)


def _told_by_inotify() -> Iterator[TextIO]:
    """What the kernel tells of this process's descriptors of inotify: a line a watch."""
    for number in os.listdir("/proc/self/fd"):  # noqa: PTH208
        with suppress(FileNotFoundError):  # it was the listing's own
            if os.readlink(f"/proc/self/fd/{number}") == "anon_inode:inotify":  # noqa: PTH115
                with Path(f"/proc/self/fdinfo/{number}").open() as told:
                    yield told
