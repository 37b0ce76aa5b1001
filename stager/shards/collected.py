"""Keep the rows of a shard until all are there, for formats that write them at once."""

import os
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Self

from stager.reader.values import Prepared, ShardHeader
from stager.shards.allocate import take_room

Fill = Callable[[Path, ShardHeader, Sequence[Prepared]], None]


def write_rows(path: Path, header: ShardHeader, rows: Sequence[Prepared], fill: Fill) -> None:
    """Write a whole shard to a new file."""
    with CollectedRows(path, header, fill, room_bytes=0) as shard:
        for row in rows:
            shard.add(row)
        shard.finish()


class CollectedRows:
    """A shard whose file is written when it is finished. It has its room from the start. Any thread may add.

    `fill` writes the rows to a file that is there, and empty.
    """

    def __init__(
        self,
        path: Path,
        header: ShardHeader,
        fill: Fill,
        room_bytes: int,
    ) -> None:
        self._path, self._header, self._fill = path, header, fill
        self._rows: dict[int, Prepared] = {}
        self._numbers = count()  # `next` is safe in threads
        self._is_whole = False
        with path.open("xb", buffering=0) as file:
            try:  # a full disk says so now, and others that fill it later do not take our room
                take_room(file.fileno(), room_bytes)
            except BaseException:
                path.unlink()
                raise

    def add(self, row: Prepared) -> int:
        number = next(self._numbers)
        self._rows[number] = row
        return number

    def finish(self) -> None:
        self._fill(self._path, self._header, [self._rows[number] for number in range(len(self._rows))])
        os.truncate(self._path, self._path.stat().st_size)  # room that was not needed
        self._is_whole = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._rows.clear()
        if not self._is_whole:
            self._path.unlink()
