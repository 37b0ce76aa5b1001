"""One owner of a cache directory: its marker says whose it is, its lock who owns it now."""

import fcntl
import os
from pathlib import Path
from typing import Final

from stager.errors import CacheError, CacheOwned
from stager.text import shown

MARKER: Final = "stager cache 1\n"


SERVICE: Final = "service"
WHAT_BYTES: Final = 300
PRIVATE: Final = 0o600  # who may open a file to read can hold a lock on it, and so stop us


def claim(directory: Path, what: str) -> int:
    """Make the directory ours, or say why not; return the lock's file descriptor.

    `what`: SERVICE, or the command that we are: whoever comes later is told.
    """
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
        lock_fd = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
        try:
            # lockf, not flock: it is gone with the owner, even while a forked child lives on.
            fcntl.lockf(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = _owned(directory, os.pread(lock_fd, WHAT_BYTES, 0))
            os.close(lock_fd)
            raise owner from None
        os.fchmod(lock_fd, PRIVATE)
        os.ftruncate(lock_fd, 0)
        os.pwrite(lock_fd, f"{os.getpid()}\n{shown(what)}".encode()[:WHAT_BYTES], 0)
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


def make_private(catalog: Path) -> None:
    """Have the catalog, and the log that SQLite keeps beside it, be for nobody else's eyes and locks."""
    os.close(os.open(catalog, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE))
    catalog.with_name(f"{catalog.name}-shm").unlink(missing_ok=True)
    for path in (catalog, catalog.with_name(f"{catalog.name}-wal")):
        if path.exists():
            path.chmod(PRIVATE)


def _owned(directory: Path, told: bytes) -> CacheOwned:
    """Who has the lock, by its own word. One that says nothing of itself is taken for a service."""
    pid, _, what = told.decode("utf-8", "replace").partition("\n")
    pid, what = pid.strip() or "unknown", what.strip() or SERVICE
    hint = "wait for it to end, or use another [cache] dir"
    if what == SERVICE:
        hint = "if you cannot reach it, check [service] socket; or use another [cache] dir"
    return CacheOwned(f"{directory} is in use by process {pid} ({what})", hint, pid, what)
