"""Where kept results lie, and how they come and go: a folder each, which has its name only once it is whole.

    memo/.lock                  who computes what now (client)
    memo/.scratch/              what is being written, or removed
    memo/NAME/KEY/              a result: record.json and its files
    memo/NAME/.gone/KEY.json    the record of one that was evicted

Whoever may write to `memo` may keep results: all it has takes its mode.
"""

import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import xxhash

from stager.errors import CacheError, UsageError, known_error
from stager.reader.memo.record import RECORD, MemoRecord
from stager.reader.memo.room import Kept

GONE_MAX: Final = 100  # records of a name that are kept of what was evicted
COMPARED_MAX: Final = 200  # records that a miss is compared with
PIECE_BYTES: Final = 1 << 20
NAME_CHARS: Final = 120
_NAME: Final = re.compile(rf"[A-Za-z0-9_-][A-Za-z0-9._-]{{0,{NAME_CHARS - 1}}}")
_KEY: Final = re.compile(r"[0-9a-f]{32}")
_WRITTEN: Final = re.compile(r"\.([0-9a-f]{32})(\.|$)")  # in the name of a scratch folder: its key


class MemoStore:
    """The kept results of one cache. Each method is whole in itself, whoever else works there."""

    def __init__(self, cache_dir: Path) -> None:
        self.directory = cache_dir / "memo"
        self.lock_path = self.directory / ".lock"

    def prepare(self, name: str) -> None:
        """Have the folders for results of this name. Raise CacheError if that cannot be."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o750)
            for folder in (self.directory / ".scratch", self._named(name), self._gone(name)):
                self._make(folder)
        except OSError as error:
            raise known_error(error, str(self.directory)) from None

    def names(self) -> list[str]:
        """Functions that have results here, or had."""
        return sorted(path.name for path in _listed(self.directory) if _NAME.fullmatch(path.name))

    def keys(self, name: str) -> list[str]:
        """The digests of the results of a name, the last used first."""
        found = []
        for path in _listed(self._named(name)):
            if _KEY.fullmatch(path.name):
                try:
                    found.append((path.stat().st_mtime, path.name))
                except FileNotFoundError:  # it has just gone
                    continue
        return [key for _, key in sorted(found, reverse=True)]

    def folder(self, name: str, key: str) -> Path:
        return self._named(name) / key

    def find(self, name: str, key: str) -> MemoRecord | None:
        """The record of a result; None if there is none. Raise CacheError if it cannot be read."""
        record = MemoRecord.read(self.folder(name, key) / RECORD)
        if record is None and self.folder(name, key).exists():
            raise CacheError(f"{self.folder(name, key)} has no {RECORD}")
        return record

    def find_gone(self, name: str, key: str) -> MemoRecord | None:
        """The record of a result that was evicted."""
        try:
            return MemoRecord.read(self._gone(name) / f"{key}.json")
        except CacheError:
            return None

    def records(self, name: str) -> Iterator[MemoRecord]:
        """What can be read of the results of a name, and then of those that are gone."""
        for key in self.keys(name)[:COMPARED_MAX]:
            try:
                record = self.find(name, key)
            except CacheError:
                continue
            if record is not None:
                yield record
        for path in sorted(_listed(self._gone(name)), reverse=True):
            record = self.find_gone(name, path.stem)
            if record is not None:
                yield record

    def used(self, name: str, key: str) -> None:
        """Say that a result was used just now."""
        try:
            os.utime(self.folder(name, key))
        except OSError:  # it has just gone, or is another user's
            return

    def results(self) -> list[Kept]:
        """Every result, and what it takes."""
        found = []
        for name in self.names():
            for key in self.keys(name):
                folder = self.folder(name, key)
                try:
                    size_bytes = sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())
                    found.append(Kept(name, key, folder.stat().st_mtime, size_bytes))
                except OSError:  # it has just gone, or is another user's alone
                    continue
        return found

    # Coming

    @contextmanager
    def writing(self, name: str, key: str) -> Iterator[Path]:
        """An empty folder to write a result to, for who has the key's lock. What is not published goes."""
        scratch = self.directory / ".scratch" / f"{name}.{key}"
        shutil.rmtree(scratch, ignore_errors=True)
        self._make(scratch)
        try:
            yield scratch
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def seal(self, scratch: Path) -> dict[str, tuple[int, str]]:
        """Give what was written its mode and make it durable; return bytes and checksum of each file."""
        files: dict[str, tuple[int, str]] = {}
        mode = self.mode()
        for path in sorted(scratch.rglob("*")):
            if path.is_symlink() or not (path.is_dir() or path.is_file()):
                raise UsageError(f"{path.name} is no plain file", hint="save files and folders only")
            path.chmod(mode if path.is_dir() else mode & 0o640)
            if path.is_file():
                files[str(path.relative_to(scratch))] = path.stat().st_size, checksum_of_file(path)
            _sync(path)
        return files

    def publish(self, scratch: Path, record: MemoRecord) -> None:
        """Give a result its name, with its record. What had that name goes."""
        written = scratch / RECORD
        written.write_text(record.to_text())
        written.chmod(self.mode() & 0o640)
        _sync(written)
        _sync(scratch)
        target = self.folder(record.name, record.digest)
        if target.exists():
            self._drop(target)
        scratch.rename(target)
        _sync(target.parent)
        (self._gone(record.name) / f"{record.digest}.json").unlink(missing_ok=True)

    # Going

    def remove(self, name: str, key: str, at: float, why: str) -> None:
        """Take a result away; its record stays, so that a later miss can say why."""
        try:
            record = self.find(name, key)
        except CacheError:
            record = None
        gone = self._gone(name)
        if record is not None:
            scratch = self.directory / ".scratch" / f"{name}.{key}.gone"
            scratch.write_text(record.departed(at, why).to_text())
            scratch.chmod(self.mode() & 0o640)
            scratch.replace(gone / f"{key}.json")
        self._drop(self.folder(name, key))
        by_age = sorted(_listed(gone), key=_changed_at, reverse=True)
        for path in by_age[GONE_MAX:]:
            path.unlink(missing_ok=True)

    def remove_leftovers(self) -> None:
        """Remove what processes left that died while they wrote. Where a key is locked, somebody writes."""
        left = _listed(self.directory / ".scratch")
        if not left:
            return
        try:
            fd = os.open(self.lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, self.mode() & 0o660)
        except OSError:  # it is another user's alone
            return
        try:
            for path in left:
                found = _WRITTEN.search(path.name)
                try:
                    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place_of(found[1]) if found else 0)
                except OSError:
                    continue
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
        finally:
            os.close(fd)

    def _drop(self, folder: Path) -> None:
        """Take a folder away: its name at once, then what is in it."""
        away = self.directory / ".scratch" / f"{folder.parent.name}.{folder.name}.old.{os.getpid()}"
        try:
            folder.rename(away)
        except FileNotFoundError:  # somebody else was first
            return
        shutil.rmtree(away)

    def _named(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"{name!r} cannot be the name of a memo",
                hint="use letters, digits, dots, dashes, underscores",
            )
        return self.directory / name

    def _gone(self, name: str) -> Path:
        return self._named(name) / ".gone"

    def mode(self) -> int:
        """Of folders, as `memo` has it; files have the same without what files do not need."""
        return self.directory.stat().st_mode & 0o7777

    def _make(self, folder: Path) -> None:
        if not folder.exists():
            folder.mkdir(exist_ok=True)
            folder.chmod(self.mode())


def place_of(key: str) -> int:
    """The byte of the lock file that stands for a key."""
    return int(key[:15], 16)


def checksum_of_file(path: Path) -> str:
    state = xxhash.xxh3_128()
    with path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            state.update(piece)
    return state.hexdigest()


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _changed_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # it has just gone
        return 0.0


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
