"""Keep the rows of a shard until all are there, for formats that write them at once."""

from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Self

from stager.model import Row, ShardHeader


class CollectedRows:
    """A shard whose file is written when it is finished. Any thread may add."""

    def __init__(
        self, path: Path, header: ShardHeader, write: Callable[[Path, ShardHeader, Sequence[Row]], None]
    ) -> None:
        self._path, self._header, self._write = path, header, write
        self._rows: dict[int, Row] = {}
        self._numbers = count()  # `next` is safe in threads

    def add(self, row: Row) -> int:
        number = next(self._numbers)
        self._rows[number] = row
        return number

    def finish(self) -> None:
        try:
            rows = [self._rows[number] for number in range(len(self._rows))]
            self._write(self._path, self._header, rows)
        except FileExistsError:
            raise
        except BaseException:
            self._path.unlink(missing_ok=True)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._rows.clear()
