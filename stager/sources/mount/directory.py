"""A directory tree as a source: a local disk, or a mount of NFS, SMB or FUSE.

Objects are the regular files, without the hidden ones and those in hidden folders. Links to files and folders
under the root are followed, and keys are the paths as seen. Not followed are links that lead out of the root
(what lies there was not offered), and those that would go in a circle; a scan counts what it left out.

A mount can hang, and a hung read cannot be ended: whoever reads mounts does so in a process it can abandon.
"""
# Paths are bytes here, as the kernel has them; pathlib knows none of those.
# ruff: noqa: PTH110, PTH112, PTH113, PTH115, PTH116

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from stager.errors import (
    ObjectBusy,
    SampleError,
    SourceBusy,
    SourceError,
    SourceForbidden,
    SourceNotFound,
    StagerError,
)
from stager.interfaces import Scanning
from stager.reader.values import ObjectInfo, Part, decode_key, encode_key
from stager.sources.keys import shown
from stager.sources.parts import span

LINKS_MOST: Final = 3  # to folders, one in the other: links across would have a walk without an end
_GONE: Final = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG}
_FORBIDDEN: Final = {errno.EACCES, errno.EPERM}
_BUSY: Final = {
    errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.EHOSTDOWN, errno.EHOSTUNREACH,
    errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM,
}  # fmt: skip


class DirectorySource:
    """The files under a directory. Key: the path below it; version: mtime and size."""

    def __init__(self, root: Path) -> None:
        self.path = root.expanduser()
        self._root = self._real_root()

    def scan(self, scanning: Scanning | None = None) -> Iterator[ObjectInfo]:
        self._root = self._real_root()  # anew: people point a link at the data set of the day
        scanning = scanning or Scanning()
        scanning.left_out.clear()  # of a scan that broke off
        return _Walk(self._root, str(self.path), scanning).objects()

    def read(self, part: Part) -> memoryview:
        start, stop = span(part, f"{self.path}/")
        try:
            return self._read(part.info, start, stop)
        except OSError as error:
            raise self._error(part.info, error) from error

    def _read(self, info: ObjectInfo, start: int, stop: int) -> memoryview:
        key = encode_key(info.key)
        if b".." in key.split(b"/") or b"\0" in key:
            raise SampleError("missing", f"{self._where(info)}: no file can have this key")
        path = self._root + b"/" + key
        # Not blocking: a pipe that took the place of the file must not hang us.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            if not _real_path(fd, path).startswith(_as_folder(self._root)):
                raise SampleError("forbidden", f"{self._where(info)}: a link leads out of {self.path}")
            self._check_version(info, fd)
            if start:
                os.lseek(fd, start, os.SEEK_SET)
            asked = stop - start + (stop == info.size)  # behind the end there must be nothing
            data = os.read(fd, asked)
            while len(data) < asked and (more := os.read(fd, asked - len(data))):
                data += more
            self._check_version(info, fd)
        finally:
            os.close(fd)
        if len(data) != stop - start:
            raise SampleError(
                "unreadable", f"{self._where(info)}: {len(data)} of {stop - start} bytes could be read"
            )
        return memoryview(data)

    def _check_version(self, info: ObjectInfo, fd: int) -> None:
        found = os.fstat(fd)
        version = _version(found) if stat.S_ISREG(found.st_mode) else "no file"
        if version != info.version:
            raise SampleError(
                "changed", f"{self._where(info)}: mtime-size is {version}, the listing said {info.version}"
            )

    def _error(self, info: ObjectInfo, error: OSError) -> StagerError:
        where, what = self._where(info), error.strerror
        if error.errno in _GONE and not os.path.isdir(self._root):
            return _no_root(str(self.path))  # it took every file along, which says nothing about this one
        if error.errno in _GONE:
            return SampleError("missing", f"{where}: {what}")
        if error.errno in _FORBIDDEN:
            return SampleError("forbidden", f"{where}: {what}")
        if error.errno == errno.EIO:  # a disk stumbled, or has a bad place
            return ObjectBusy(f"{where}: {what}", hint="is the disk failing?")
        if error.errno in _BUSY:  # also a handle that NFS lost: a new look at the name gives another
            return SourceBusy(f"{where}: {what}", hint="is the mount alive?")
        return SampleError("unreadable", f"{where}: {what}")

    def _where(self, info: ObjectInfo) -> str:
        return shown(f"{self.path}/{info.key}")

    def _real_root(self) -> bytes:
        return os.fsencode(os.path.realpath(self.path))


class _Walk:
    """One walk through a tree, in the order of the keys' bytes. It holds the names of the open folders."""

    def __init__(self, root: bytes, name: str, scanning: Scanning) -> None:
        self.root = root
        self.name = name
        self._scanning = scanning
        self._identity: tuple[int, int] | None = None

    def objects(self) -> Iterator[ObjectInfo]:
        self._identity = self._root_identity()
        folders = [iter(self._keys_in(b""))]
        while folders:
            key = next(folders[-1], None)
            if key is None:
                folders.pop()
            elif key.endswith(b"/"):
                folders.append(iter(self._keys_in(key)))
            elif info := self._info(key):
                yield info

    def _keys_in(self, folder: bytes) -> list[bytes]:
        """The keys of a folder's files, and of its folders with the slash that sorts them among the files."""
        try:
            with os.scandir(self.root + b"/" + folder) as entries:
                return sorted(key for entry in entries if (key := self._key(folder, entry)))
        except OSError as error:
            if self._has_vanished(folder, error):
                return []
            raise self._error(folder, error) from error

    def _key(self, folder: bytes, entry: os.DirEntry[bytes]) -> bytes | None:
        self._scanning.went_on()
        key = folder + entry.name
        if entry.name.startswith(b"."):
            return None
        if entry.is_dir(follow_symlinks=False):
            return key + b"/"
        if not entry.is_symlink():
            return key
        target = os.path.realpath(self.root + b"/" + key)
        if refused := self._refusal(folder, target):
            self._scanning.left_out.count(refused)
            return None
        return key + b"/" if os.path.isdir(target) else key

    def _refusal(self, folder: bytes, target: bytes) -> str:
        """Why a link in a folder is not followed; nothing, if it is."""
        if not _as_folder(target).startswith(_as_folder(self.root)):
            return "link_out" if os.path.exists(target) else "link_nowhere"
        if os.path.isfile(target):
            return ""
        if not os.path.isdir(target):
            return "link_nowhere"
        names = [self.root]
        for name in folder.split(b"/")[:-1]:
            names.append(names[-1] + b"/" + name)
        # What a folder is in would come again in it, without end.
        is_circle = target in map(os.path.realpath, names)
        too_many = sum(map(os.path.islink, names)) >= LINKS_MOST
        return "link_in_circle" if is_circle or too_many else ""

    def _info(self, key: bytes) -> ObjectInfo | None:
        try:
            found = os.stat(self.root + b"/" + key)
        except OSError as error:
            if self._has_vanished(key, error):
                return None
            raise self._error(key, error) from error
        if not stat.S_ISREG(found.st_mode):
            return None
        return ObjectInfo(decode_key(key), found.st_size, _version(found))

    def _has_vanished(self, key: bytes, error: OSError) -> bool:
        """Is this what an ordinary deletion looks like? If the mount went away, the rest did not vanish."""
        return bool(key) and error.errno in _GONE and self._root_identity() == self._identity

    def _root_identity(self) -> tuple[int, int]:
        try:
            found = os.stat(self.root)
        except OSError as error:
            raise self._error(b"", error) from error
        if not stat.S_ISDIR(found.st_mode):
            raise SourceNotFound(
                f"{self.name}: this is a file, not a directory", hint="name the folder it is in"
            )
        return found.st_dev, found.st_ino

    def _error(self, key: bytes, error: OSError) -> SourceError:
        where = shown(f"{self.name}/{decode_key(key)}") if key else self.name
        if error.errno in _GONE and not key:
            return _no_root(self.name)
        if error.errno in _GONE:
            return SourceBusy(f"{self.name}: another directory took its place", hint="is the mount alive?")
        if error.errno in _FORBIDDEN:
            return SourceForbidden(f"{where}: {error.strerror}", hint=f"let user id {os.geteuid()} read it")
        if error.errno in _BUSY | {errno.EIO}:
            return SourceBusy(f"{where}: {error.strerror}", hint="is the mount alive?")
        return SourceError(f"{where}: {error.strerror}")


def _no_root(name: str) -> SourceNotFound:
    return SourceNotFound(f"{name}: no such directory", hint="check the path; is the mount there?")


def _version(found: os.stat_result) -> str:
    return f"{found.st_mtime_ns}-{found.st_size}"


def _as_folder(path: bytes) -> bytes:
    return path.rstrip(b"/") + b"/"


def _real_path(fd: int, path: bytes) -> bytes:
    """Where an open file is, whatever links led to it."""
    try:
        return os.readlink(b"/proc/self/fd/%d" % fd)
    except FileNotFoundError:  # no Linux
        return os.path.realpath(path)
