"""A cache that another process owns, as it was a moment ago: nothing is locked, and nothing is written."""

import json
import shutil
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np

from stager.cache.budget import Budget
from stager.cache.dataset import Held, named
from stager.catalog.catalog import Catalog
from stager.catalog.database import CatalogOld
from stager.catalog.rows import DatasetRow, ListRow
from stager.config import Config
from stager.errors import CacheError, known_error
from stager.reader.index import IndexReader
from stager.reader.memo.store import MemoStore
from stager.reader.record import DatasetRecord, DatasetSpec, datasets_dir, index_path, manifest_path
from stager.reader.samples.manifest import Manifest
from stager.reader.samples.sample_list import SampleList
from stager.recipes import open_recipe

TRIES: Final = 5  # its owner may write while we copy
LOG_HEAD_BYTES: Final = 32  # of SQLite's log: its salts change whenever it begins anew


class CacheView:
    """What `Cache` tells of what it holds, for those who only look."""

    def __init__(self, config: Config) -> None:
        """Raise CacheError if that cannot be told now."""
        self.directory = config.cache_dir
        with ExitStack() as undo:
            try:
                copies = Path(undo.enter_context(TemporaryDirectory(prefix="stager-view-")))
                self.catalog = Catalog(copy_catalog(self.directory / "catalog.db", copies))
                undo.callback(self.catalog.close)
                lists = {row.name: row for row in self.catalog.lists()}
                rows = self.catalog.datasets()
                self.open = {row.id: self._held(row, lists[row.name]) for row in rows}
            except (OSError, CatalogOld) as error:
                raise known_error(error, str(self.directory)) from None
            self.datasets = {row.name: self.open[row.id] for row in rows if row.is_current}
            self.budget = Budget(self.directory, config.capacity, config.reserve)
            taken = [shard.bytes for shard in self.catalog.shards()]
            kept = [result.size_bytes for result in MemoStore(self.directory).results()]
            self.budget.used_bytes = sum(taken + kept) - sum(map(self.given_back, self.open))
            self.close = undo.pop_all().close

    def _held(self, row: DatasetRow, listed: ListRow) -> Held:
        spec = DatasetSpec.from_json(json.loads(row.spec))
        directory = datasets_dir(self.directory) / row.name
        records = SampleList.open(directory, listed.lineage, listed.segments)
        manifest = Manifest.open(manifest_path(directory, listed.manifest, listed.lineage), records)
        record = DatasetRecord(
            spec,
            row.recipe,
            manifest.digest,
            open_recipe(spec.recipe).fields,
            listed.lineage,
            listed.segments,
        )
        index = IndexReader(index_path(directory, row.recipe, listed.lineage), listed.lineage, row.recipe)
        return Held(row.id, record, directory, manifest, index)

    def named(self, name: str) -> Held:
        return named(self.datasets, name)

    def given_back(self, dataset: int) -> int:
        """Bytes of the dead rows of a data set, by its id, that the disk has back."""
        dead = [row for row in self.catalog.shards(dataset) if np.any(row.samples < 0)]
        paths = [(row, self.open[dataset].path_of(row)) for row in dead]
        return sum(max(row.bytes - 512 * path.stat().st_blocks, 0) for row, path in paths if path.exists())


def copy_catalog(path: Path, to: Path) -> Path:
    """A copy of a catalog that somebody writes, with its log: what SQLite makes of both is as of one moment.

    What its owner moves from the log to the file meanwhile is in our copy of the log as well, unless the log
    began anew on the way.
    """
    log = path.with_name(f"{path.name}-wal")
    for _ in range(TRIES):
        head = _head_of(log)
        for file in (path, log):
            shutil.copyfile(file, to / file.name)
        if _head_of(log) == head:
            return to / path.name
    raise CacheError(f"{path} changes all the time", hint="try again in a moment")


def _head_of(log: Path) -> bytes:
    with log.open("rb") as file:
        return file.read(LOG_HEAD_BYTES)
