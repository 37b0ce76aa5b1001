"""Keep the rows of a shard until all are there, for formats that write them at once."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from stager.model import Row, ShardHeader


class CollectedRows:
    """A shard whose file is written when it is finished. Any thread may add."""

    def __init__(
        self, path: Path, header: ShardHeader, write: Callable[[Path, ShardHeader, Sequence[Row]], None]
    ) -> None:
        self._path, self._header, self._write = path, header, write
        self._rows: list[Row] = []
        self._lock = threading.Lock()

    def add(self, row: Row) -> int:
        with self._lock:
            self._rows.append(row)
            return len(self._rows) - 1

    def finish(self) -> None:
        try:
            self._write(self._path, self._header, self._rows)
        except FileExistsError:
            raise
        except BaseException:
            self._path.unlink(missing_ok=True)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._rows.clear()
