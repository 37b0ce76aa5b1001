"""One cache directory and its one owner: lock, catalog, indexes, budget, in an order that survives a crash.

    CACHE                    says that this directory is ours, and its format
    lock                     held by the owner; has its pid
    catalog.db               what counts as staged
    scratch/                 files that are being written; emptied at start
    datasets/NAME/           dataset.json, samples-*, manifest-*, index-*, shards/*

A shard is complete under its final name before an index points to it, and durable before the catalog has it.
Rows are given back the other way: see departures.py.
"""

import json
import logging
import os
import uuid
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stager.atomic import atomic_path, fsync_path
from stager.cache.budget import Budget
from stager.cache.dataset import Dataset, Failure
from stager.cache.departures import Departures, words_of
from stager.cache.heat import Heat
from stager.cache.index_writer import IndexWriter, retire
from stager.cache.lock import claim
from stager.cache.loss_log import LossLog, why_lost
from stager.cache.rebuild import open_catalog, put_aside
from stager.cache.startup import drop_unwhole, sweep
from stager.catalog.database import DAMAGE, CatalogBroken
from stager.catalog.rows import DatasetRow, ListRow, ShardRow
from stager.clock import SYSTEM, Clock
from stager.config import Config
from stager.errors import REASONS, CacheError, StagerError, UsageError, known_error, nearest
from stager.reader.index import FAILED, is_damaged, is_failed, is_resident, pack_words, shard_of
from stager.reader.record import (
    DatasetRecord,
    DatasetSpec,
    datasets_dir,
    index_path,
    manifest_path,
    segment_name,
    shard_path,
)
from stager.reader.samples.manifest import Manifest
from stager.reader.samples.runs import Collection, is_among
from stager.reader.samples.sample_list import SampleList
from stager.reader.samples.sealed import seal_of
from stager.reader.samples.segments import read_segment
from stager.reader.samples.subset import Subset
from stager.reader.values import Mask, Numbers, canonical_json, digest_of, encode_key
from stager.recipes import open_recipe
from stager.scan.scan import Scan
from stager.shards.holes import can_punch

log = logging.getLogger("stager")

OUTGROWN: Final = 2.0  # times what is live: then a list of samples is made anew
OUTGROWN_LEAST: Final = 10_000
# What a damaged catalog can make of us, whatever SQLite thinks of it.
_DAMAGED: Final = (CatalogBroken, *DAMAGE, ValueError, KeyError, TypeError, AttributeError, IndexError)


class Cache:
    """The owner's view. Not for several threads; readers need none of it."""

    def __init__(self, config: Config, what: str = "a command", clock: Clock = SYSTEM) -> None:
        """`what`: who we are, for others who want the cache."""
        self.clock = clock
        self.directory = config.cache_dir
        self.scratch = self.directory / "scratch"
        self.memory_bytes = config.memory.of(0)
        self._config = config
        self._lock_fd = claim(self.directory, what)
        with ExitStack() as undo:  # if we do not come to the end
            undo.callback(os.close, self._lock_fd)
            undo.callback(lambda: self.catalog.close() if hasattr(self, "catalog") else None)
            try:
                self.catalog = open_catalog(self.directory, self.scratch, clock)
                try:
                    self._start()
                except _DAMAGED as error:
                    log.error("catalog damaged problem=%r", str(error))
                    self.catalog.close()
                    put_aside(self.directory, clock)
                    self.catalog = open_catalog(self.directory, self.scratch, clock)
                    self._start()
            except OSError as error:
                raise known_error(error, str(self.directory)) from None
            undo.pop_all()
        self._numbers: Iterator[int] = iter(())

    def _start(self) -> None:
        """Bring indexes in line with the catalog; only then remove and give back what nothing points to."""
        self.open: dict[int, Dataset] = {}  # every recipe of every data set, by id
        self.datasets: dict[str, Dataset] = {}  # by name, by the recipe that it has now
        self.in_memory: set[int] = set()  # shards that are not on the disk, and will not be
        self.budget = Budget(self.directory, self._config.capacity, self._config.reserve)
        self.catalog.prune()
        drop_unwhole(self.directory, self.catalog)
        lists = {row.name: row for row in self.catalog.lists()}
        manifests: dict[str, Manifest | None] = {row.name: self._read(row) for row in lists.values()}
        for row in self.catalog.datasets():
            manifest = manifests.get(row.name)
            if manifest is None or not _is_known(row):
                self.catalog.forget_dataset(row.id)  # it is scanned and staged anew when asked for
            else:
                self._load(row, lists[row.name], manifest)
        sweep(self.directory, self.catalog, self.open.values())
        self.can_punch = can_punch(self.scratch)
        self.departures = Departures(self.catalog, self.budget, self.open, self.can_punch)
        for shard in self.catalog.shards():
            self.budget.used_bytes += shard.bytes
            if np.any(shard.samples < 0):
                self.departures.give_back_dead(self.open[shard.dataset], shard)

    def _read(self, row: ListRow) -> Manifest | None:
        directory = datasets_dir(self.directory) / row.name
        try:
            records = SampleList.open(directory, row.lineage, row.segments)
            manifest = Manifest.open(manifest_path(directory, row.manifest, row.lineage), records)
        except CacheError as error:
            log.error("data set forgotten name=%s problem=%r", row.name, error.message)
            return None
        if len(records) != row.samples:
            raise CatalogBroken(f"{row.name} has {len(records)} samples, recorded are {row.samples}")
        return manifest

    def close(self) -> None:
        self.departures.files.close()
        self.catalog.close()
        os.close(self._lock_fd)

    # Data sets

    def known(self, name: str) -> Dataset | None:
        """A data set by any of its recipes: its list of samples is what a new scan is compared with."""
        return next(iter(self.of_name(name)), None)

    def is_outgrown(self, name: str) -> bool:
        """Whether most samples that a data set ever had are in no manifest that counts."""
        dataset = self.known(name)
        if dataset is None or dataset.count < OUTGROWN_LEAST or dataset.records.is_computed:
            return False  # what follows from a rule takes no room, however many there were
        return dataset.count > OUTGROWN * len(dataset.manifest)

    def fits(self, spec: DatasetSpec, scan: Scan) -> bool:
        """Whether a scan was compared with the list that the data set has now."""
        joins, known = scan.read_joins(), self.known(spec.name)
        if known is None:
            return not joins.lineage
        return (joins.lineage, joins.count) == (known.record.lineage, known.count)

    def adopt(self, spec: DatasetSpec, scan: Scan) -> tuple[Dataset, dict[str, Any] | None]:
        """Make a fresh scan the data set's newest version. What is staged of unchanged samples stays staged.

        Say also what was staged and does not count any more, and why: {"reason", "detail", "samples"}. Rows
        of samples that have gone stay for whoever still reads them: see `Departures.give_back_stale`.
        """
        assert self.fits(spec, scan), "its numbers are of another list"
        directory = datasets_dir(self.directory) / spec.name
        (directory / "shards").mkdir(parents=True, exist_ok=True)
        fsync_path(directory.parent)
        before, known = self.known(spec.name), self.datasets.get(spec.name)
        joins = scan.read_joins()
        moved = joins.moved
        records = self._take_records(directory, scan, before.records if before and not len(moved) else None)
        manifest = Manifest.open(scan.path, records)
        path = manifest_path(directory, manifest.digest, records.lineage)
        scan.path.replace(path)
        scan.joins.unlink()
        fsync_path(directory)
        for dataset in self.of_name(spec.name) if not len(moved) else ():
            self._grow(dataset, manifest)
        recipe = open_recipe(spec.recipe)
        was_resident = known.resident() if known is not None else np.zeros(0, dtype=np.int64)
        with self.catalog.transaction():
            listed = ListRow(spec.name, records.lineage, records.names, len(records), manifest.digest)
            self.catalog.put_list(listed)
            if len(moved):
                for dataset in self.of_name(spec.name):
                    self.catalog.renumber(dataset.id, moved)
            row = self.catalog.put_dataset(spec.name, recipe.digest, canonical_json(spec.to_json()))
        if len(moved):
            for dataset in self.of_name(spec.name):
                retire(dataset.index.path)
                del self.open[dataset.id]
            for other in self.catalog.datasets():
                if other.name == spec.name:
                    self._load(other, listed, manifest)
        now = self._load(row, listed, manifest)
        changed = None
        if known is not None and not len(moved):
            changed = self._tell_lost(known, now, was_resident, joins.replaced)
        return now, changed

    def _take_records(self, directory: Path, scan: Scan, before: SampleList | None) -> SampleList:
        """The data set's list with what a scan has found new, under its final name."""
        records = before or SampleList(uuid.uuid4().hex, (), ())
        for segment in scan.segments:
            name = segment_name(records.lineage, len(records), seal_of(segment))
            segment.replace(directory / name)
            fsync_path(directory)
            records = records.plus(name, read_segment(directory / name))
        return records

    def _grow(self, dataset: Dataset, manifest: Manifest) -> None:
        """Give a data set the newest manifest, and room for samples that it did not have before."""
        dataset.index.extend(len(manifest.records), manifest.records.is_computed)
        dataset.manifest = manifest
        dataset.record = replace(dataset.record, manifest=manifest.digest, segments=manifest.records.names)

    def _tell_lost(
        self, before: Dataset, now: Dataset, was_resident: Numbers, replaced: npt.NDArray[np.int64]
    ) -> dict[str, Any] | None:
        """Note which samples of the newest manifest were staged before, and are to be staged anew."""
        old, new = replaced
        lost = new[is_among(old, was_resident)]
        if now is not before:
            lost = np.union1d(lost, was_resident[now.manifest.has(was_resident)])
        lost = lost[~is_resident(now.index.words[lost])]
        reason, detail = why_lost(before.spec, now.spec)
        now.losses.add(reason, detail, lost)
        return {"reason": reason, "detail": detail, "samples": len(lost)} if len(lost) else None

    def _load(self, row: DatasetRow, listed: ListRow, manifest: Manifest) -> Dataset:
        """Open a data set by one recipe, with its index as the catalog has it; say so to readers."""
        spec = DatasetSpec.from_json(json.loads(row.spec))
        recipe = open_recipe(spec.recipe)
        if recipe.digest != row.recipe:
            raise CatalogBroken(f"{row.name}: its recipe has another digest than is recorded")
        directory = datasets_dir(self.directory) / row.name
        record = DatasetRecord(
            spec, row.recipe, manifest.digest, recipe.fields, listed.lineage, listed.segments
        )
        dataset = self.open.get(row.id) or self._open_dataset(row, record, directory, manifest)
        dataset.record = record
        self.open[row.id] = dataset
        if row.is_current:
            self.datasets[row.name] = dataset
            if not record.is_at(directory):  # a crash may have come between the catalog and this
                with atomic_path(directory / "dataset.json", self.scratch) as scratch:
                    scratch.write_text(record.to_text())
        return dataset

    def _open_dataset(
        self, row: DatasetRow, record: DatasetRecord, directory: Path, manifest: Manifest
    ) -> Dataset:
        records, path = manifest.records, index_path(directory, row.recipe, record.lineage)
        identity = record.lineage, row.recipe
        index = IndexWriter.open(path, len(records), *identity, self.scratch, records.is_computed)
        shards = self.catalog.shards(row.id)
        numbers, words = words_of(self.catalog, row.id, shards)
        index.replace_all(numbers, words[numbers])
        losses, heat = LossLog(self.catalog, row.id, self.clock), Heat()
        losses.regained(numbers[is_resident(words[numbers])])
        for shard in shards:
            if shard.is_asked:
                heat.asked(shard.samples[shard.samples >= 0], shard.created_at)
        return Dataset(row.id, record, directory, manifest, index, losses, heat)

    def of_name(self, name: str) -> list[Dataset]:
        """A data set by each recipe that it has had and that still counts."""
        return [dataset for dataset in self.open.values() if dataset.name == name]

    def named(self, name: str) -> Dataset:
        """The data set of this name, by the recipe that it has now. Raise UsageError if there is none."""
        if name not in self.datasets:
            raise UsageError(
                f"nothing of {name!r} is staged here",
                hint=nearest(name, self.datasets) or "stage it: stager prefetch",
            )
        return self.datasets[name]

    def is_open(self, dataset: Dataset) -> bool:
        return self.open.get(dataset.id) is dataset

    # Shards

    def next_shard(self, dataset: Dataset, shard_format: str) -> tuple[int, Path]:
        """A number that was never used, and the final name of its file."""
        number = next(self._numbers, None)
        if number is None:
            named = max((known.index.highest_shard for known in self.open.values()), default=0)
            self._numbers = iter(self.catalog.reserve_shard_numbers(named))
            number = next(self._numbers)
        return number, shard_path(dataset.directory, number, shard_format)

    def kept(self, dataset: Dataset, samples: Numbers) -> Mask:
        """Which of these samples are resident to stay: not only in memory, for one reader."""
        words = dataset.index.words[samples]
        kept: Mask = is_resident(words)
        if self.in_memory:
            kept &= ~np.isin(shard_of(words), list(self.in_memory))
        return kept

    def publish(self, dataset: Dataset, row: ShardRow) -> ShardRow:
        """Point the index at a complete shard: readers have it from here on. Return the shard as it counts.

        A sample that is kept already, which a damaged word hid, stays where it is: its row here is dead.
        """
        rows = np.flatnonzero(row.samples >= 0)
        self.mend(dataset, row.samples[rows])
        failed = row.samples[rows][is_failed(dataset.index.words[row.samples[rows]])]
        if len(failed):  # it could be had after all
            self.catalog.remove_failures(dataset.id, failed.tolist())
        is_kept = self.kept(dataset, row.samples[rows])
        if is_kept.any():
            row = replace(row, samples=row.samples.copy())
            row.samples[rows[is_kept]] = -1
            rows = rows[~is_kept]
        dataset.index.publish(row.samples[rows], pack_words(row.number, rows, row.format))
        dataset.losses.regained(row.samples[rows])
        return row

    def record(self, dataset: Dataset, row: ShardRow) -> None:
        """Write down a shard that is durable by now.

        A word of it may have been damaged since it was published, and mended by a catalog that did not have
        it yet, or its sample was staged again: one gets its word back, the other's row is dead.
        """
        rows = np.flatnonzero(row.samples >= 0)
        samples, words = row.samples[rows], pack_words(row.number, rows, row.format)
        found = dataset.index.words[samples]
        is_lost = found != words
        is_elsewhere = is_lost & self.kept(dataset, samples)
        row.samples[rows[is_elsewhere]] = -1
        self.catalog.add_shard(row)
        is_lost &= ~is_elsewhere
        dataset.index.publish(samples[is_lost], words[is_lost])
        if np.all(row.samples < 0):
            self.departures.evict([row])
        else:
            self.departures.give_back_dead(dataset, row)

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
        failures = list(failures)
        failed = np.asarray([failure.sample for failure in failures], dtype=np.int64)
        self.mend(dataset, failed)
        kept = set(failed[self.kept(dataset, failed)].tolist())
        rows = [
            (f.sample, encode_key(dataset.records.key(f.sample)), f.reason, f.detail)
            for f in failures
            if f.sample not in kept
        ]
        self.catalog.add_failures(dataset.id, rows)
        numbers = np.asarray([row[0] for row in rows], dtype=np.int64)
        dataset.index.publish(numbers, np.full(len(numbers), FAILED, dtype=np.uint64))

    def forgive(self, dataset: Dataset, samples: Collection, everything: bool = False) -> None:
        """Forget failures of these samples, which rise, that asking again could mend, or all."""
        failures = self.catalog.failures(dataset.id)
        mendable = [f.sample for f in failures if everything or REASONS[f.reason]]
        again = np.unique(np.asarray(mendable, dtype=np.int64))
        again = again[is_among(again, samples)]
        if len(again):
            self.catalog.remove_failures(dataset.id, again.tolist())
            dataset.index.clear(again[is_failed(dataset.index.words[again])])

    def mend(self, dataset: Dataset, samples: Numbers) -> None:
        """Put right what the index says of samples, if that is something that nobody ever wrote."""
        damaged = samples[is_damaged(dataset.index.words[samples])]
        if len(damaged):
            log.error("index mended dataset=%s samples=%d", dataset.name, len(damaged))
            shards = self.catalog.shards(dataset.id)
            _, words = words_of(self.catalog, dataset.id, shards)
            dataset.index.publish(damaged, words[damaged])


def _is_known(row: DatasetRow) -> bool:
    """Whether a recipe that is on record is still one of ours, and gives what it gave."""
    try:
        if open_recipe(json.loads(row.spec)["recipe"]).digest == row.recipe:
            return True
        problem = "its recipe gives other samples by now"
    except StagerError as error:
        problem = error.message
    log.error("data set forgotten name=%s problem=%r", row.name, problem)
    return False
