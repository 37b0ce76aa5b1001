"""One cache directory and its one owner: lock, catalog, indexes, budget, in an order that survives a crash.

    CACHE                    says that this directory is ours, and its format
    lock                     held by the owner; has its pid
    catalog.db               what counts as staged
    scratch/                 files that are being written; emptied at start
    made/                    what functions have made and no shard has yet
    datasets/NAME/           dataset.json, samples-*, manifest-*, index-*, shards/*

A shard is complete under its final name before an index points to it, and durable before the catalog has it.
Rows are given back the other way: see departures.py.
"""

import json
import logging
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stager.atomic import atomic_path, fsync_path
from stager.cache.budget import Budget
from stager.cache.dataset import Dataset, Failure, named
from stager.cache.gone.departures import Departures, words_of
from stager.cache.gone.log import DepartureLog, why_departed
from stager.cache.index_writer import IndexWriter, retire
from stager.cache.made import MadeFiles
from stager.cache.start.lock import lock_cache
from stager.cache.start.rebuild import open_catalog, put_aside
from stager.cache.start.startup import drop_unwhole, finish_renames, is_known, read_version, remove_strays
from stager.catalog.database import DAMAGE, CatalogBroken
from stager.catalog.rows import DatasetRow, ListRow, ShardRow
from stager.clock import SYSTEM, Clock
from stager.config import Config
from stager.errors import REASONS, known_error
from stager.heat.file import heat_path, read_heat
from stager.heat.heat import Heat
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
from stager.reader.samples.runs import Collection, Runs, is_among
from stager.reader.samples.sample_list import SampleList
from stager.reader.samples.sealed import seal_of
from stager.reader.samples.segments import read_segment
from stager.reader.values import Mask, Numbers, canonical_json, encode_key
from stager.recipes import open_recipe
from stager.scan.scan import Scan
from stager.shards.holes import can_punch

log = logging.getLogger("stager")

# What a damaged catalog can make of us, whatever SQLite thinks of it.
_DAMAGED: Final = (CatalogBroken, *DAMAGE, ValueError, KeyError, TypeError, AttributeError, IndexError)


class Cache:
    """The owner's view. Not for several threads; readers need none of it."""

    def __init__(self, config: Config, what: str = "a command", clock: Clock = SYSTEM) -> None:
        """`what`: who we are, for others who want the cache."""
        self.clock = clock
        self.directory = config.cache_dir
        self.scratch = self.directory / "scratch"
        self.config = config
        self._lock_fd = lock_cache(self.directory, what)
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
        self.budget = Budget(self.directory, self.config.capacity, self.config.reserve)
        self.catalog.prune()
        finish_renames(self.directory, self.catalog)
        drop_unwhole(self.directory, self.catalog)
        lists = {row.name: row for row in self.catalog.lists()}
        manifests: dict[str, Manifest | None] = {
            row.name: read_version(self.directory, row) for row in lists.values()
        }
        for row in self.catalog.datasets():
            manifest = manifests.get(row.name)
            if manifest is None or not is_known(row):
                self.catalog.forget_dataset(row.id)  # it is scanned and staged anew when asked for
            else:
                self._load(row, lists[row.name], manifest)
        remove_strays(self.directory, self.catalog, self.open.values())
        self.can_punch = can_punch(self.scratch)
        self.departures = Departures(self.catalog, self.budget, self.open, self.can_punch)
        self.made = MadeFiles(self.directory / "made", self.budget, self.clock.wall(), self.open.values())
        for shard in self.catalog.shards():
            self.budget.used_bytes += shard.bytes
            if np.any(shard.samples < 0):
                self.departures.give_back_dead(self.open[shard.dataset], shard)

    def reconfigure(self, config: Config) -> None:
        """Go by this config from now on. Its directory is the one that it had; what is staged stays."""
        self.config = config
        self.budget.capacity, self.budget.reserve = config.capacity, config.reserve

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
        return dataset is not None and dataset.is_outgrown

    def fits(self, spec: DatasetSpec, scan: Scan) -> bool:
        """Whether a scan was compared with what the data set has now: its list; of a part, its version."""
        joins, known = scan.read_joins(), self.known(spec.name)
        if known is None:
            return not joins.lineage
        if joins.is_part and joins.newest != known.manifest.digest:
            return False
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
            heats = {}
            for dataset in self.of_name(spec.name):
                heats[dataset.id] = dataset.heat.renumbered(moved, self.clock.wall())
                heat_path(directory, dataset.record.recipe).unlink(missing_ok=True)  # of the old numbers
                retire(dataset.index.path)
                del self.open[dataset.id]
            self._load_all(listed, manifest, heats)
        now = self._load(row, listed, manifest)
        changed = None
        if known is not None and not len(moved):
            changed = self._tell_lost(known, now, was_resident, joins.replaced)
        return now, changed

    def _load_all(self, listed: ListRow, manifest: Manifest, heats: Mapping[int, Heat]) -> None:
        """Open a data set by all its recipes, with what is known of its heat."""
        for row in self.catalog.datasets():
            if row.name == listed.name:
                loaded = self._load(row, listed, manifest)
                loaded.heat = heats.get(row.id, loaded.heat)

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
        old, new, count = replaced
        at = Runs.of(old, count).find(was_resident)
        lost = np.sort(Runs.of(new, count)[at[at >= 0]])
        if now is not before:
            lost = np.union1d(lost, was_resident[now.manifest.has(was_resident)])
        lost = lost[~is_resident(now.index.words[lost])]
        reason, detail = why_departed(before.spec, now.spec)
        now.departure_log.add(reason, detail, lost)
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
        departures = DepartureLog(self.catalog, row.id, self.clock)
        heat = Heat(read_heat(heat_path(directory, row.recipe), record.lineage, len(records)))
        departures.regained(numbers[is_resident(words[numbers])])
        for shard in shards:
            if shard.is_asked:
                heat.asked(shard.samples[shard.samples >= 0], shard.created_at)
        return Dataset(row.id, record, directory, manifest, index, departures, heat)

    def of_name(self, name: str) -> list[Dataset]:
        """A data set by each recipe that it has had and that still counts."""
        return [dataset for dataset in self.open.values() if dataset.name == name]

    def named(self, name: str) -> Dataset:
        """The data set of this name, by the recipe that it has now. Raise UsageError if there is none."""
        return named(self.datasets, name)

    def forget(self, name: str) -> int:
        """Take a data set away for good; return the bytes freed. Nobody may have to do with it any more."""
        freed = self.departures.forget_all(self.of_name(name))
        del self.datasets[name]
        return freed

    def rename(self, old: str, new: str) -> None:
        """Give a data set another name. Nobody may have to do with it."""
        heats = {dataset.id: self.open.pop(dataset.id).heat for dataset in self.of_name(old)}
        del self.datasets[old]
        self.catalog.rename(old, new)
        finish_renames(self.directory, self.catalog)
        (listed,) = [row for row in self.catalog.lists() if row.name == new]
        if (manifest := read_version(self.directory, listed)) is not None:
            self._load_all(listed, manifest, heats)

    def is_open(self, dataset: Dataset) -> bool:
        """False: it was closed, or opened anew, since the caller got it."""
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
        dataset.departure_log.regained(row.samples[rows])
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
        self.made.forget(dataset, samples)
        is_lost &= ~is_elsewhere
        dataset.index.publish(samples[is_lost], words[is_lost])
        if np.all(row.samples < 0):
            self.departures.evict([row])
        else:
            self.departures.give_back_dead(dataset, row)

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
