"""One cache directory and its one owner: lock, catalog, indexes, budget, in an order that survives a crash.

    CACHE                    says that this directory is ours, and its format
    lock                     held by the owner; has its pid
    catalog.db               what counts as staged
    scratch/                 files that are being written; emptied at start
    datasets/NAME/           dataset.json, manifest-*.arrow, index-*, shards/*

A shard is complete under its final name before the index points to it, and durable before the catalog
has it. Eviction goes the other way: index, catalog, file.
"""

import json
import logging
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stager.atomic import atomic_path, fsync_path
from stager.budget import Budget
from stager.catalog import Catalog, CatalogBroken
from stager.claim import claim
from stager.config import Config
from stager.dataset import DatasetRecord, DatasetSpec, datasets_dir, index_path, manifest_path, shard_path
from stager.errors import REASONS, ShardError
from stager.index import FAILED, IndexWriter, Words, is_failed, is_resident, pack_words, row_of, shard_of
from stager.losses import Losses, why_lost
from stager.manifest import Manifest
from stager.model import Numbers, canonical_json, digest_of, encode_key
from stager.reads import Reads
from stager.rebuild import rebuild
from stager.recipes import open_recipe
from stager.rows import DatasetRow, ShardRow
from stager.shards import FORMATS, open_shard
from stager.shards.holes import can_punch, holes_of, punch, size_of
from stager.subset import Subset
from stager.sweep import forget_unreadable, sweep, sweep_dataset_files

log = logging.getLogger("stager")


@dataclass(frozen=True, slots=True)
class Failure:
    """One sample that cannot be had, and why."""

    sample: int
    reason: str
    detail: str


@dataclass(slots=True)
class Dataset:
    """A data set of this cache, open."""

    id: int
    spec: DatasetSpec
    record: DatasetRecord
    directory: Path
    manifest: Manifest
    index: IndexWriter
    losses: Losses
    reads: Reads

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def row_bytes(self) -> int | None:
        """Bytes of a stored sample, or None if samples differ."""
        sizes = [spec.row_bytes for spec in self.record.fields]
        return None if None in sizes else sum(size or 0 for size in sizes)

    def choose_format(self, asked: str) -> tuple[str, str]:
        """The format of new shards, and why."""
        if asked != "auto":
            return asked, "as asked"
        if self.row_bytes is not None:
            return "arrow", "rows of one size are read straight into the batch"
        return "arrow", "rows are found by offset, without a look-up"

    def resident(self) -> Numbers:
        return np.flatnonzero(is_resident(self.index.words))

    def failed(self) -> Numbers:
        return np.flatnonzero(is_failed(self.index.words))

    def counts(self) -> tuple[int, int]:
        """How many samples are resident, and how many have failed."""
        words = self.index.words
        return int(np.count_nonzero(is_resident(words))), int(np.count_nonzero(is_failed(words)))


class Cache:
    """The owner's view. Not for several threads; readers need none of it."""

    def __init__(self, config: Config, what: str = "a command") -> None:
        self.directory = config.cache_dir
        self.scratch = self.directory / "scratch"
        self.memory_bytes = config.memory.of(0)
        self._lock_fd = claim(self.directory, what)
        try:
            self.catalog = self._open_catalog()
            self.catalog.prune()
            forget_unreadable(self.directory, self.catalog)
            sweep(self.directory, self.catalog)
            self.datasets: dict[str, Dataset] = {}
            self.budget = Budget(self.directory, config.capacity, config.reserve)
            self.can_punch = can_punch(self.scratch)
            self._holes: dict[int, int] = {}  # bytes of a shard that were given back
            self.in_memory: set[int] = set()  # shards that are not on the disk, and will not be
            for row in self.catalog.datasets():
                if row.is_current:
                    self._load(row)
            self._count_bytes()
        except BaseException:
            os.close(self._lock_fd)
            raise
        self._numbers: Iterator[int] = iter(())

    def close(self) -> None:
        self.catalog.close()
        os.close(self._lock_fd)

    # Data sets

    def adopt(self, spec: DatasetSpec, manifest_scratch: Path) -> tuple[Dataset, dict[str, Any] | None]:
        """Make a fresh scan the data set's manifest. What is staged of unchanged samples stays staged.

        Say also what was staged and does not count any more, and why: {"reason", "detail", "samples"}.
        """
        directory = datasets_dir(self.directory) / spec.name
        (directory / "shards").mkdir(parents=True, exist_ok=True)
        manifest = Manifest.open(manifest_scratch)
        path = manifest_path(directory, manifest.digest)
        fsync_path(manifest_scratch)
        manifest_scratch.replace(path)
        fsync_path(directory)
        recipe = open_recipe(spec.recipe)
        before = {row.recipe: row for row in self.catalog.datasets() if row.name == spec.name}.get(
            recipe.digest
        )
        known = self.datasets.get(spec.name)
        changed = None
        was_resident = known.resident() if known is not None else np.zeros(0, dtype=np.int64)
        with self.catalog.transaction():
            if before is not None and before.manifest != manifest.digest:
                old = Manifest.open(manifest_path(directory, before.manifest))
                self.catalog.renumber(before.id, old.numbers_in(manifest))
            row = self.catalog.put_dataset(
                spec.name, recipe.digest, manifest.digest, canonical_json(spec.to_json())
            )
        dataset = self._load(row)
        if known is not None and known is not dataset:
            lost = known.manifest.keys_in(manifest)[was_resident]
            lost = lost[lost >= 0]
            lost = lost[~is_resident(dataset.index.words[lost])]
            reason, detail = why_lost(known.spec, spec)
            dataset.losses.add(reason, detail, lost)
            if len(lost):
                changed = {"reason": reason, "detail": detail, "samples": len(lost)}
        sweep_dataset_files(self.directory, self.catalog, spec.name)
        if before is not None and before.manifest != manifest.digest:
            shards = self.catalog.shards(row.id)
            self.evict([shard for shard in shards if np.all(shard.samples < 0)])
            for shard in shards:
                if np.any(shard.samples < 0) and np.any(shard.samples >= 0):
                    self._give_back(dataset, shard)
        return dataset, changed

    def _load(self, row: DatasetRow) -> Dataset:
        """Open a data set; bring its index in line with the catalog, and then what readers see of it."""
        spec = self.spec_of(row)
        directory = datasets_dir(self.directory) / row.name
        manifest = Manifest.open(manifest_path(directory, row.manifest))
        recipe = open_recipe(spec.recipe)
        record = DatasetRecord(spec, row.recipe, row.manifest, recipe.fields)
        path = index_path(directory, row.recipe, row.manifest)
        known = self.datasets.get(row.name)
        if known is not None and known.record == record:
            return known
        index = IndexWriter.open(path, len(manifest), row.manifest, row.recipe, self.scratch)
        shards = self.catalog.shards(row.id)
        index.replace_all(self._words(row.id, len(manifest), shards))
        losses = Losses(self.catalog, row.id, len(manifest))
        losses.regained(np.flatnonzero(is_resident(index.words)))
        dataset = Dataset(row.id, spec, record, directory, manifest, index, losses, Reads(len(manifest)))
        for shard in shards:
            if shard.is_asked:
                dataset.reads.asked(shard.samples[shard.samples >= 0], shard.created_at)
        self.datasets[row.name] = dataset
        if not record.is_at(directory):  # a crash may have come between the catalog and this
            record.write(directory, self.scratch)
        return dataset

    def _words(self, dataset: int, count: int, shards: Iterable[ShardRow]) -> Words:
        """The index of a data set as these shards, and its failures in the catalog, make it."""
        words = np.zeros(count, dtype=np.uint64)
        for failure in self.catalog.failures(dataset):
            words[failure.sample] = FAILED
        for shard in shards:
            rows = np.flatnonzero(shard.samples >= 0)
            words[shard.samples[rows]] = pack_words(shard.number, rows, shard.format)
        return words

    # Shards

    def next_shard(self, dataset: Dataset, shard_format: str) -> tuple[int, Path]:
        """A number that was never used, and the final name of its file."""
        number = next(self._numbers, None)
        if number is None:
            self._numbers = iter(self.catalog.reserve_shard_numbers())
            number = next(self._numbers)
        return number, shard_path(dataset.directory, number, FORMATS[shard_format].suffix)

    def kept(self, dataset: Dataset, samples: Numbers) -> npt.NDArray[np.bool_]:
        """Which of these samples are resident to stay: not only in memory, for one reader."""
        words = dataset.index.words[samples]
        kept: npt.NDArray[np.bool_] = is_resident(words)
        if self.in_memory:
            kept &= ~np.isin(shard_of(words), list(self.in_memory))
        return kept

    def publish(self, dataset: Dataset, row: ShardRow) -> None:
        """Point the index at a complete shard: readers have it from here on."""
        rows = np.flatnonzero(row.samples >= 0)
        dataset.index.publish(row.samples[rows], pack_words(row.number, rows, row.format))
        dataset.losses.regained(row.samples[rows])

    def unpublish(self, dataset: Dataset, row: ShardRow) -> None:
        """Take back what the index says of a shard, where it has not been overtaken."""
        rows = np.flatnonzero(row.samples >= 0)
        samples = row.samples[rows]
        dataset.index.clear(samples[dataset.index.words[samples] == pack_words(row.number, rows, row.format)])
        dataset.index.tell_gone()

    def drop_unrecorded(self, dataset: Dataset, row: ShardRow) -> None:
        """Take back a shard that was published but never became durable."""
        self.unpublish(dataset, row)
        self.path_of(dataset, row).unlink(missing_ok=True)
        self.budget.used_bytes -= row.bytes

    def path_of(self, dataset: Dataset, row: ShardRow) -> Path:
        return shard_path(dataset.directory, row.number, FORMATS[row.format].suffix)

    def bytes_of(self, row: ShardRow) -> int:
        """What a shard takes on the disk: its size, but for what was given back."""
        return row.bytes - self._holes.get(row.number, 0)

    def given_back(self, dataset: int) -> int:
        """Bytes of the dead rows of a data set, by its id, that the disk has back."""
        ours = self.catalog.shard_numbers(dataset) if self._holes else set()
        return sum(size for number, size in self._holes.items() if number in ours)

    def manifest_of(self, dataset: Dataset) -> Path:
        return manifest_path(dataset.directory, dataset.record.manifest)

    def save_subset(self, dataset: Dataset, subset: Subset, classes: Iterable[str]) -> str:
        """Keep the drawn classes as a file that --classes @FILE takes; return its path."""
        about = canonical_json(subset.to_json())
        path = dataset.directory / "subsets" / f"{digest_of(about.encode())[:8]}.txt"
        path.parent.mkdir(exist_ok=True)
        with atomic_path(path, self.scratch) as scratch:
            lines = (f"# {dataset.name} {about}", *classes)
            scratch.write_bytes(b"".join(encode_key(line) + b"\n" for line in lines))
        return str(path)

    def record_failures(self, dataset: Dataset, failures: Iterable[Failure]) -> None:
        """Remember samples that cannot be had; readers see it in the index."""
        rows = [(f.sample, encode_key(dataset.manifest.key(f.sample)), f.reason, f.detail) for f in failures]
        self.catalog.add_failures(dataset.id, rows)
        numbers = np.asarray([row[0] for row in rows], dtype=np.int64)
        dataset.index.publish(numbers, np.full(len(numbers), FAILED, dtype=np.uint64))

    def forgive(self, dataset: Dataset, samples: Numbers, everything: bool = False) -> None:
        """Forget failures that asking again could mend, or all."""
        failures = self.catalog.failures(dataset.id)
        mendable = [f.sample for f in failures if everything or REASONS[f.reason]]
        again = np.intersect1d(np.asarray(mendable, dtype=np.int64), samples)
        if len(again):
            self.catalog.remove_failures(dataset.id, again.tolist())
            dataset.index.clear(again)

    def evict(self, shards: Iterable[ShardRow], reason: str = "evicted", detail: str = "") -> int:
        """Take shards away: index, catalog, file. Return the bytes that were freed."""
        shards = list(shards)
        gone = {shard.number for shard in shards}
        for dataset in self.datasets.values():
            words = dataset.index.words
            samples = np.flatnonzero(is_resident(words) & np.isin(shard_of(words), list(gone)))
            if len(samples):
                dataset.index.clear(samples)
                # Another shard may have some of them, too.
                others = [row for row in self.catalog.shards(dataset.id) if row.number not in gone]
                left = self._words(dataset.id, len(words), others)[samples]
                dataset.index.publish(samples[left != 0], left[left != 0])
                dataset.losses.add(reason, detail, samples[left == 0])
        return self._remove(shards)

    def evict_samples(self, dataset: Dataset, samples: Numbers, reason: str, detail: str) -> int:
        """Take single samples away: index, catalog, then the blocks of their rows. Return the bytes freed."""
        words = dataset.index.words[samples]
        dataset.index.clear(samples)
        touched = []
        for number in np.unique(shard_of(words)).tolist():
            shard = self.catalog.shard(number)
            dead = row_of(words[shard_of(words) == number])
            shard.samples[dead] = -1
            touched.append(shard)
        self.catalog.put_samples(touched)
        dataset.losses.add(reason, detail, samples)
        is_empty = [bool(np.all(shard.samples < 0)) for shard in touched]
        freed = self._remove([shard for shard, empty in zip(touched, is_empty, strict=True) if empty])
        return freed + sum(
            self._give_back(dataset, shard)
            for shard, empty in zip(touched, is_empty, strict=True)
            if not empty
        )

    def _remove(self, shards: Sequence[ShardRow]) -> int:
        """Take shards that no index points to out of the catalog and off the disk."""
        names = {row.id: row.name for row in self.catalog.datasets()}
        self.catalog.remove_shards(shard.number for shard in shards)
        freed = 0
        for shard in shards:
            directory = datasets_dir(self.directory) / names[shard.dataset]
            shard_path(directory, shard.number, FORMATS[shard.format].suffix).unlink(missing_ok=True)
            freed += self.bytes_of(shard)
            self._holes.pop(shard.number, None)
        for row in self.catalog.datasets() if shards else []:
            if row.is_current:
                self.datasets[row.name].index.tell_gone()
            elif not self.catalog.shards(row.id):
                self.catalog.forget_dataset(row.id)
                sweep_dataset_files(self.directory, self.catalog, row.name)
        self.budget.used_bytes -= freed
        return freed

    def _give_back(self, dataset: Dataset, shard: ShardRow) -> int:
        """Give the blocks of a shard's dead rows back to the disk; return how many bytes more these are."""
        path = self.path_of(dataset, shard)
        before = self._holes.get(shard.number, 0)
        try:
            holes = holes_of(open_shard(path), shard.dead_rows)
            if holes and punch(path, holes):
                self._holes[shard.number] = max(size_of(holes), before)
        except (ShardError, OSError) as error:
            log.warning("rows not given back path=%s error=%r", path, str(error))
        more = self._holes.get(shard.number, 0) - before
        self.budget.used_bytes -= more
        return more

    def _count_bytes(self) -> None:
        """What is used at start. A crash may have come before the blocks of dead rows were given back."""
        by_id = {dataset.id: dataset for dataset in self.datasets.values()}
        for shard in self.catalog.shards():
            self.budget.used_bytes += shard.bytes
            if shard.dataset in by_id and np.any(shard.samples < 0):
                self._give_back(by_id[shard.dataset], shard)

    def spec_of(self, row: DatasetRow) -> DatasetSpec:
        return DatasetSpec.from_json(json.loads(row.spec))

    # Start

    def _open_catalog(self) -> Catalog:
        """Open the catalog; one that cannot be read is put aside and made anew from the shards."""
        path = self.directory / "catalog.db"
        try:
            catalog = Catalog(path)
        except CatalogBroken:
            path.replace(path.with_name(f"catalog.broken-{time.time():.0f}"))
            for suffix in ("-wal", "-shm"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
            catalog = Catalog(path)
        if catalog.is_new:
            rebuild(self.directory, catalog)
        return catalog
