"""A data set of a cache, open by one recipe: its samples, its newest manifest, its index."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stager.cache.heat import Heat
from stager.cache.index_writer import IndexWriter
from stager.cache.loss_log import LossLog
from stager.catalog.rows import ShardRow
from stager.reader.index import is_failed, is_resident
from stager.reader.record import DatasetRecord, DatasetSpec, manifest_path, shard_path
from stager.reader.samples.manifest import Manifest
from stager.reader.samples.sample_list import SampleList
from stager.reader.values import Numbers


@dataclass(frozen=True, slots=True)
class Failure:
    """One sample that cannot be had, and why."""

    sample: int
    reason: str
    detail: str


@dataclass(slots=True, eq=False)
class Dataset:
    """A data set by one recipe, open. All recipes of a name share its list of samples and its manifests."""

    id: int
    record: DatasetRecord
    directory: Path
    manifest: Manifest  # the newest
    index: IndexWriter
    losses: LossLog
    heat: Heat

    @property
    def spec(self) -> DatasetSpec:
        return self.record.spec

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def records(self) -> SampleList:
        return self.manifest.records

    @property
    def count(self) -> int:
        """How many samples it has ever had."""
        return len(self.index.words)

    @property
    def row_bytes(self) -> int | None:
        """Bytes of one stored sample, if all have the same size."""
        sizes = [field.row_bytes for field in self.record.fields]
        return sum(size or 0 for size in sizes) if None not in sizes else None

    def choose_format(self, wanted: str) -> tuple[str, str]:
        """The format of new shards, and why."""
        if wanted != "auto":
            return wanted, "as asked for"
        if self.row_bytes is not None:
            return "arrow", "rows of one size are read straight into the batch"
        return "lmdb", "rows differ in size"

    def resident(self) -> Numbers:
        used = self.index.used()
        return used[is_resident(self.index.words[used])]

    def counts(self) -> tuple[int, int]:
        """How many samples of the newest manifest are resident, and how many have failed."""
        used = self.index.used()
        words = self.index.words[used[self.manifest.has(used)]]
        return int(np.count_nonzero(is_resident(words))), int(np.count_nonzero(is_failed(words)))

    def keeps(self, digest: str) -> bool:
        """Whether a version is there to be read."""
        path = manifest_path(self.directory, digest, self.record.lineage)
        return digest == self.manifest.digest or path.exists()

    def version(self, digest: str) -> Manifest:
        """A manifest that is kept. Raise CacheError if it is not."""
        if digest == self.manifest.digest:
            return self.manifest
        return Manifest.open(manifest_path(self.directory, digest, self.record.lineage), self.records)

    def path_of(self, row: ShardRow) -> Path:
        return shard_path(self.directory, row.number, row.format)
