"""A file system of FUSE that shows a folder, as sshfs and others do: it sends no events, and it can go away.

Run as a program it is the server: `shown_mount.py CONNECTION FOLDER`.
"""

import ctypes
import errno
import os
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MNT_DETACH = 2
LOOKUP, FORGET, GETATTR, OPEN, READ, STATFS, RELEASE = 1, 2, 3, 14, 15, 17, 18
FLUSH, INIT, OPENDIR, READDIR, RELEASEDIR, INTERRUPT, BATCH_FORGET = 25, 26, 27, 28, 29, 36, 42
SILENT = (FORGET, INTERRUPT, BATCH_FORGET)


class ShownMount:
    """A mount point, and the server behind it."""

    def __init__(self, path: Path, shown: Path) -> None:
        self.path, self.shown = path, shown
        self._connection = -1
        self._server: subprocess.Popen[str] | None = None

    def mount(self) -> None:
        self._connection = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        libc = ctypes.CDLL(None, use_errno=True)
        options = f"fd={self._connection},rootmode=40000,user_id=0,group_id=0,allow_other"
        assert not libc.mount(b"shown", bytes(self.path), b"fuse", 0, options.encode()), ctypes.get_errno()
        command = [sys.executable, __file__, str(self._connection), str(self.shown)]
        self._server = subprocess.Popen(
            command, pass_fds=[self._connection], stdout=subprocess.PIPE, text=True
        )
        assert self._server.stdout is not None
        assert self._server.stdout.readline() == "ready\n"

    def end_server(self) -> None:
        """From now on all is ENOTCONN: as when sshfs died."""
        if self._server is not None:
            self._server.kill()
            self._server.communicate()
            os.close(self._connection)
            self._server = None

    def unmount(self) -> None:
        self.end_server()
        ctypes.CDLL(None).umount2(bytes(self.path), MNT_DETACH)


@contextmanager
def shown_mount(path: Path, shown: Path) -> Iterator[ShownMount]:
    """A folder that is shown at another place. For root only."""
    path.mkdir()
    mount = ShownMount(path, shown)
    mount.mount()
    try:
        yield mount
    finally:
        mount.unmount()


class _Server:
    def __init__(self, connection: int, root: bytes) -> None:
        self._connection = connection
        self._path_of = {1: root}
        self._node_of = {root: 1}

    def serve(self) -> None:
        while True:
            request = os.read(self._connection, 1 << 20)
            _, verb, number, node = struct.unpack_from("<IIQQ", request)
            if verb in SILENT:
                continue
            error, told = 0, b""
            try:
                told = self._answer(verb, node, request[40:])
            except OSError as failed:
                error = -(failed.errno or errno.EIO)
            os.write(self._connection, struct.pack("<IiQ", 16 + len(told), error, number) + told)
            if verb == INIT:
                print("ready", flush=True)

    def _answer(  # noqa: PLR0911
        self, verb: int, node: int, body: bytes
    ) -> bytes:
        path = self._path_of.get(node, b"/nowhere")
        if verb == INIT:
            return struct.pack("<IIIIHHIIHHI28x", 7, 31, 0, 0, 16, 12, 4096, 1, 1, 0, 0)
        if verb == LOOKUP:
            below = path + b"/" + body.rstrip(b"\0")
            found = os.lstat(below)
            number = self._node_of.setdefault(below, len(self._node_of) + 1)
            self._path_of[number] = below
            return struct.pack("<QQQQII", number, 0, 0, 0, 0, 0) + _attributes(found)
        if verb == GETATTR:
            return struct.pack("<QII", 0, 0, 0) + _attributes(os.lstat(path))
        if verb in (OPEN, OPENDIR):
            return struct.pack("<QII", 0, 0, 0)
        if verb == READ:
            _, offset, size = struct.unpack_from("<QQI", body)
            fd = os.open(path, os.O_RDONLY)
            try:
                return os.pread(fd, size, offset)
            finally:
                os.close(fd)
        if verb == READDIR:
            _, offset, size = struct.unpack_from("<QQI", body)
            return self._listing(path, offset, size)
        if verb == STATFS:
            return struct.pack("<QQQQQIIII24x", 1, 0, 0, 1, 0, 4096, 255, 4096, 0)
        if verb in (RELEASE, RELEASEDIR, FLUSH):
            return b""
        raise OSError(errno.ENOSYS, "not known")

    def _listing(self, path: bytes, offset: int, size: int) -> bytes:
        told = b""
        for at, name in enumerate(sorted(os.listdir(path))):  # noqa: PTH208
            mode = os.lstat(path + b"/" + name).st_mode
            entry = struct.pack("<QQII", at + 2, at + 1, len(name), stat.S_IFMT(mode) >> 12) + name
            entry += bytes(-len(entry) % 8)
            if at < offset:
                continue
            if len(told) + len(entry) > size:
                break
            told += entry
        return told


def _attributes(found: os.stat_result) -> bytes:
    seconds = [at // 10**9 for at in (found.st_atime_ns, found.st_mtime_ns, found.st_ctime_ns)]
    rest = [at % 10**9 for at in (found.st_atime_ns, found.st_mtime_ns, found.st_ctime_ns)]
    kind = (found.st_mode, found.st_nlink, found.st_uid, found.st_gid, 0, 4096, 0)
    return struct.pack("<6Q3I7I", found.st_ino, found.st_size, found.st_blocks, *seconds, *rest, *kind)


if __name__ == "__main__":
    _Server(int(sys.argv[1]), sys.argv[2].encode()).serve()
