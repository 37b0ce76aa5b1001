"""Rows that are given back. There is one way: index, catalog, blocks and file, counter, budget.

A reader loads a word, copies, and takes what it has copied only if the word is still the same. So a word is
cleared before its row goes, and safety never depends on knowing the readers.
"""

import logging
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from stager.atomic import fsync_path
from stager.cache.budget import Budget
from stager.cache.dataset import Dataset
from stager.cache.gone.unlinked import Departed
from stager.cache.index_writer import retire
from stager.cache.start.startup import remove_old_versions
from stager.catalog.catalog import Catalog
from stager.catalog.rows import ShardRow
from stager.errors import CacheError, ShardError
from stager.heat.file import heat_path
from stager.reader.index import FAILED, is_resident, pack_words, row_of, shard_of
from stager.reader.samples.by_number import ByNumber
from stager.reader.shards import open_shard
from stager.reader.values import Numbers
from stager.shards.holes import holes_of, punch, size_of

log = logging.getLogger("stager")


def words_of(catalog: Catalog, dataset: int, shards: Iterable[ShardRow]) -> tuple[Numbers, ByNumber]:
    """The index of a data set as these shards, and its failures in the catalog, make it.

    Which samples it says anything of, in rising order, and all words.
    """
    words = ByNumber(np.uint64)
    numbers = [np.asarray([failure.sample for failure in catalog.failures(dataset)], dtype=np.int64)]
    words[numbers[0]] = FAILED
    for shard in shards:
        rows = np.flatnonzero(shard.samples >= 0)
        numbers.append(shard.samples[rows])
        words[numbers[-1]] = pack_words(shard.number, rows, shard.format)
    return np.unique(np.concatenate(numbers)), words


class Departures:
    """Takes samples, shards, versions and recipes away. It belongs to the owner of a cache."""

    def __init__(self, catalog: Catalog, budget: Budget, opened: dict[int, Dataset], can_punch: bool) -> None:
        self._catalog, self._budget, self._open = catalog, budget, opened
        self.files = Departed(budget, can_punch)
        self.heard_by: list[Callable[[Dataset, Numbers], None]] = []  # who must know of samples that are gone
        self._holes: dict[int, int] = {}  # bytes of a shard that were given back

    def evict(self, shards: Iterable[ShardRow], reason: str = "evicted", detail: str = "") -> int:
        """Take whole shards away. Return the bytes that were freed."""
        shards = list(shards)
        gone = [shard.number for shard in shards]
        for dataset in {shard.dataset: self._open[shard.dataset] for shard in shards}.values():
            samples = self._clear(dataset, [shard for shard in shards if shard.dataset == dataset.id])
            # Another shard may have some of them, too.
            others = [row for row in self._catalog.shards(dataset.id) if row.number not in gone]
            left = words_of(self._catalog, dataset.id, others)[1][samples]
            dataset.index.publish(samples[left != 0], left[left != 0])
            dataset.departure_log.add(reason, detail, samples[left == 0])
            self._tell(dataset, samples[left == 0])
        return self._remove(shards)

    def evict_samples(self, dataset: Dataset, samples: Numbers, reason: str, detail: str) -> int:
        """Take single samples away. Return the bytes freed."""
        words = dataset.index.words[samples]
        dataset.index.clear(samples)
        touched = []
        for number in np.unique(shard_of(words[is_resident(words)])).tolist():
            shard = self._catalog.shard(number)
            shard.samples[row_of(words[shard_of(words) == number])] = -1
            touched.append(shard)
        empty = [shard for shard in touched if np.all(shard.samples < 0)]
        left = [shard for shard in touched if np.any(shard.samples >= 0)]
        self._catalog.put_samples(left)
        dataset.departure_log.add(reason, detail, samples)
        self._tell(dataset, samples)
        return self._remove(empty) + sum(self.give_back_dead(dataset, shard) for shard in left)

    def take_back(self, dataset: Dataset, row: ShardRow) -> None:
        """Take away a shard that is on the disk, and that the catalog does not have.

        Nobody is told: a disk that fails would be given the same samples again and again. A reader that
        comes to them asks for them.
        """
        self._take_away(dataset, row)
        self._budget.used_bytes -= row.bytes

    def take_from_memory(self, dataset: Dataset, row: ShardRow) -> None:
        """Take away a shard that is in memory."""
        self._tell(dataset, self._take_away(dataset, row))

    def _tell(self, dataset: Dataset, samples: Numbers) -> None:
        """These samples are gone. Every departure says so here, and nowhere else."""
        for hear in self.heard_by:
            hear(dataset, samples)

    def _take_away(self, dataset: Dataset, row: ShardRow) -> Numbers:
        """Clear the words of a shard and remove its file; return the samples that it was the place of."""
        samples = self._clear(dataset, [row])
        self._remove_file(dataset.path_of(row), 0)
        dataset.index.tell_gone()
        return samples

    def _clear(self, dataset: Dataset, shards: Sequence[ShardRow]) -> Numbers:
        """Take what an index says of these shards away, where it has not been overtaken."""
        cleared = [np.zeros(0, dtype=np.int64)]
        for shard in shards:
            rows = np.flatnonzero(shard.samples >= 0)
            samples = shard.samples[rows]
            at = dataset.index.words[samples] == pack_words(shard.number, rows, shard.format)
            dataset.index.clear(samples[at])
            cleared.append(samples[at])
        return np.concatenate(cleared)

    def _remove(self, shards: Sequence[ShardRow]) -> int:
        """Take shards that no index points to out of the catalog and off the disk."""
        if not shards:
            return 0
        self._catalog.remove_shards(shard.number for shard in shards)
        freed = 0
        for shard in shards:
            freed += self._remove_file(self._open[shard.dataset].path_of(shard), self.bytes_of(shard))
            self._holes.pop(shard.number, None)
        for number in {shard.dataset for shard in shards}:
            self._open[number].index.tell_gone()
        return freed

    def _remove_file(self, path: Path, counted_bytes: int) -> int:
        """Take a file away that no index points to: its blocks first, so that they come back at once.

        Readers may have it open, and the disk would keep what they hold. Return the bytes that came back.
        """
        target = path.resolve()  # a shard in memory is behind a link
        freed = self.files.remove(target, counted_bytes)
        path.unlink(missing_ok=True)
        return freed

    def give_back_dead(self, dataset: Dataset, shard: ShardRow) -> int:
        """Give the blocks of a shard's dead rows back to the disk; return how many bytes more these are."""
        if not shard.dead_rows:
            return 0
        path = dataset.path_of(shard)
        before = self._holes.get(shard.number, 0)
        try:
            holes = holes_of(open_shard(path), shard.dead_rows)
            if holes and punch(path, holes):
                self._holes[shard.number] = max(size_of(holes), before)
        except (ShardError, OSError) as error:
            log.warning("rows not given back path=%s error=%r", path, str(error))
        more = self._holes.get(shard.number, 0) - before
        self._budget.used_bytes -= more
        return more

    def bytes_of(self, row: ShardRow) -> int:
        """What a shard takes on the disk: its size, but for what was given back."""
        return row.bytes - self._holes.get(row.number, 0)

    def given_back(self, dataset: int) -> int:
        """Bytes of the dead rows of a data set, by its id, that the disk has back."""
        ours = self._catalog.shard_numbers(dataset) if self._holes else set()
        return sum(size for number, size in self._holes.items() if number in ours)

    def give_back_stale(self, leased: Mapping[str, set[str]], in_use: Collection[int]) -> None:
        """Give back rows of samples that no version has which counts: the newest ones, and those leased.

        `leased`: manifests by the names of data sets. What is pinned stays. A recipe that is not current, has
        no rows left and is not in use goes, too.
        """
        for dataset in list(self._open.values()):
            manifests = leased.get(dataset.name, set())
            if dataset.count > len(dataset.manifest):  # else all that it ever had is in the newest one
                self._give_back_samples(dataset, manifests)
            is_needed = manifests or dataset.id in in_use or self._is_current(dataset)
            if not is_needed and not self._catalog.shard_numbers(dataset.id):
                self._forget(dataset)
            remove_old_versions(dataset.directory, {dataset.manifest.digest} | manifests, dataset.record)

    def _give_back_samples(self, dataset: Dataset, manifests: set[str]) -> None:
        """Give back the rows of samples that are neither in the newest manifest nor in these."""
        stale = dataset.resident()
        stale = stale[~dataset.manifest.has(stale)]
        for digest in manifests - {dataset.manifest.digest}:
            try:
                stale = stale[~dataset.version(digest).has(stale)]
            except CacheError:
                log.warning("version gone dataset=%s manifest=%s", dataset.name, digest)
        stale = stale[np.isin(shard_of(dataset.index.words[stale]), self._catalog.evictable(dataset.id))]
        if len(stale):
            freed = self.evict_samples(dataset, stale, "source_changed", "no version has it any more")
            log.info("given back dataset=%s samples=%d bytes=%d", dataset.name, len(stale), freed)

    def forget_all(self, datasets: Sequence[Dataset]) -> int:
        """Take a data set away by all its recipes, with all that is known of it; return the bytes freed.

        A crash on the way leaves it without rows, or leaves files that the next start sweeps away.
        """
        directory = datasets[0].directory
        shards = [shard for dataset in datasets for shard in self._catalog.shards(dataset.id)]
        freed = self.evict(shards, "evicted", "by stager rm")
        (directory / "dataset.json").unlink(missing_ok=True)  # from here on, nobody opens it
        fsync_path(directory)
        for dataset in datasets:
            self._forget(dataset)
        self._catalog.counts.forget(datasets[0].name)
        shutil.rmtree(directory)
        return freed

    def _is_current(self, dataset: Dataset) -> bool:
        return next(row.is_current for row in self._catalog.datasets() if row.id == dataset.id)

    def _forget(self, dataset: Dataset) -> None:
        """Close a data set by a recipe that nobody needs any more. It has no rows left."""
        retire(dataset.index.path)
        heat_path(dataset.directory, dataset.record.recipe).unlink(missing_ok=True)
        self._catalog.forget_dataset(dataset.id)
        del self._open[dataset.id]
