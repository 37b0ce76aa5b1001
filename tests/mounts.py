"""File systems to fill, to break, and to hang in: nothing else is touched."""

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

MNT_DETACH = 2


@contextmanager
def small_disk(path: Path, options: str) -> Iterator[Path]:
    """A tmpfs at this path; `options` as size=4m or nr_inodes=30. Skips the test where none can be had."""
    if os.geteuid() != 0:
        pytest.skip("to mount a file system, one must be root")
    path.mkdir(exist_ok=True)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", path], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")
    try:
        assert os.path.ismount(path)  # or the test would fill, or break, the disk below it
        yield path
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)


def remount(path: Path, mode: str) -> None:
    """Make a small disk read-only (`ro`), or writable again (`rw`)."""
    assert os.path.ismount(path)
    subprocess.run(["mount", "-o", f"remount,{mode}", path], check=True)


FUSE_SERVER = """
import os, struct, sys

connection = int(sys.argv[1])
while True:
    _, verb, number = struct.unpack_from("<IIQ", os.read(connection, 1 << 20))
    if verb == 26:  # INIT; whatever comes then has been heard, and is never answered
        told = struct.pack("<IIIIHHIIHHI28x", 7, 31, 0, 0, 16, 12, 4096, 1, 1, 0, 0)
        os.write(connection, struct.pack("<IiQ", 16 + len(told), 0, number) + told)
        print("ready", flush=True)
"""


@contextmanager
def hung_mount(path: Path) -> Iterator[Path]:
    """A file system whose server does not answer any more: who looks into it hangs, and cannot be killed."""
    if os.geteuid() != 0:
        pytest.skip("to mount a file system, one must be root")
    try:
        connection = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        pytest.skip(f"there is no FUSE here: {error}")
    path.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={connection},rootmode=40000,user_id=0,group_id=0"
    if libc.mount(b"hung", bytes(path), b"fuse", 0, options.encode()):
        os.close(connection)
        pytest.skip(f"no FUSE can be mounted here: {os.strerror(ctypes.get_errno())}")
    server = subprocess.Popen(
        [sys.executable, "-c", FUSE_SERVER, str(connection)],
        pass_fds=[connection], stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        yield path
    finally:
        server.kill()
        server.communicate()
        os.close(connection)  # whoever hangs gets an error now
        assert not libc.umount2(bytes(path), MNT_DETACH)
