"""Where things are if no config says so: the config itself, the cache, the service's socket."""

import grp
import os
import pwd
import stat
from pathlib import Path
from typing import Final

from stager.errors import UsageError

SYSTEM_RUNTIME: Final = Path("/run")


def expanded(path: str | Path) -> Path:
    """The path with ~ as a home directory. Not everybody has one."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise UsageError(
            f"{path}: there is no such home directory",
            hint="set HOME, or write the whole path ([cache] dir in stager.toml, or $XDG_CACHE_HOME)",
        ) from None


def config_paths() -> list[Path]:
    """Where a stager.toml is looked for, in this order."""
    try:
        own = [expanded("~/.config/stager/stager.toml")]
    except UsageError:
        own = []
    return [Path("stager.toml"), *own, Path("/etc/stager/stager.toml")]


def default_cache_dir() -> Path:
    """The user's own: $XDG_CACHE_HOME, or ~/.cache."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (named if named.is_absolute() else expanded("~/.cache")) / "stager"


def default_socket(cache_dir: Path) -> Path:
    """In the user's runtime directory, or the system's for root; else beside what is staged."""
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR", ""))
    if runtime.is_absolute() and _is_ours(runtime):
        return runtime / "stager" / "stager.sock"
    if os.geteuid() == 0:
        return SYSTEM_RUNTIME / "stager" / "stager.sock"
    return cache_dir / "stager.sock"


def how_to_join(path: Path) -> str:
    """What somebody can do who may not use a cache or socket: a group has it, or its owner alone."""
    found = next((place for place in (path, *path.parents) if os.access(place, os.F_OK)), Path("/"))
    about = found.stat()
    if about.st_gid == 0 or not about.st_mode & stat.S_IRWXG:
        return (
            f"it is for {_name_of_user(about.st_uid)} alone: set [cache] dir and [service] socket to paths of"
            " your own; or have root run the service for a group (systemd/README.md)"
        )
    return f"join its group: usermod -aG {_name_of_group(about.st_gid)} USER, and log in again"


def _name_of_user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:  # as in a container
        return str(number)


def _name_of_group(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)


def _is_ours(directory: Path) -> bool:
    """Whether we may use it: after `su`, the variable can still name that of another user."""
    try:
        return directory.stat().st_uid == os.geteuid()
    except OSError:
        return False
