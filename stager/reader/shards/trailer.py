"""The trailer: what a shard says of itself, and where in the file its parts lie.

A reader goes by it and by nothing else in the file. Neither Arrow's nor LMDB's own structure is checksummed,
and both libraries can end the process on one flipped bit: pyarrow by SIGSEGV, LMDB by SIGBUS.
"""

import json
import operator
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import xxhash

from stager.errors import ShardCorrupt
from stager.reader.shards.file import ShardFile
from stager.reader.values import canonical_json

FORMAT_VERSION = 1
MAGIC = b"STGRSHRD"
Place = tuple[int, int]  # offset in the file, size in bytes

_TAIL = struct.Struct("<8sIIQQQ")  # magic, version, flags, file bytes, text bytes, head bytes
_CHECKSUM = struct.Struct("<Q")
TAIL_BYTES = _TAIL.size + _CHECKSUM.size


def pack_trailer(
    metadata: dict[str, Any], places: Sequence[Place], start: int, alignment: int, head: bytes, foot: bytes
) -> bytes:
    """The trailer for offset `start`, of which head, the file's first bytes, and foot, the last, are a part.

    It is filled up with spaces, so that what comes behind it begins at a multiple of `alignment`.
    """
    text = canonical_json(metadata | {"places": places}).encode()
    text += b" " * (-(start + len(text) + TAIL_BYTES) % alignment)
    file_bytes = start + len(text) + TAIL_BYTES + len(foot)
    tail = _TAIL.pack(MAGIC, FORMAT_VERSION, 0, file_bytes, len(text), len(head))
    return text + tail + _CHECKSUM.pack(_checksum(head, text + tail, foot))


def read_trailer(file: ShardFile, end: int) -> tuple[dict[str, Any], list[Place]]:
    """The metadata of a shard whose trailer ends at `end`, and where its parts lie. Raise ShardCorrupt."""
    path, size_bytes, tail_at = file.path, file.size_bytes, end - TAIL_BYTES
    if not 0 <= tail_at <= size_bytes - TAIL_BYTES:
        raise ShardCorrupt(f"{path}: no trailer where it should be: not a whole shard")
    tail = file.read(tail_at, TAIL_BYTES)
    magic, version, _, file_bytes, text_bytes, head_bytes = _TAIL.unpack_from(tail)
    if magic != MAGIC:
        raise ShardCorrupt(f"{path}: no trailer where it should be: not a whole shard")
    _check_version(path, version)
    if file_bytes != size_bytes:
        raise ShardCorrupt(f"{path}: {size_bytes} bytes, but it was written with {file_bytes}")
    text_at = max(0, tail_at - text_bytes)
    text = file.read(text_at, tail_at - text_at)
    head, foot = file.read(0, min(head_bytes, size_bytes)), file.read(end, size_bytes - end)
    (checksum,) = _CHECKSUM.unpack_from(tail, _TAIL.size)
    if _checksum(head, text, tail[: _TAIL.size], foot) != checksum:
        raise ShardCorrupt(f"{path}: the trailer does not match its checksum")
    metadata = json.loads(text)
    return metadata, [(operator.index(at), operator.index(size)) for at, size in metadata["places"]]


def _checksum(*parts: bytes) -> int:
    state = xxhash.xxh3_64()
    for part in parts:
        state.update(part)
    return state.intdigest()


def _check_version(path: Path, version: int) -> None:
    if version > FORMAT_VERSION:
        raise ShardCorrupt(
            f"{path}: shard format {version} is newer than {FORMAT_VERSION}, the newest this stager reads",
            hint="upgrade stager here, or evict the data set and stage it again",
        )
    if version != FORMAT_VERSION:
        raise ShardCorrupt(f"{path}: there is no shard format {version}")
