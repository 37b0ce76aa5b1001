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
SERVER = Path(__file__).parent / "fuseserver.py"


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


class ServedMount:
    """A FUSE mount of a directory, whose server does as it is told (`fuseserver.py`)."""

    def __init__(self, path: Path, root: Path) -> None:
        self.path, self.root = path, root
        self._libc = ctypes.CDLL(None, use_errno=True)
        path.mkdir(exist_ok=True)
        self.come_back()

    def come_back(self) -> None:
        """Mount it, also anew: another device than before."""
        try:
            self._connection = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            pytest.skip(f"there is no FUSE here: {error}")
        options = f"fd={self._connection},rootmode=40000,user_id=0,group_id=0,allow_other"
        if self._libc.mount(b"served", bytes(self.path), b"fuse", 0, options.encode()):
            os.close(self._connection)
            pytest.skip(f"no FUSE can be mounted here: {os.strerror(ctypes.get_errno())}")
        self._server = subprocess.Popen(
            [sys.executable, str(SERVER), str(self._connection), str(self.root), str(self.path)],
            pass_fds=[self._connection], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._expect("ready")

    def hang(self) -> None:
        """From now on nothing is answered: who looks into it hangs, and cannot be killed."""
        self._tell("hang")

    def answer(self) -> None:
        """What waits is answered, and all that comes."""
        self._tell("answer")

    def fail(self, number: int) -> None:
        """All that comes is answered with this error."""
        self._tell(f"fail {number}")

    def disconnect(self) -> None:
        """Its server ends: what waits and all that comes gets ENOTCONN."""
        self._server.kill()
        self._server.communicate()
        os.close(self._connection)

    def vanish(self) -> None:
        """It is unmounted: there is the empty folder below it."""
        assert not self._libc.umount2(bytes(self.path), MNT_DETACH)
        self.disconnect()

    def replace(self) -> None:
        """It is mounted anew, over the one that hangs, whose server ends: at no moment is there nothing."""
        server, connection = self._server, self._connection
        self.come_back()
        server.kill()
        server.communicate()
        os.close(connection)

    def _tell(self, command: str) -> None:
        assert self._server.stdin is not None
        self._server.stdin.write(f"{command}\n")
        self._server.stdin.flush()
        self._expect("done")

    def _expect(self, word: str) -> None:
        assert self._server.stdout is not None
        assert self._server.stdout.readline() == f"{word}\n"

    def end(self) -> None:
        """Whoever hangs gets an error now."""
        if self._server.poll() is None:
            self.disconnect()
        while not self._libc.umount2(bytes(self.path), MNT_DETACH):
            continue  # it may be mounted more than once; one whose server is gone does not even look like it


@contextmanager
def served_mount(path: Path, root: Path) -> Iterator[ServedMount]:
    """A directory, as a mount shows it. Skips the test where none can be had."""
    if os.geteuid() != 0:
        pytest.skip("to mount a file system, one must be root")
    mount = ServedMount(path, root)
    try:
        yield mount
    finally:
        mount.end()


@contextmanager
def hung_mount(path: Path) -> Iterator[Path]:
    """A file system whose server does not answer any more: who looks into it hangs, and cannot be killed."""
    root = path.with_name(f"{path.name}-below")
    root.mkdir()
    with served_mount(path, root) as mount:
        mount.hang()
        yield path
