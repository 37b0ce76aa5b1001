"""One owner of a cache directory: its marker says whose it is, its lock who owns it now."""

import fcntl
import os
from pathlib import Path
from typing import Final

from stager.errors import CacheError, CacheOwned

MARKER: Final = "stager cache 1\n"


def claim(directory: Path) -> int:
    """Make the directory ours, or say why not; return the lock's file descriptor."""
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o750)
        marker = directory / "CACHE"
        if not marker.exists():
            strangers = [path.name for path in directory.iterdir() if path.name not in ("lock", "lost+found")]
            if strangers:
                raise CacheError(
                    f"{directory} is not empty and not a stager cache (it has {strangers[0]!r})",
                    hint="name an empty or new directory in [cache] dir",
                )
        lock_fd = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            # lockf, not flock: it is gone with the owner, even while a forked child lives on.
            fcntl.lockf(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            pid = os.pread(lock_fd, 20, 0).decode().strip() or "unknown"
            os.close(lock_fd)
            raise CacheOwned(
                f"{directory} is in use by process {pid}",
                hint="if it is the service, check [service] socket; else wait, or use another [cache] dir",
            ) from None
        os.ftruncate(lock_fd, 0)
        os.pwrite(lock_fd, f"{os.getpid()}\n".encode(), 0)
        if not marker.exists():
            marker.write_text(MARKER)
        elif marker.read_text() != MARKER:
            os.close(lock_fd)
            raise CacheError(
                f"{directory} was made by another version of stager ({marker.read_text().strip()})",
                hint="use that version, or another [cache] dir",
            )
        for name in ("scratch", "datasets"):
            (directory / name).mkdir(exist_ok=True, mode=0o750)
        return lock_fd
    except OSError as error:
        hint = "name a directory on a writable disk in [cache] dir"
        if isinstance(error, PermissionError):
            hint = "join the group that owns it (usermod -aG stager USER), or name a [cache] dir of your own"
        told = f"{directory} cannot be used as a cache: {error.strerror or error}"
        raise CacheError(told, hint) from None
