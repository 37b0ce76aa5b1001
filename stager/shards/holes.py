"""Give the space of single rows back to the file system: a shard keeps its size, its dead rows become holes.

A row may be punched out only when no index points to it any more. A reader that was copying it sees zeros,
looks at the index again after the copy, and takes it for a miss: so no wrong byte is ever handed out.
"""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from stager.reader.values import ShardReader
from stager.shards.allocate import give_back

Place = tuple[int, int]  # offset in the file, size in bytes

BLOCK_BYTES: Final = 4096  # only whole blocks can be given back


def holes_of(shard: ShardReader, dead_rows: Iterable[int]) -> list[Place]:
    """The whole blocks that hold nothing but dead rows."""
    places = sorted(place for row in dead_rows for place in shard.places(row))
    return [hole for hole in map(_whole_blocks, _joined(places)) if hole[1] > 0]


def size_of(holes: Sequence[Place]) -> int:
    """In bytes, all together."""
    return sum(size for _, size in holes)


def punch(path: Path, holes: Sequence[Place]) -> bool:
    """Give these parts of a file back. False: this file system cannot. Punching twice does no harm."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        return all(give_back(fd, *hole) for hole in holes)
    finally:
        os.close(fd)


def can_punch(directory: Path) -> bool:
    """Whether the file system of a directory can give back a part of a file."""
    path = directory / f"punch-{os.getpid()}"
    try:
        path.write_bytes(bytes(BLOCK_BYTES))
        return punch(path, [(0, BLOCK_BYTES)])
    except OSError:
        return False
    finally:
        path.unlink(missing_ok=True)


def _joined(places: Sequence[Place]) -> list[Place]:
    """Places that touch, or that share a block, as one."""
    joined: list[Place] = []
    for offset, size_bytes in places:
        if joined and offset <= sum(joined[-1]):
            start = joined[-1][0]
            joined[-1] = (start, max(sum(joined[-1]), offset + size_bytes) - start)
        else:
            joined.append((offset, size_bytes))
    return joined


def _whole_blocks(place: Place) -> Place:
    start = -(-place[0] // BLOCK_BYTES) * BLOCK_BYTES
    return start, (sum(place)) // BLOCK_BYTES * BLOCK_BYTES - start
