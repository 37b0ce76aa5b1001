"""The rows of the catalog."""

from dataclasses import dataclass

import numpy as np

from stager.reader.values import Numbers


@dataclass(frozen=True, slots=True)
class ListRow:
    """The samples that a data set ever had, whatever the recipe, and its newest manifest."""

    name: str
    lineage: str
    segments: tuple[str, ...]
    samples: int
    manifest: str


@dataclass(frozen=True, slots=True)
class DatasetRow:
    id: int
    name: str
    recipe: str
    spec: str
    scanned_at: float
    is_current: bool
    origin_reads: int
    origin_bytes: int


@dataclass(frozen=True, slots=True)
class ShardRow:
    number: int
    dataset: int
    format: str
    bytes: int
    samples: Numbers
    is_pinned: bool
    created_at: float
    is_asked: bool = False

    @property
    def dead_rows(self) -> list[int]:
        """Rows whose sample was evicted, or is not in the manifest any more."""
        return np.flatnonzero(self.samples < 0).tolist()


@dataclass(frozen=True, slots=True)
class Holdings:
    """What the shards of a data set add up to. `bytes`: with those of dead rows, given back or not."""

    formats: tuple[str, ...]
    shards: int
    pinned: int
    bytes: int


@dataclass(frozen=True, slots=True)
class FailureRow:
    dataset: int
    sample: int
    key: bytes
    reason: str
    detail: str
    at: float


@dataclass(frozen=True, slots=True)
class LeaseRow:
    """A session that reads a version. `began`: of its process, as leases.py has it."""

    session: str
    dataset: str
    manifest: str
    pid: int
    began: int


@dataclass(frozen=True, slots=True)
class DepartureRow:
    at: float
    reason: str
    detail: str
    samples: Numbers
