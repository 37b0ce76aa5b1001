"""What open shards of both formats have in common."""

from abc import ABC, abstractmethod
from pathlib import Path

import numpy as np

from stager.model import Arrays
from stager.shards.envelope import ENVELOPE_PARTS, Envelope
from stager.shards.trailer import read_trailer


class OpenShard(ABC):
    """A mapped shard whose trailer was checked. `_parts`: what a format has beside the envelope's."""

    def __init__(self, path: Path, data: memoryview, trailer_end: int) -> None:
        metadata, parts = read_trailer(path, data, trailer_end)
        self.path = path
        self._parts = parts[ENVELOPE_PARTS:]
        self._envelope = Envelope.read(path, metadata, parts[:ENVELOPE_PARTS])
        self.header = self._envelope.header
        self.checksums = self._envelope.checksums
        self._start = np.frombuffer(data, np.uint8).ctypes.data

    def __len__(self) -> int:
        return len(self.checksums)

    @abstractmethod
    def row(self, row: int) -> Arrays: ...

    def places(self, row: int) -> list[tuple[int, int]]:
        return [(array.ctypes.data - self._start, array.nbytes) for array in self.row(row).values()]

    def identities(self) -> list[tuple[str, str]]:
        return self._envelope.identities()

    def close(self) -> None:
        """Let go of the file. It is unmapped once the last array from it is gone."""
        vars(self).clear()
