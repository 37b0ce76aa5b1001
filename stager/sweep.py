"""What a crash leaves in a cache directory, found and removed at the next start."""

import logging
import shutil
from pathlib import Path

from stager.catalog import Catalog
from stager.dataset import datasets_dir, index_path, manifest_path, shard_path
from stager.errors import CacheError
from stager.manifest import Manifest
from stager.shards import FORMATS

log = logging.getLogger("stager")


def forget_unreadable(cache_dir: Path, catalog: Catalog) -> None:
    """A data set without a readable manifest is scanned and staged anew when asked for; others go on."""
    for row in catalog.datasets():
        try:
            Manifest.open(manifest_path(datasets_dir(cache_dir) / row.name, row.manifest))
        except CacheError as error:
            log.error("data set forgotten name=%s problem=%r", row.name, error.message)
            with catalog.transaction():
                catalog.remove_shards(shard.number for shard in catalog.shards(row.id))
                catalog.forget_dataset(row.id)


def sweep(cache_dir: Path, catalog: Catalog) -> None:
    """Remove what a crash left: scratch files, shards without a row, rows without a whole shard."""
    for path in (cache_dir / "scratch").iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    names = {row.id: row.name for row in catalog.datasets()}
    sizes = {
        shard_path(datasets_dir(cache_dir) / names[row.dataset], row.number, FORMATS[row.format].suffix): row
        for row in catalog.shards()
    }
    lost = []
    for path, row in sizes.items():
        if not path.is_file() or path.stat().st_size != row.bytes:
            lost.append(row.number)
    catalog.remove_shards(lost)
    kept = {path for path, row in sizes.items() if row.number not in set(lost)}
    for path in datasets_dir(cache_dir).glob("*/shards/*"):
        if path not in kept:
            path.unlink()
    for name in set(names.values()):
        sweep_dataset_files(cache_dir, catalog, name)


def sweep_dataset_files(cache_dir: Path, catalog: Catalog, name: str) -> None:
    """Remove manifests and indexes that nothing refers to any more."""
    directory = datasets_dir(cache_dir) / name
    rows = [row for row in catalog.datasets() if row.name == name]
    used = {manifest_path(directory, row.manifest) for row in rows}
    used |= {index_path(directory, row.recipe, row.manifest) for row in rows}
    for path in (*directory.glob("manifest-*"), *directory.glob("index-*")):
        if path not in used:
            path.unlink()
