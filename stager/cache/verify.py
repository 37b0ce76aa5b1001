"""Is what the catalog has on the disk, whole, and in the index; and is nothing else there?"""

import logging
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from stager.cache.cache import Cache
from stager.cache.dataset import Dataset
from stager.catalog.rows import ShardRow
from stager.errors import ShardError, many
from stager.reader.index import is_damaged, is_resident, shard_of
from stager.reader.record import datasets_dir, shard_path
from stager.reader.values import Numbers
from stager.shards import verify_shard

log = logging.getLogger("stager")


def problem_of(path: Path, dead_rows: Iterable[int] = ()) -> str:
    """What is wrong with a shard's file, read whole; '' if nothing is."""
    try:
        rows = verify_shard(path, set(dead_rows))
    except ShardError as error:
        return error.message
    return f"{many(len(rows), 'sample')} with a wrong checksum" if rows else ""


def drop_bad_shards(cache: Cache, dataset: Dataset, suspects: Numbers) -> list[ShardRow]:
    """Look at the shards of samples that a reader calls corrupt, and evict those that are: these."""
    cache.mend(dataset, suspects)
    words = dataset.index.words[suspects]
    numbers = set(shard_of(words[is_resident(words)]).tolist())
    bad = []
    for number in sorted(numbers):
        shard = cache.catalog.find_shard(number)  # None: Transients looks at it, or it is not durable yet
        problem = problem_of(dataset.path_of(shard), shard.dead_rows) if shard else ""
        if shard and problem:
            log.error("shard dropped dataset=%s shard=%08x problem=%r", dataset.name, shard.number, problem)
            bad.append(shard)
    if bad:
        cache.departures.evict(bad, "corrupt", "a reader found it")
    return bad


def check_books(cache: Cache, under_way: set[Path]) -> list[str]:
    """Say where catalog, disk and indexes disagree. `under_way`: files that are not recorded yet."""
    problems = []
    recorded = set()
    for row in cache.catalog.datasets():
        directory = datasets_dir(cache.directory) / row.name
        words = cache.open[row.id].index.words
        if np.any(is_damaged(words[cache.open[row.id].index.used()])):
            problems.append(f"{cache.open[row.id].index.path}: damaged words")
        for shard in cache.catalog.shards(row.id):
            path = shard_path(directory, shard.number, shard.format)
            recorded.add(path)
            if not path.is_file():
                problems.append(f"{path}: recorded, but not there")
            elif path.stat().st_size != shard.bytes:
                problems.append(f"{path}: {path.stat().st_size} bytes, recorded are {shard.bytes}")
            if not np.all(is_resident(words[shard.samples[shard.samples >= 0]])):
                problems.append(f"{path}: samples of it are not in the index")
    for path in (*datasets_dir(cache.directory).glob("*/shards/*"), *cache.scratch.iterdir()):
        if path not in recorded | under_way:
            problems.append(f"{path}: not recorded")
    return problems
