"""What a crash leaves in a cache directory, found and removed at the next start."""

import json
import logging
import shutil
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from stager.atomic import fsync_path
from stager.cache.index_writer import IndexWriter, retire
from stager.catalog.catalog import Catalog
from stager.catalog.database import CatalogBroken
from stager.catalog.rows import DatasetRow, ListRow
from stager.errors import CacheError, StagerError
from stager.reader.record import DatasetRecord, datasets_dir, manifest_path, shard_path
from stager.reader.samples.manifest import Manifest
from stager.reader.samples.sample_list import SampleList
from stager.recipes import open_recipe

log = logging.getLogger("stager")


class _Open(Protocol):
    """A data set by one recipe, as far as its files go."""

    directory: Path
    index: IndexWriter


def drop_unwhole(cache_dir: Path, catalog: Catalog) -> None:
    """Take shards off the record whose file is not there, or not whole."""
    names = {row.id: row.name for row in catalog.datasets()}
    lost = []
    for row in catalog.shards():
        path = shard_path(datasets_dir(cache_dir) / names[row.dataset], row.number, row.format)
        if path.is_symlink() or not path.is_file() or path.stat().st_size != row.bytes:
            lost.append(row.number)
    if lost:
        catalog.remove_shards(lost)


def finish_renames(cache_dir: Path, catalog: Catalog) -> None:
    """Give each data set its directory: one that was renamed may have it under its old name."""
    datasets = datasets_dir(cache_dir)
    lost = {row.lineage: row.name for row in catalog.lists() if not (datasets / row.name).is_dir()}
    for path in datasets.iterdir() if lost else ():
        with suppress(StagerError, OSError):
            lineage = DatasetRecord.read(path).lineage
            if lineage in lost:
                path.rename(datasets / lost.pop(lineage))
                fsync_path(datasets)


def remove_strays(cache_dir: Path, catalog: Catalog, datasets: Iterable[_Open]) -> None:
    """Remove what nothing refers to: scratch files, indexes, shards without a row.

    Indexes first, and each is cleared before its name goes: a reader may have it mapped. Those that are used
    are in line with the catalog by now, so nothing that is removed has a word that points to it.
    """
    for path in (cache_dir / "scratch").iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    used = {dataset.index.path for dataset in datasets}
    for path in datasets_dir(cache_dir).glob("*/index-*"):
        if path not in used:
            retire(path)
    names = {row.id: row.name for row in catalog.datasets()}
    kept = {
        shard_path(datasets_dir(cache_dir) / names[row.dataset], row.number, row.format)
        for row in catalog.shards()
    }
    for path in datasets_dir(cache_dir).glob("*/shards/*"):
        if path not in kept:
            path.unlink()
    for path in datasets_dir(cache_dir).iterdir():
        if path.name not in names.values() and path.is_dir() and not (path / "dataset.json").exists():
            shutil.rmtree(path)  # it was being removed, or had not come to be


def remove_old_versions(directory: Path, manifests: Collection[str], record: DatasetRecord) -> None:
    """Remove manifests that no version is which counts, and segments that are not of the list."""
    used = {manifest_path(directory, manifest, record.lineage) for manifest in manifests}
    used |= {directory / name for name in record.segments}
    for path in (*directory.glob("manifest-*"), *directory.glob("samples-*")):
        if path not in used:
            path.unlink()


def is_known(row: DatasetRow) -> bool:
    """Whether a recipe that is on record is still one of ours, and gives what it gave."""
    try:
        if open_recipe(json.loads(row.spec)["recipe"]).digest == row.recipe:
            return True
        problem = "its recipe gives other samples by now"
    except StagerError as error:
        problem = error.message
    log.error("data set forgotten name=%s problem=%r", row.name, problem)
    return False


def read_version(cache_dir: Path, row: ListRow) -> Manifest | None:
    """The newest version of a data set; None: it cannot be read, so it is scanned and staged anew."""
    directory = datasets_dir(cache_dir) / row.name
    try:
        records = SampleList.open(directory, row.lineage, row.segments)
        manifest = Manifest.open(manifest_path(directory, row.manifest, row.lineage), records)
    except CacheError as error:
        log.error("data set forgotten name=%s problem=%r", row.name, error.message)
        return None
    if len(records) != row.samples:
        raise CatalogBroken(f"{row.name} has {len(records)} samples, recorded are {row.samples}")
    return manifest
