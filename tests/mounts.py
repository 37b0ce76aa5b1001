"""Small file systems of memory, to fill and to break: nothing else gets full."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


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
