"""The catalog: opened, or upgraded from the version before, or, if it was lost, made anew from the files."""

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np

from stager.atomic import fsync_path
from stager.cache.index_writer import highest_shard
from stager.cache.start.upgrade import upgrade
from stager.catalog.catalog import Catalog
from stager.catalog.database import DAMAGE, CatalogBroken, CatalogOld
from stager.catalog.rows import ListRow, ShardRow
from stager.clock import Clock
from stager.errors import StagerError
from stager.reader.record import DatasetRecord, datasets_dir, manifest_path
from stager.reader.samples.by_number import ByNumber
from stager.reader.samples.manifest import Manifest
from stager.reader.samples.sample_list import SampleList
from stager.reader.shards import open_shard
from stager.reader.values import canonical_json
from stager.shards import verify_shard

log = logging.getLogger("stager")


def open_catalog(cache_dir: Path, scratch_dir: Path, clock: Clock) -> Catalog:
    """The catalog of a cache, whatever state it is in."""
    path = cache_dir / "catalog.db"
    if path.exists():
        try:
            return Catalog(path, clock)
        except CatalogOld:
            try:
                _replace(path, scratch_dir, clock, lambda new: upgrade(cache_dir, scratch_dir, new))
                return Catalog(path, clock)
            except (CatalogBroken, *DAMAGE, ValueError, KeyError, TypeError, IndexError) as error:
                log.error("catalog not upgraded problem=%r", str(error))
                put_aside(cache_dir, clock)
        except CatalogBroken as error:
            log.error("catalog damaged problem=%r", error.message)
            put_aside(cache_dir, clock)
    _replace(path, scratch_dir, clock, lambda new: rebuild(cache_dir, new, clock))
    return Catalog(path, clock)


def put_aside(cache_dir: Path, clock: Clock) -> None:
    """Keep a damaged catalog, for people to look at, where it is in nobody's way."""
    path = cache_dir / "catalog.db"
    path.replace(path.with_name(f"catalog.broken-{clock.wall():.0f}"))
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _replace(path: Path, scratch_dir: Path, clock: Clock, fill: Callable[[Catalog], None]) -> None:
    """Put a new catalog there, whole: a crash on the way leaves what was there."""
    scratch = scratch_dir / "catalog.new"
    for suffix in ("", "-wal", "-shm"):
        scratch.with_name(scratch.name + suffix).unlink(missing_ok=True)
    new = Catalog(scratch, clock, is_new=True)
    try:
        with new.transaction():
            fill(new)
    finally:
        new.close()  # which empties its log into it
    fsync_path(scratch)
    scratch.replace(path)
    fsync_path(path.parent)


def rebuild(cache_dir: Path, catalog: Catalog, clock: Clock) -> None:
    """Fill an empty catalog from dataset.json files and the shards' own headers.

    Rows that do not match their checksum are dead: evicted ones are holes, and nobody can tell them apart.
    So are rows of samples that a shard before has: one of the two was dead, and now either may be.
    Shard numbers that a reader may still have in an index are not given out again.
    """
    used = 0
    for directory in sorted(path for path in datasets_dir(cache_dir).glob("*") if path.is_dir()):
        used = max(used, *(highest_shard(path) for path in directory.glob("index-*")), 0)
        used = max(used, *(_number(path) for path in (directory / "shards").glob("*")), 0)
        try:
            record = DatasetRecord.read(directory)
            records = SampleList.open(directory, record.lineage, record.segments)
            Manifest.open(manifest_path(directory, record.manifest, record.lineage), records)
        except (StagerError, OSError) as error:
            log.error("data set forgotten directory=%s problem=%r", directory, str(error))
            continue  # not readable: its shards are swept away, and staged again when asked for
        name = record.spec.name
        catalog.put_list(ListRow(name, record.lineage, record.segments, len(records), record.manifest))
        row = catalog.put_dataset(name, record.recipe, canonical_json(record.spec.to_json()))
        find, is_there = records.finder(), ByNumber(np.bool_)
        for path in sorted((directory / "shards").iterdir()):
            numbers = _samples(path, record.recipe, find)
            here = np.flatnonzero(numbers >= 0)
            again = is_there[numbers[here]]
            is_there[numbers[here]] = True
            numbers[here[again]] = -1
            if np.any(numbers >= 0):
                size_bytes, shard_format = path.stat().st_size, path.suffix.removeprefix(".")
                catalog.add_shard(
                    ShardRow(_number(path), row.id, shard_format, size_bytes, numbers, False, clock.wall())
                )
    catalog.skip_shard_numbers(used)


def _number(path: Path) -> int:
    try:
        return int(path.stem, 16)
    except ValueError:
        return 0


def _samples(
    path: Path, recipe: str, find: Callable[[str, str], int]
) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """The sample of each row of a shard; -1 where it is dead, or of another recipe."""
    none = np.zeros(0, dtype=np.int64)
    try:
        shard = open_shard(path)
        if shard.header.recipe != recipe or not _number(path) or path.is_symlink():
            return none
        dead = verify_shard(path)
    except StagerError:
        return none
    samples = [find(key, version) for key, version in shard.identities()]
    numbers = np.asarray(samples, dtype=np.int64)
    numbers[dead] = -1
    return numbers
