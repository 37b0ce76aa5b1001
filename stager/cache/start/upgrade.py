"""A cache of the version before, made one of this version, without staging anything anew.

Version 1 numbered samples anew in every manifest, with an index for each. Here all its manifests become one
list of samples, and each shard's samples get their numbers in it. Indexes of that version are cleared at the
same start (startup.py): a reader of that version that is still open finds nothing, asks, and is told.
"""

import json
import logging
import sqlite3
import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from stager.atomic import fsync_path
from stager.catalog.catalog import GONE, Catalog
from stager.catalog.rows import DepartureRow, ListRow, ShardRow
from stager.errors import CacheError
from stager.reader.record import datasets_dir, manifest_path, segment_name
from stager.reader.samples.sample_list import SampleList
from stager.reader.samples.sealed import read_sealed, seal_of
from stager.reader.values import Numbers, canonical_json, digest_of
from stager.scan.found import SCHEMA, FoundSamples, content_of
from stager.scan.scan import Known, Scan, write_scan

log = logging.getLogger("stager")

Old = dict[str, Any]  # a row of the old catalog, by the names of its columns


def upgrade(cache_dir: Path, scratch_dir: Path, catalog: Catalog) -> None:
    """Fill an empty catalog from the one of the version before, and write the files that it needs."""
    with closing(sqlite3.connect(cache_dir / "catalog.db")) as old:
        tables = {name: _rows(old, name) for name in ("about", "datasets", "shards", "failures", "losses")}
        catalog.copy_rows("about", [(row["key"], row["value"]) for row in tables["about"]])
        for name in sorted({row["name"] for row in tables["datasets"]}):
            rows = [row for row in tables["datasets"] if row["name"] == name]
            _upgrade_dataset(datasets_dir(cache_dir) / name, scratch_dir, catalog, rows, tables)
        catalog.copy_jobs_and_counts(old)
    log.info("cache upgraded datasets=%d", len(tables["datasets"]))


def _upgrade_dataset(
    directory: Path, scratch_dir: Path, catalog: Catalog, rows: list[Old], tables: dict[str, list[Old]]
) -> None:
    """One list for all manifests that the recipes of a data set refer to: the current one's samples first."""
    rows = sorted(rows, key=lambda row: not row["is_current"])
    try:
        records, numbers_of = _make_list(directory, scratch_dir, [row["manifest"] for row in rows])
    except (CacheError, OSError) as error:
        log.error("data set forgotten name=%s problem=%r", rows[0]["name"], str(error))
        return
    listed = ListRow(rows[0]["name"], records.lineage, records.names, len(records), rows[0]["manifest"])
    catalog.put_list(listed)
    for row in reversed(rows):  # the last that is put is the current one
        if row["manifest"] not in numbers_of:
            continue
        new = catalog.put_dataset(row["name"], row["recipe"], row["spec"])
        catalog.count_origin(new.id, row["origin_reads"], row["origin_bytes"])
        _move_rows(catalog, row["id"], new.id, np.append(numbers_of[row["manifest"]], -1), tables)


def _move_rows(catalog: Catalog, old: int, new: int, numbers: Numbers, tables: dict[str, list[Old]]) -> None:
    """Record a data set's shards, failures and departures under the numbers that their samples have now."""
    for shard in tables["shards"]:
        if shard["dataset"] == old:
            samples = numbers[_places(shard["samples"])]
            about = (shard["number"], new, shard["format"], shard["bytes"], samples)
            is_asked = bool(shard.get("is_asked", 0))
            catalog.add_shard(ShardRow(*about, bool(shard["is_pinned"]), shard["created_at"], is_asked))
    failed = [row for row in tables["failures"] if row["dataset"] == old]
    catalog.add_failures(
        new, [(int(numbers[row["sample"]]), row["key"], row["reason"], row["detail"]) for row in failed]
    )
    for departure in tables["losses"]:
        if departure["dataset"] == old:
            samples = numbers[_places(departure["samples"])]
            catalog.add_departure(
                new,
                DepartureRow(
                    departure["at"], departure["reason"], departure["detail"], samples[samples >= 0]
                ),
            )


def _make_list(
    directory: Path, scratch_dir: Path, manifests: list[str]
) -> tuple[SampleList, dict[str, Numbers]]:
    """The list of all samples of these manifests, and for each manifest the number of each of its places.

    The first manifest must be readable; of the others, those that are.
    """
    records = SampleList(uuid.uuid4().hex, (), ())
    numbers_of: dict[str, Numbers] = {}
    for manifest in dict.fromkeys(manifests):
        try:
            table, classes, splits = _read_old(directory / f"manifest-{manifest}.arrow", manifest)
        except CacheError:
            if not numbers_of:
                raise
            continue
        scan = Scan(scratch_dir / f"upgrade-{manifest}")
        write_scan(scan, FoundSamples(table, classes, splits), Known(records))
        for segment in scan.segments:
            name = segment_name(records.lineage, len(records), seal_of(segment))
            segment.replace(directory / name)
            records = SampleList.open(directory, records.lineage, (*records.names, name))
        scan.path.replace(manifest_path(directory, manifest, records.lineage))
        scan.unlink()
        placed = read_sealed(manifest_path(directory, manifest, records.lineage))
        numbers_of[manifest] = placed["number"].to_numpy().astype(np.int64)
    fsync_path(directory)
    return records, numbers_of


def _read_old(path: Path, digest: str) -> tuple[pa.Table, list[str], list[str]]:
    """A manifest of version 1. Raise CacheError if it is not what its digest says."""
    try:
        table = pa.ipc.open_file(pa.OSFile(str(path))).read_all()
        about = json.loads(table.schema.metadata[b"stager"])
        classes, splits = about["classes"], about["splits"]
        table = table.select(SCHEMA.names)
        found = digest_of(canonical_json([classes, splits]).encode(), *content_of(table))
    except (OSError, pa.ArrowInvalid, ValueError, KeyError, TypeError) as error:
        raise CacheError(f"{path} cannot be read: {error}") from None
    if found != digest:
        raise CacheError(f"{path} does not match its digest")
    return table, classes, splits


def _rows(db: sqlite3.Connection, table: str) -> list[Old]:
    cursor = db.execute(f"SELECT * FROM {table}")  # noqa: S608
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor]


def _places(blob: bytes) -> Numbers:
    places = np.frombuffer(blob, dtype="<u4").astype(np.int64)
    places[places == GONE] = -1
    return places
