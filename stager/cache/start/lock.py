"""One owner of a cache directory: its marker says whose it is, its lock who owns it now."""

import fcntl
import os
import re
from pathlib import Path
from typing import Final

from stager.atomic import PRIVATE, atomic_path, fsync_path
from stager.errors import CacheError, CacheOwned, shown
from stager.reader.places import how_to_join

MARKER: Final = "stager cache 1\n"
_BEFORE: Final = re.compile(r"lock|memo|lost\+found|CACHE\.\d+")  # what may be there before the marker is
_OURS: Final = re.compile(
    _BEFORE.pattern + r"|CACHE|scratch|datasets|made|stager\.sock|catalog\.(db(-wal|-shm)?|broken-\d+)"
)

SERVICE: Final = "service"
WHAT_BYTES: Final = 300


def lock_cache(directory: Path, what: str) -> int:
    """Make the directory ours, or say why not; return the lock's file descriptor.

    `what`: SERVICE, or the command that we are: whoever comes later is told.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o750)
        is_marked = _is_ours(directory)
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
        if not is_marked:
            _mark(directory)
        for name in ("scratch", "datasets"):
            (directory / name).mkdir(exist_ok=True, mode=0o750)
        return lock_fd
    except OSError as error:
        hint = "name a directory on a writable disk in $XDG_CACHE_HOME, or in [cache] dir of stager.toml"
        if isinstance(error, PermissionError) and _is_there(directory):
            hint = how_to_join(directory)
        told = f"{directory} cannot be used as a cache: {error.strerror or error}"
        raise CacheError(told, hint) from None


def _is_ours(directory: Path) -> bool:
    """Whether the marker is there and whole. Raise CacheError if this is somebody else's directory.

    A marker that is damaged, or that a power cut left empty, is written anew if all else is ours: whether we
    can read what is there, the catalog's own version says.
    """
    marker = directory / "CACHE"
    names = {path.name for path in directory.iterdir()}
    if "CACHE" in names and marker.read_bytes() == MARKER.encode():
        return True
    ours = _OURS if "CACHE" in names else _BEFORE
    strangers = sorted(name for name in names if not ours.fullmatch(name))
    if strangers:
        raise CacheError(
            f"{directory} is not empty and not a stager cache (it has {shown(strangers[0])!r})",
            hint="name an empty or new directory in [cache] dir",
        )
    return False


def _is_there(directory: Path) -> bool:
    """Also where we may not look."""
    try:
        directory.stat()
    except FileNotFoundError:
        return False
    except OSError:
        pass
    return True


def _mark(directory: Path) -> None:
    """Say that the directory is ours, durably, before anything else is in it."""
    with atomic_path(directory / "CACHE", directory) as scratch:
        scratch.write_text(MARKER)
    fsync_path(directory.parent)


def _owned(directory: Path, told: bytes) -> CacheOwned:
    """Who has the lock, by its own word. One that says nothing of itself is taken for a service."""
    pid, _, what = told.decode("utf-8", "replace").partition("\n")
    pid, what = pid.strip() or "unknown", what.strip() or SERVICE
    hint = "wait for it to end, or use another [cache] dir"
    if what == SERVICE:
        hint = "if you cannot reach it, check [service] socket; or use another [cache] dir"
    return CacheOwned(f"{directory} is in use by process {pid} ({what})", hint, pid, what)
