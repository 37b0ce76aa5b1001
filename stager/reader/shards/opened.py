"""What open shards of both formats have in common."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy.typing as npt

from stager.errors import ShardCorrupt
from stager.reader.shards.envelope import ENVELOPE_PARTS, Envelope
from stager.reader.shards.file import ShardFile
from stager.reader.shards.stored import read_stored
from stager.reader.shards.trailer import Place, read_trailer
from stager.reader.values import Arrays, Starts, StoredArray

# What Python raises at a number, a text or a list where something else is expected.
_NONSENSE: Final = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)


class OpenShard(ABC):
    """A shard whose trailer and envelope were checked. Of these it keeps the checksums in memory, no more.

    `_parts`: where the parts lie that a format has beside the envelope's.
    """

    def __init__(self, file: ShardFile, trailer_end: int) -> None:
        self._file, self._trailer_end = file, trailer_end
        self.descriptor, self.held = file.descriptor, file.held
        with _makes_sense(file.path):
            envelope, self._parts = self._read_envelope()
            self.header = envelope.header
            self.checksums = envelope.checksums
            for place in self._parts:
                file.check(*place)
            self._take_parts()

    def __len__(self) -> int:
        return len(self.checksums)

    @abstractmethod
    def _take_parts(self) -> None:
        """Look where the arrays lie. Raise what Python raises if that cannot be."""

    @abstractmethod
    def starts(self, field: str) -> Starts | None: ...

    @abstractmethod
    def _stored(self, row: int) -> Iterator[tuple[str, StoredArray]]:
        """The arrays of a row by the names of their fields. Raise ValueError if they cannot be."""

    def row(self, row: int) -> Arrays:
        return {name: self.read(stored) for name, stored in self.stored(row).items()}

    def stored(self, row: int) -> dict[str, StoredArray]:
        try:
            return dict(self._stored(row))
        except ValueError as error:
            raise ShardCorrupt(f"{self._file.path}: row {row}: {error}") from None

    def read(self, stored: StoredArray) -> npt.NDArray[Any]:
        return read_stored(self._file, stored)

    def places(self, row: int) -> list[Place]:
        return [(stored.offset, stored.size_bytes) for stored in self.stored(row).values()]

    def identities(self) -> list[tuple[str, str]]:
        with _makes_sense(self._file.path):
            return self._read_envelope()[0].identities()

    def is_gone(self) -> bool:
        return self._file.is_gone()

    def close(self) -> None:
        self._file.close()

    def _read_envelope(self) -> tuple[Envelope, list[Place]]:
        metadata, places = read_trailer(self._file, self._trailer_end)
        parts = [self._file.read(*place) for place in places[:ENVELOPE_PARTS]]
        return Envelope.read(self._file.path, metadata, parts), places[ENVELOPE_PARTS:]


@contextmanager
def _makes_sense(path: Path) -> Iterator[None]:
    """A trailer whose checksum fits may be nonsense all the same: another program's, or another version's."""
    try:
        yield
    except _NONSENSE as error:
        raise ShardCorrupt(f"{path}: its trailer is invalid: {error}") from error
