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
import time
from collections.abc import Iterator
from contextlib import suppress
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
from stager.reader.values import ObjectInfo, Part, Unlisted, decode_key, encode_key
from stager.sources.keys import shown
from stager.sources.mount.asked import Asked
from stager.sources.parts import found, span

REPLACED_S: Final = 60.0  # after which another device is what is there: no read can tell why it came
LINKS_MOST: Final = 3  # to folders, one in the other: links across would have a walk without an end
_GONE: Final = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG}
_FORBIDDEN: Final = {errno.EACCES, errno.EPERM}
_BUSY: Final = {
    errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.EHOSTDOWN, errno.EHOSTUNREACH,
    errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM,
}  # fmt: skip


class DirectorySource:
    """The files under a directory. Key: the path below it; version: mtime and size.

    `asked` is told of all calls, since each may hang. To open the source is none.
    """

    def __init__(self, root: Path, asked: Asked | None = None) -> None:
        self.path = root.expanduser()
        self._asked = asked or Asked()
        self._asked.witness = self._witness
        self._found_root: tuple[bytes, int | None] | None = None
        self._replaced_at = 0.0  # when another device was first found in its place

    def scan(self, scanning: Scanning | None = None) -> Iterator[ObjectInfo]:
        scanning = scanning or Scanning()
        scanning.left_out.clear()  # of a scan that broke off
        self._found_root = self._look_at_root()  # anew: people point a link at the data set of the day
        return Walk(self._root, str(self.path), scanning, self._asked).objects()

    def read(self, part: Part) -> memoryview:
        root = self._root
        self._asked.ask("a read of", f"{self.path}/{part.info.key}")
        try:
            part = self._found(root, part) if isinstance(part.info, Unlisted) else part
            start, stop = span(part, f"{self.path}/")
            return self._read(root, part.info, start, stop)
        except OSError as error:
            raise self._error(part.info, error) from error
        finally:
            self._asked.answered()

    def _witness(self) -> None:
        os.statvfs(self.path)  # which no cache answers

    @property
    def _root(self) -> bytes:
        """Where it is, links followed: as the last scan found it, or the first read."""
        if self._found_root is None:
            self._found_root = self._look_at_root()
        return self._found_root[0]

    def _look_at_root(self) -> tuple[bytes, int | None]:
        """Where it is, and on which device, if it is there."""
        self._asked.ask("a look at", str(self.path))
        try:
            root = os.fsencode(os.path.realpath(self.path))
            with suppress(OSError):  # whoever needs it is told
                return root, os.stat(root).st_dev
            return root, None
        finally:
            self._asked.answered()

    def _found(self, root: bytes, part: Part) -> Part:
        """A part that no listing told of, as it is there now."""
        now = os.stat(root + b"/" + encode_key(part.info.key))
        if not stat.S_ISREG(now.st_mode):
            raise SampleError("missing", f"{self._where(part.info)}: no file")
        return found(part, now.st_size, _version(now))

    def _read(self, root: bytes, info: ObjectInfo, start: int, stop: int) -> memoryview:
        key = encode_key(info.key)
        if b".." in key.split(b"/") or b"\0" in key:
            raise SampleError("missing", f"{self._where(info)}: no file can have this key")
        path = root + b"/" + key
        # Not blocking: a pipe that took the place of the file must not hang us.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            if not _real_path(fd, path).startswith(_as_folder(root)):
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
        if error.errno in _GONE | {errno.EIO} and (vanished := self._vanished()):
            return vanished  # it took every file along, which says nothing about this one
        if error.errno in _GONE:
            return SampleError("missing", f"{where}: {what}")
        if error.errno in _FORBIDDEN:
            return SampleError("forbidden", f"{where}: {what}")
        if error.errno == errno.EIO:  # a disk stumbled, or has a bad place
            return ObjectBusy(f"{where}: {what}", hint="is the disk failing?")
        if error.errno in _BUSY:  # also a handle that NFS lost: a new look at the name gives another
            return SourceBusy(f"{where}: {what}", hint="is the mount alive?")
        return SampleError("unreadable", f"{where}: {what}")

    def _vanished(self) -> SourceError | None:
        """What has become of the root, if it is not what it was: a mount that is gone looks like this."""
        assert self._found_root is not None
        root, device = self._found_root
        try:
            now = os.stat(root).st_dev
            with os.scandir(root) as entries:
                is_empty = next(entries, None) is None
        except OSError as error:
            return _root_error(str(self.path), error)
        if is_empty:
            return SourceBusy(f"{self.path}: it is empty now", hint="is the mount alive?")
        if device in (None, now):
            return None
        self._replaced_at = self._replaced_at or time.monotonic()
        if time.monotonic() - self._replaced_at > REPLACED_S:
            self._found_root, self._replaced_at = (root, now), 0.0
        return _replaced(str(self.path))

    def _where(self, info: ObjectInfo) -> str:
        return shown(f"{self.path}/{info.key}")


class Walk:
    """One walk through a tree, in the order of the keys' bytes. It holds the names of the open folders."""

    def __init__(self, root: bytes, name: str, scanning: Scanning, asked: Asked) -> None:
        self.root, self.name = root, name
        self._scanning, self._asked = scanning, asked
        self._identity: tuple[int, int] | None = None

    def objects(self) -> Iterator[ObjectInfo]:
        self._identity = self._root_identity()
        under = encode_key(self._scanning.under)
        yield from self._all_of(self._begun(under))

    def _below(self, folder: bytes) -> Iterator[ObjectInfo]:
        """What lies below a folder, which is given with its slash."""
        yield from self._all_of(self._keys_in(folder))

    def _all_of(self, keys: list[bytes]) -> Iterator[ObjectInfo]:
        folders = [iter(keys)]
        while folders:
            key = next(folders[-1], None)
            if key is None:
                folders.pop()
            elif key.endswith(b"/"):
                folders.append(iter(self._keys_in(key)))
            elif info := self._info(key):
                yield info
        if self._root_identity() != self._identity:  # folders of the same names may be below a mount
            raise _replaced(self.name)

    def _begun(self, under: bytes) -> list[bytes]:
        """The keys that begin so, of the folder that they are in. What leads out of the root has none."""
        folder = under[: under.rfind(b"/") + 1]
        is_inside = _as_folder(os.path.realpath(self.root + b"/" + folder)).startswith(_as_folder(self.root))
        keys = self._keys_in(folder) if is_inside else []
        return [key for key in keys if key.startswith(under)]

    def _keys_in(self, folder: bytes) -> list[bytes]:
        """The keys of a folder's files, and of its folders with the slash that sorts them among the files."""
        self._asked.ask("a listing of", self.root + b"/" + folder)
        try:
            with os.scandir(self.root + b"/" + folder) as entries:
                return sorted(key for entry in entries if (key := self._key(folder, entry)))
        except OSError as error:
            if self._has_vanished(folder, error):
                return []
            raise self._error(folder, error) from error
        finally:
            self._asked.answered()

    def _key(self, folder: bytes, entry: os.DirEntry[bytes]) -> bytes | None:
        self._scanning.went_on()
        key = folder + entry.name
        if entry.name.startswith(b"."):
            return None
        if entry.is_dir(follow_symlinks=False):
            return key + b"/"
        if not entry.is_symlink():
            return key
        self._scanning.has_links = True
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
        path = self.root + b"/" + key
        self._asked.ask("a stat of", path)
        try:
            found = os.stat(path)
        except OSError as error:
            if self._has_vanished(key, error):
                return None
            raise self._error(key, error) from error
        finally:
            self._asked.answered()
        if not stat.S_ISREG(found.st_mode):
            return None
        return ObjectInfo(decode_key(key), found.st_size, _version(found))

    def _has_vanished(self, key: bytes, error: OSError) -> bool:
        """Is this what an ordinary deletion looks like? If the mount went away, the rest did not vanish."""
        return bool(key) and error.errno in _GONE and self._root_identity() == self._identity

    def _root_identity(self) -> tuple[int, int]:
        self._asked.ask("a stat of", self.root)
        try:
            found = os.stat(self.root)
        except OSError as error:
            raise self._error(b"", error) from error
        finally:
            self._asked.answered()
        if not stat.S_ISDIR(found.st_mode):
            raise SourceNotFound(
                f"{self.name}: this is a file, not a directory", hint="name the folder it is in"
            )
        return found.st_dev, found.st_ino

    def _error(self, key: bytes, error: OSError) -> SourceError:
        if not key:
            return _root_error(self.name, error)
        if error.errno in _GONE:
            return _replaced(self.name)
        return _root_error(shown(f"{self.name}/{decode_key(key)}"), error)


def _root_error(where: str, error: OSError) -> SourceError:
    if error.errno in _GONE:
        return SourceNotFound(f"{where}: no such directory", hint="check the path; is the mount there?")
    if error.errno in _FORBIDDEN:
        return SourceForbidden(f"{where}: {error.strerror}", hint=f"let user id {os.geteuid()} read it")
    if error.errno in _BUSY | {errno.EIO}:
        return SourceBusy(f"{where}: {error.strerror}", hint="is the mount alive?")
    return SourceError(f"{where}: {error.strerror}")


def _replaced(name: str) -> SourceBusy:
    return SourceBusy(f"{name}: another directory took its place", hint="is the mount alive?")


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
