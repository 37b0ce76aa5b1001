"""The only way a file of ours comes to be: written under a scratch name, then renamed."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

PRIVATE: Final = 0o600  # who may open a file to read can hold a lock on it, and so stop us


def fsync_path(path: Path) -> None:
    """Make a file's bytes, or a directory's names, durable."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def atomic_path(target: Path, scratch_dir: Path) -> Iterator[Path]:
    """Yield a scratch path. On success it becomes `target`, durably; on error nothing is left."""
    scratch = scratch_dir / f"{target.name}.{os.getpid()}"
    try:
        yield scratch
        fsync_path(scratch)
        scratch.replace(target)
        fsync_path(target.parent)  # a rename is durable only once its directory is
    finally:
        scratch.unlink(missing_ok=True)
