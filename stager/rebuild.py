"""A catalog that was lost, made anew from the files of the cache."""

import time
from pathlib import Path

import numpy as np

from stager.catalog import Catalog
from stager.dataset import DatasetRecord, datasets_dir, manifest_path
from stager.errors import StagerError
from stager.manifest import Manifest
from stager.model import canonical_json, sample_tag
from stager.rows import ShardRow
from stager.shards import open_shard, verify_shard


def rebuild(cache_dir: Path, catalog: Catalog) -> None:
    """Fill an empty catalog from dataset.json files and the shards' own headers.

    Rows that do not match their checksum are dead: evicted ones are holes, and nobody can tell them apart.
    """
    used = 0
    for directory in sorted(path for path in datasets_dir(cache_dir).glob("*") if path.is_dir()):
        try:
            record = DatasetRecord.read(directory)
            manifest = Manifest.open(manifest_path(directory, record.manifest))
        except (StagerError, OSError):
            continue  # not readable: its shards are swept away, and staged again when asked for
        spec = canonical_json(record.spec.to_json())
        row = catalog.put_dataset(record.spec.name, record.recipe, record.manifest, spec)
        number_of = dict(zip(manifest.tags.tolist(), range(len(manifest)), strict=True))
        for path in sorted((directory / "shards").iterdir()):
            try:
                number = int(path.stem, 16)
                used = max(used, number)
                shard = open_shard(path)
                dead = verify_shard(path)
            except (StagerError, ValueError):
                continue
            if shard.header.recipe != record.recipe:
                continue
            samples = [number_of.get(sample_tag(key, version), -1) for key, version in shard.identities()]
            numbers = np.asarray(samples, dtype=np.int64)
            numbers[dead] = -1
            if np.any(numbers >= 0):
                size_bytes, shard_format = path.stat().st_size, path.suffix.removeprefix(".")
                catalog.add_shard(
                    ShardRow(number, row.id, shard_format, size_bytes, numbers, False, time.time())
                )
    catalog.skip_shard_numbers(used)
