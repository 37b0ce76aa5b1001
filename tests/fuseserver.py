"""A FUSE server that shows a directory, read-only, and hangs or fails when it is told to.

    fuseserver.py CONNECTION ROOT MOUNT

It speaks the kernel's protocol by itself. On stdin: `hang`, `answer`, `fail ERRNO`; each is answered `done`.
"""

# Paths are those of the kernel here.
# ruff: noqa: PTH115, PTH118

import ctypes
import errno
import os
import selectors
import struct
import sys
from collections.abc import Callable
from typing import Any, Final

MNT_DETACH: Final = 2
ROOT_NODE: Final = 1
HEADER: Final = struct.Struct("<IIQQIIII")  # length, verb, number, node, uid, gid, pid
FORGET, FORGETS, INTERRUPT, DESTROY, INIT = 2, 42, 36, 38, 26
UNANSWERED: Final = {FORGET, FORGETS, INTERRUPT, DESTROY}


class Server:
    """Nodes are numbers for paths; none is ever forgotten."""

    def __init__(self, connection: int, root: str) -> None:
        self.connection = connection
        self.paths = {ROOT_NODE: root}
        self.nodes = {root: ROOT_NODE}
        self.files: dict[int, Any] = {}  # handle -> file descriptor, or names
        self.last = 0
        self.hangs, self.error = False, 0
        self.waiting: list[bytes] = []
        self.verbs: dict[int, Callable[[int, bytes], bytes]] = {
            1: self.lookup, 3: self.getattr, 5: self.readlink, 14: self.open, 15: self.read, 17: self.statfs,
            18: self.release, 25: self.nothing, 27: self.opendir, 28: self.readdir, 29: self.release,
            34: self.nothing,
        }  # fmt: skip

    def serve(self) -> None:
        with selectors.DefaultSelector() as both:
            both.register(self.connection, selectors.EVENT_READ)
            both.register(sys.stdin, selectors.EVENT_READ)
            while True:
                for key, _ in both.select():
                    if key.fileobj is sys.stdin:
                        self.told()
                    else:
                        self.take()

    def take(self) -> None:
        try:
            request = os.read(self.connection, 1 << 20)
        except OSError as error:
            if error.errno == errno.ENODEV:
                sys.exit()  # it was unmounted
            if error.errno in (errno.ENOENT, errno.EAGAIN, errno.EINTR):
                return  # who asked was interrupted
            raise
        self.asked(request)

    def told(self) -> None:
        command, _, number = sys.stdin.readline().strip().partition(" ")
        if not command:
            # Whoever started us is gone: a mount that is left behind breaks all who look into its folder.
            ctypes.CDLL(None).umount2(os.fsencode(sys.argv[3]), MNT_DETACH)
            sys.exit()
        self.hangs, self.error = command == "hang", int(number or 0)
        if not self.hangs:
            waiting, self.waiting = self.waiting, []
            for request in waiting:
                self.asked(request)
        print("done", flush=True)

    def asked(self, request: bytes) -> None:
        _, verb, number, node, *_ = HEADER.unpack_from(request)
        if verb in UNANSWERED:
            return
        if verb == INIT:
            told = struct.pack("<IIIIHHIIHHI28x", 7, 31, 1 << 17, 0, 16, 12, 4096, 1, 1, 0, 0)
            self.say(number, 0, told)
            print("ready", flush=True)
        elif self.hangs:
            self.waiting.append(request)
        elif self.error or verb not in self.verbs:
            self.say(number, self.error or errno.ENOSYS)
        else:
            try:
                self.say(number, 0, self.verbs[verb](node, request[HEADER.size :]))
            except OSError as error:
                self.say(number, error.errno or errno.EIO)

    def say(self, number: int, error: int, told: bytes = b"") -> None:
        try:
            os.write(self.connection, struct.pack("<IiQ", 16 + len(told), -error, number) + told)
        except FileNotFoundError:
            return  # who asked was interrupted

    def lookup(self, node: int, body: bytes) -> bytes:
        path = os.path.join(self.paths[node], os.fsdecode(body.rstrip(b"\0")))
        found = os.lstat(path)
        if path not in self.nodes:
            self.nodes[path] = len(self.nodes) + 1
            self.paths[self.nodes[path]] = path
        return struct.pack("<QQQQII", self.nodes[path], 0, 0, 0, 0, 0) + self.attributes(path, found)

    def attributes(self, path: str, found: os.stat_result) -> bytes:
        times = found.st_atime_ns, found.st_mtime_ns, found.st_ctime_ns
        return struct.pack(
            "<QQQQQQIIIIIIIIII",
            *(self.nodes[path], found.st_size, found.st_blocks),
            *(time // 10**9 for time in times),
            *(time % 10**9 for time in times),
            *(found.st_mode, found.st_nlink, found.st_uid, found.st_gid, 0, 4096, 0),
        )

    def getattr(self, node: int, body: bytes) -> bytes:
        path = self.paths[node]
        return struct.pack("<QII", 0, 0, 0) + self.attributes(path, os.lstat(path))

    def readlink(self, node: int, body: bytes) -> bytes:
        return os.fsencode(os.readlink(self.paths[node]))

    def handle(self, of: Any) -> bytes:
        self.last += 1
        self.files[self.last] = of
        return struct.pack("<QII", self.last, 0, 0)

    def open(self, node: int, body: bytes) -> bytes:
        return self.handle(os.open(self.paths[node], os.O_RDONLY))

    def read(self, node: int, body: bytes) -> bytes:
        handle, offset, size = struct.unpack_from("<QQI", body)
        return os.pread(self.files[handle], size, offset)

    def release(self, node: int, body: bytes) -> bytes:
        of = self.files.pop(struct.unpack_from("<Q", body)[0])
        if isinstance(of, int):
            os.close(of)
        return b""

    def opendir(self, node: int, body: bytes) -> bytes:
        with os.scandir(self.paths[node]) as entries:
            return self.handle([(entry.name, entry.is_dir(), entry.is_symlink()) for entry in entries])

    def readdir(self, node: int, body: bytes) -> bytes:
        handle, offset, size = struct.unpack_from("<QQI", body)
        told = b""
        for at, (name, is_folder, is_link) in enumerate(self.files[handle][offset:], offset + 1):
            raw, kind = os.fsencode(name), 10 if is_link else 4 if is_folder else 8
            entry = struct.pack("<QQII", at + 1, at, len(raw), kind) + raw
            entry += b"\0" * (-len(entry) % 8)
            if len(told) + len(entry) > size:
                break
            told += entry
        return told

    def statfs(self, node: int, body: bytes) -> bytes:
        found = os.statvfs(self.paths[ROOT_NODE])
        blocks = found.f_blocks, found.f_bfree, found.f_bavail, found.f_files, found.f_ffree
        return struct.pack("<QQQQQIIII24x", *blocks, found.f_bsize, found.f_namemax, found.f_frsize, 0)

    def nothing(self, node: int, body: bytes) -> bytes:
        return b""


if __name__ == "__main__":
    Server(int(sys.argv[1]), sys.argv[2]).serve()
