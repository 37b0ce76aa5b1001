"""Data sets of any fields and attributes, staged by hand: the files that a reader opens, and no service."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from running import Place
from stager.cache.index_writer import IndexWriter
from stager.reader.index import pack_words
from stager.reader.record import (
    DatasetRecord,
    DatasetSpec,
    datasets_dir,
    index_path,
    manifest_path,
    segment_name,
    shard_path,
)
from stager.reader.samples.manifest import MANIFEST_FORMAT, PLACE, attribute_column
from stager.reader.samples.sealed import write_sealed
from stager.reader.samples.segments import RECORD
from stager.reader.values import (
    Arrays,
    Field,
    Prepared,
    ShardHeader,
    SourceSpec,
    canonical_json,
    checksum_of,
    digest_of,
    key_hash,
    sample_tag,
)
from stager.shards import FORMATS

RECIPE, LINEAGE = "c3" * 16, "0d" * 16
SHARD_ROWS = 5
Told = Mapping[str, tuple[str, Sequence[Any]]]  # of attributes: type, and a value a sample or None


def stage_by_hand(
    place: Place,
    name: str,
    fields: Sequence[Field],
    samples: Sequence[Arrays],
    attributes: Told | None = None,
    shard_format: str = "arrow",
) -> None:
    """Stage these samples, as stored. The first half is of class a, the others are of class b."""
    directory = datasets_dir(place.cache) / name
    (directory / "shards").mkdir(parents=True)
    keys = [f"{'ab'[2 * at // len(samples)]}/{at:03d}" for at in range(len(samples))]
    manifest = digest_of(name.encode())
    segment = segment_name(LINEAGE, 0, "1" * 8)
    _write_records(directory / segment, keys)
    _write_manifest(manifest_path(directory, manifest, LINEAGE), manifest, len(keys), attributes or {})
    spec = DatasetSpec(name, SourceSpec("/nowhere"), "folder", {"kind": "own"})
    record = DatasetRecord(spec, RECIPE, manifest, tuple(fields), LINEAGE, (segment,))
    index = IndexWriter.open(index_path(directory, RECIPE, LINEAGE), len(keys), LINEAGE, RECIPE, directory)
    header = ShardHeader(name, manifest, RECIPE, tuple(fields))
    for shard, first in enumerate(range(0, len(keys), SHARD_ROWS), 1):
        numbers = np.arange(first, min(first + SHARD_ROWS, len(keys)))[::-1]  # rows are not in their order
        rows = [_prepared(keys[number], fields, samples[number]) for number in numbers]
        FORMATS[shard_format].write(shard_path(directory, shard, shard_format), header, rows)
        index.publish(numbers, pack_words(shard, np.arange(len(rows)), shard_format))
    (directory / "dataset.json").write_text(record.to_text())


def _prepared(key: str, fields: Sequence[Field], arrays: Arrays) -> Prepared:
    return Prepared(key, "v1", arrays, checksum_of(sample_tag(key, "v1"), RECIPE, fields, arrays))


def _write_records(path: Path, keys: Sequence[str]) -> None:
    columns = {
        "key": [key.encode() for key in keys],
        "size": [9] * len(keys),
        "version": ["v1"] * len(keys),
        "key_hash": [key_hash(key) for key in keys],
        "tag": [sample_tag(key, "v1") for key in keys],
    }
    write_sealed(path, pa.table({name: columns[name] for name in RECORD.names}, schema=RECORD))


def _write_manifest(path: Path, digest: str, count: int, attributes: Told) -> None:
    about = {
        **{"format": MANIFEST_FORMAT, "digest": digest, "classes": ["a", "b"], "splits": [""]},
        "attributes": [[name, kind] for name, (kind, _) in attributes.items()],
    }
    schema = pa.schema(
        [*PLACE, *((attribute_column(name), kind) for name, (kind, _) in attributes.items())],
        {"stager": canonical_json(about)},
    )
    labels = [2 * at // count for at in range(count)]
    columns = [list(range(count)), labels, [0] * count, *(values for _, values in attributes.values())]
    write_sealed(path, pa.table(columns, schema=schema))
