"""What is mounted here, and what of it may hang. The kernel's table tells; no such mount is asked."""

import glob
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final, NamedTuple

from stager.errors import SourceSilent

TABLE: Final = Path("/proc/self/mountinfo")
LOOK_S: Final = 4.0  # that a mount may take to say whether something is there
LINKS_MOST: Final = 40  # as the kernel follows
LOCAL: Final = {  # file systems that no server, and no other process, has to answer for
    *("bcachefs", "btrfs", "erofs", "exfat", "ext2", "ext3", "ext4", "f2fs", "iso9660", "jfs", "msdos"),
    *("nilfs2", "ntfs3", "overlay", "ramfs", "reiserfs", "rootfs", "squashfs", "tmpfs", "udf", "vfat"),
    *("xfs", "zfs", "devpts", "devtmpfs", "proc", "sysfs"),
}
_ESCAPE: Final = re.compile(rb"\\([0-7]{3})")
# `LOOK` is what a process of its own does: if it hangs, it is left behind.
LOOK: Final = "import glob, os, sys; print(os.path.exists(sys.argv[1]) or bool(glob.glob(sys.argv[1])))"


class Mount(NamedTuple):
    """Where something is mounted, and what kind of file system it is."""

    path: bytes
    kind: str

    def has(self, path: bytes) -> bool:
        return _is_in(path, self.path)

    def is_in(self, path: bytes) -> bool:
        return _is_in(self.path, path)


def mounts(table: bytes | None = None) -> list[Mount]:
    """All mounts, in the order in which one hides another."""
    try:
        told = TABLE.read_bytes() if table is None else table
    except OSError:  # no Linux
        return []
    rows = [line.split(b" ") for line in told.splitlines()]
    return [
        Mount(_ESCAPE.sub(lambda found: bytes([int(found[1], 8)]), row[4]), row[row.index(b"-") + 1].decode())
        for row in rows
        if b"-" in row
    ]


def remote_mount(path: str | Path, table: list[Mount] | None = None) -> str:
    """The mount that a path lies on, links followed, if it may hang; else ''.

    A link is read only where it lies on a file system that answers.
    """
    table = mounts() if table is None else table
    at, todo, links = b"/", _names(os.fsencode(path)), 0
    while True:
        mount = mount_at(at, table)
        if mount is not None and mount.kind not in LOCAL:
            return os.fsdecode(mount.path)
        if not todo:
            return ""
        name = todo.pop()
        if name == b"..":
            at = at.rpartition(b"/")[0] or b"/"
            continue
        here = at.rstrip(b"/") + b"/" + name
        mount = mount_at(here, table)
        target = None
        if (mount is None or mount.kind in LOCAL) and links < LINKS_MOST:
            target = _target(here)
        if target is None:
            at = here
        else:
            links += 1
            at = b"/" if target.startswith(b"/") else at
            todo += _names(target)


def is_there(path: str, wait_s: float = LOOK_S) -> bool:
    """Whether there is such a path, or something that matches it as a pattern.

    If it lies on a mount that may hang, a process that can be given up looks. Raise SourceSilent.
    """
    if not remote_mount(os.path.abspath(path)):  # noqa: PTH100 (Path.absolute keeps `..`)
        return os.path.exists(path) or bool(glob.glob(path))  # noqa: PTH110, PTH207
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", LOOK, path],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        told, _ = process.communicate(timeout=wait_s)
    except subprocess.TimeoutExpired:
        process.kill()  # it may not even die of that, so nobody waits for it but a thread
        assert process.stdout is not None
        process.stdout.close()
        threading.Thread(target=process.wait, name="left-behind", daemon=True).start()
        raise SourceSilent(f"{path}: no answer for {wait_s:.0f} s", hint="is the mount alive?") from None
    return told.strip() == b"True"


def _names(path: bytes) -> list[bytes]:
    """The names on the way, the last one first."""
    return [name for name in reversed(path.split(b"/")) if name not in (b"", b".")]


def mount_at(path: bytes, table: list[Mount]) -> Mount | None:
    """The one that a path lies on: the longest, and of several at one place the last."""
    return max(
        (mount for mount in reversed(table) if mount.has(path)),
        key=lambda mount: len(mount.path),
        default=None,
    )


def _target(path: bytes) -> bytes | None:
    """Where a link leads; None, if it is none."""
    try:
        return os.readlink(path)  # noqa: PTH115 (paths are bytes here)
    except OSError:
        return None


def _is_in(path: bytes, folder: bytes) -> bool:
    return path == folder or path.startswith(folder.rstrip(b"/") + b"/")
