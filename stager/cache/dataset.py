"""A data set of a cache, open by one recipe: its samples, its newest manifest, its index."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, Protocol, TypeVar

import numpy as np

from stager.atomic import atomic_path
from stager.cache.gone.log import DepartureLog
from stager.cache.index_writer import IndexWriter
from stager.catalog.rows import ShardRow
from stager.errors import UsageError, nearest
from stager.heat.guess import Guess
from stager.heat.heat import Heat
from stager.reader.index import Words, is_failed, is_resident
from stager.reader.record import (
    DatasetRecord,
    DatasetSpec,
    kept_versions,
    manifest_path,
    shard_path,
    version_named,
)
from stager.reader.samples.manifest import Manifest
from stager.reader.samples.sample_list import SampleList
from stager.reader.samples.subset import Subset
from stager.reader.values import Numbers, canonical_json, digest_of, encode_key
from stager.recipes import is_code

OUTGROWN: Final = 2.0  # times what is live: then a list of samples is made anew
OUTGROWN_LEAST: Final = 10_000


@dataclass(frozen=True, slots=True)
class Failure:
    """One sample that cannot be had, and why."""

    sample: int
    reason: str
    detail: str


class _Words(Protocol):
    """An index, as far as it is looked at."""

    words: Words

    def used(self) -> Numbers: ...


@dataclass(slots=True, eq=False)
class Held:
    """What a cache holds of a data set by one recipe. All recipes of a name share its manifests."""

    id: int
    record: DatasetRecord
    directory: Path
    manifest: Manifest  # the newest
    index: _Words

    @property
    def spec(self) -> DatasetSpec:
        return self.record.spec

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def records(self) -> SampleList:
        return self.manifest.records

    def resident(self) -> Numbers:
        """The numbers of samples that are in a shard now."""
        used = self.index.used()
        return used[is_resident(self.index.words[used])]

    def counts(self) -> tuple[int, int]:
        """How many samples of the newest manifest are resident, and how many have failed."""
        used = self.index.used()
        words = self.index.words[used[self.manifest.has(used)]]
        return int(np.count_nonzero(is_resident(words))), int(np.count_nonzero(is_failed(words)))

    def path_of(self, row: ShardRow) -> Path:
        """Where readers look for a shard; one in memory has a link there."""
        return shard_path(self.directory, row.number, row.format)


@dataclass(eq=False)
class Dataset(Held):
    """The same, open to its owner."""

    index: IndexWriter
    departure_log: DepartureLog
    heat: Heat
    _guess: Guess | None = None

    @cached_property
    def is_made(self) -> bool:
        """Whether a person's function makes its samples."""
        return is_code(self.spec.recipe)

    def guess(self, now: float) -> Guess:
        """How often each sample is likely to be read. Some seconds old."""
        heat = self.heat.of_all(now)
        if self._guess is None or self._guess.own is not heat or self._guess.manifest is not self.manifest:
            self._guess = Guess(heat, self.manifest)
        return self._guess

    @property
    def count(self) -> int:
        """How many samples it has ever had."""
        return len(self.index.words)

    @property
    def is_outgrown(self) -> bool:
        """Whether most samples that it ever had are in no manifest that counts."""
        if self.count < OUTGROWN_LEAST or self.records.is_computed:
            return False  # what follows from a rule takes no room, however many there were
        return self.count > OUTGROWN * len(self.manifest)

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

    def save_subset(self, subset: Subset, classes: Iterable[str], scratch_dir: Path) -> str:
        """Keep the drawn classes as a file that --classes @FILE takes; return its path."""
        about = canonical_json(subset.to_json())
        path = self.directory / "subsets" / f"{digest_of(about.encode())[:8]}.txt"
        path.parent.mkdir(exist_ok=True)
        with atomic_path(path, scratch_dir) as scratch:
            lines = (f"# {self.name} {about}", *classes)
            scratch.write_bytes(b"".join(encode_key(line) + b"\n" for line in lines))
        return str(path)

    def keeps(self, digest: str) -> bool:
        """Whether a version is there to be read."""
        path = manifest_path(self.directory, digest, self.record.lineage)
        return digest == self.manifest.digest or path.exists()

    def version(self, digest: str) -> Manifest:
        """A manifest that is kept. Raise CacheError if it is not."""
        if digest == self.manifest.digest:
            return self.manifest
        return Manifest.open(manifest_path(self.directory, digest, self.record.lineage), self.records)

    def versions(self) -> dict[str, float]:
        """The manifests that are kept, the newest last, with the times at which they were found."""
        return kept_versions(self.directory, self.record)

    def version_named(self, begin: str) -> Manifest:
        """The kept version whose digest begins like this. Raise UsageError if none does, or several do."""
        return self.version(version_named(self.name, begin, self.versions()))


AnyHeld = TypeVar("AnyHeld", bound=Held)


def named(datasets: Mapping[str, AnyHeld], name: str) -> AnyHeld:
    """The data set of this name, by the recipe that it has now. Raise UsageError if there is none."""
    if name not in datasets:
        raise UsageError(
            f"nothing of {name!r} is staged here",
            hint=nearest(name, datasets) or "stage it: stager prefetch",
        )
    return datasets[name]
