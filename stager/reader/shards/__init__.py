"""Open shards, as readers have them: rows by their offsets, whatever the format."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from stager.errors import UsageError
from stager.reader.shards.arrow import ArrowReader
from stager.reader.shards.lmdb import LmdbReader
from stager.reader.values import ShardReader

SUFFIXES: Final = {"arrow": ".arrow", "lmdb": ".lmdb"}  # of files, by the name of their format
_READERS: Final[dict[str, Callable[[Path], ShardReader]]] = {".arrow": ArrowReader, ".lmdb": LmdbReader}


def open_shard(path: Path) -> ShardReader:
    """Open a shard by its suffix. Raise ShardGone or ShardCorrupt if it cannot be read."""
    if path.suffix not in _READERS:
        raise UsageError(f"{path}: no shard format has the suffix {path.suffix!r}")
    return _READERS[path.suffix](path)
