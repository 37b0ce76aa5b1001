"""What a crash leaves in a cache directory, found and removed at the next start."""

import shutil
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Protocol

from stager.cache.index_writer import IndexWriter, retire
from stager.catalog.catalog import Catalog
from stager.reader.record import DatasetRecord, datasets_dir, manifest_path, shard_path


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


def sweep(cache_dir: Path, catalog: Catalog, datasets: Iterable[_Open]) -> None:
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


def sweep_versions(directory: Path, manifests: Collection[str], record: DatasetRecord) -> None:
    """Remove manifests that no version is which counts, and segments that are not of the list."""
    used = {manifest_path(directory, manifest, record.lineage) for manifest in manifests}
    used |= {directory / name for name in record.segments}
    for path in (*directory.glob("manifest-*"), *directory.glob("samples-*")):
        if path not in used:
            path.unlink()
