"""The root of a watched directory: what is there now, and whether its file system tells of changes."""

import os
from dataclasses import dataclass
from typing import Final

from stager.errors import SourceNotFound
from stager.mounts import LOCAL, Mount, mount_at

# Local disks, whose changes all go through this machine's kernel. Any other kind is looked through.
WITH_EVENTS: Final = LOCAL - {"devpts", "devtmpfs", "proc", "sysfs"}


@dataclass(frozen=True, slots=True)
class Root:
    """A directory that is there, under its real path."""

    path: str
    device: int
    inode: int


def find_root(path: str) -> Root:
    """What is there now. Raise SourceNotFound if that is nothing: so a mount looks that is not there."""
    try:
        real = os.path.realpath(path)
        found = os.stat(real)  # noqa: PTH116
        with os.scandir(real) as entries:
            is_empty = next(entries, None) is None
    except OSError as error:
        raise SourceNotFound(f"{path}: {error.strerror}", hint="is the mount there?") from None
    if is_empty:
        raise SourceNotFound(f"{path}: nothing is there", hint="is the mount there?")
    return Root(real, found.st_dev, found.st_ino)


def kinds_of(root: str, table: list[Mount]) -> list[str]:
    """The kinds of the file systems that a folder, and what lies below it, is on; of those without events."""
    at = os.fsencode(root)
    above, below = mount_at(at, table), {mount.path: mount.kind for mount in table if mount.is_in(at)}
    return sorted({above.kind if above else "unknown", *below.values()} - WITH_EVENTS)
