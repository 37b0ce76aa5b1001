"""Pickles, for callers who say `pickle=True`: of our own user only, since to load one is to run it."""

import os
import pickle  # the only place: a test looks
from pathlib import Path
from typing import Any

from stager.errors import CacheError


def pickled(value: Any) -> bytes:
    """Raise whatever the value raises that cannot be pickled."""
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


def unpickled(path: Path) -> Any:
    """Raise CacheError if it is not ours: the cache may be written by others, too."""
    check_own(path)
    with path.open("rb") as file:
        return pickle.load(file)  # noqa: S301


def check_own(path: Path) -> None:
    """Raise CacheError if somebody else has written this."""
    owner = path.stat().st_uid
    if owner not in (os.geteuid(), 0):
        raise CacheError(f"user {owner} has written it, and to load it is to run their code")
