"""Mounts that send no events: folders by their times, and all known files in turn, so many stats a second."""

import os
from collections import deque
from pathlib import Path
from typing import Final

import numpy as np

from stager.errors import CacheError
from stager.reader.record import manifest_path
from stager.reader.samples.manifest import ListedManifest, Manifest
from stager.reader.samples.sample_list import SampleList
from stager.reader.values import encode_key
from stager.watch.hint import NOTHING, Hint
from stager.watch.messages import KnownFiles

STATS_PER_S: Final = 2_000  # that a watcher asks of a mount
ENTRIES_PER_STAT: Final = 100  # of a folder that is listed: a server gives many in one answer
LATELY_S: Final = 3.0  # a folder whose time is that new may change again within the same time
FILES_AT_ONCE: Final = 100
_UNSURE: Final = (-1, -1)  # what no folder is

_Seen = tuple[int, int]  # a folder's time, and its inode
_File = tuple[str, str]  # its key, and its version


class Rescan:
    """Looks through a directory, round after round."""

    def __init__(self, root: str, every_s: float, now: float) -> None:
        self._root, self._every_s = os.fsencode(root), every_s
        self._seen: dict[str, _Seen] = {}
        self._to_come = deque([""])
        self._folders_at = now + every_s  # when the next round of folders begins
        self._files: deque[_File] = deque()
        self._manifest: ListedManifest | None = None
        self._place, self._files_at = 0, now
        self.is_ready = False  # all folders were seen once: from here on no change of one is missed
        self.stats = 0

    def know(self, known: KnownFiles) -> None:
        """What files there should be. Without, they are not looked at one by one."""
        path = Path(known.directory)
        try:
            records = SampleList.open(path, known.lineage, known.segments)
            manifest = Manifest.open(manifest_path(path, known.manifest, known.lineage), records)
        except CacheError:  # there is a newer one already
            return
        is_listed = isinstance(manifest, ListedManifest) and not records.is_computed
        self._manifest = manifest if is_listed and isinstance(manifest, ListedManifest) else None
        self._files.clear()

    def go_on(self, stats: int, now: float, wall: float) -> Hint:
        """Look on, with so many stats; tell where something has changed. Raise OSError if the mount does."""
        folders: set[str] = set()
        left = stats
        while left > 0:
            if self._to_come:
                left -= self._look_at(self._to_come.popleft(), wall, folders)
            elif not self.is_ready:
                self.is_ready, self._folders_at = True, now + self._every_s
            elif now >= self._folders_at:
                self._folders_at = now + self._every_s
                self._to_come.extend({"": None, **self._seen})
            elif self._has_files(now):
                self._compare(self._files.popleft(), folders)
                left -= 1
            else:
                break
        self.stats += stats - left
        return Hint.of(folders) if folders else NOTHING

    def _look_at(self, folder: str, wall: float, changed: set[str]) -> int:
        """See whether a folder has changed; return what that has cost."""
        path = os.path.join(self._root, encode_key(folder))  # noqa: PTH118
        try:
            found = os.stat(path)  # noqa: PTH116
            seen = found.st_mtime_ns, found.st_ino
            if self._seen.get(folder) == seen:
                return 1
            with os.scandir(path) as entries:
                names, many = [], 0
                for entry in entries:
                    many += 1
                    if not entry.name.startswith(b".") and entry.is_dir(follow_symlinks=False):
                        names.append(os.fsdecode(entry.name))
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            self._seen.pop(folder, None)  # what is above it has changed, too
            return 1
        is_late = abs(wall - found.st_mtime) < LATELY_S
        self._seen[folder] = _UNSURE if is_late else seen
        if self.is_ready:
            changed.add(folder)
        below = (f"{folder}/{name}" if folder else name for name in names)
        self._to_come.extend(name for name in below if name not in self._seen)
        return 2 + many // ENTRIES_PER_STAT

    def _has_files(self, now: float) -> bool:
        """Whether a file is to be looked at now. A round of all begins no sooner than a round of folders."""
        if self._files:
            return True
        if self._manifest is None or not len(self._manifest):
            return False
        if self._place >= len(self._manifest):
            self._place = 0
        if self._place == 0:
            if now < self._files_at:
                return False
            self._files_at = now + self._every_s
        numbers = self._manifest.numbers[self._place : self._place + FILES_AT_ONCE]
        self._place += FILES_AT_ONCE
        parts = [part for info in self._manifest.records.infos(np.asarray(numbers)) for part in info.parts]
        self._files.extend(dict.fromkeys((part.info.key, part.info.version) for part in parts))
        return bool(self._files)

    def _compare(self, file: _File, changed: set[str]) -> None:
        key, version = file
        try:
            found = os.stat(os.path.join(self._root, encode_key(key)))  # noqa: PTH116, PTH118
            is_same = version == f"{found.st_mtime_ns}-{found.st_size}"
        except (FileNotFoundError, NotADirectoryError):
            is_same = False
        if not is_same:
            changed.add(key.rpartition("/")[0])
