"""Shards: immutable files of samples on SSD, in two formats."""

from collections.abc import Collection, Sequence
from pathlib import Path

from stager.errors import ShardCorrupt
from stager.interfaces import ShardFormat, ShardWriter
from stager.reader.shards import SUFFIXES, open_shard
from stager.reader.shards.arrow import ArrowReader
from stager.reader.shards.lmdb import LmdbReader
from stager.reader.values import Prepared, ShardHeader, ShardReader, checksum_of, sample_tag
from stager.shards.collected import CollectedRows, write_rows

__all__ = ["FORMATS", "verify_shard"]


class ArrowFormat:
    """Arrow IPC files: pyarrow, pandas and DuckDB read them too. For fields of fixed size the fastest."""

    suffix = SUFFIXES["arrow"]

    def begin(self, path: Path, header: ShardHeader, rows_max: int, room_bytes: int) -> ShardWriter:
        from stager.shards.arrow import ArrowRows, fill_arrow  # a reader needs no pyarrow

        if len(header.fields) == 1 and header.fields[0].row_bytes:
            return ArrowRows(path, header, rows_max)
        return CollectedRows(path, header, fill_arrow, room_bytes)

    def write(self, path: Path, header: ShardHeader, rows: Sequence[Prepared]) -> None:
        from stager.shards.arrow import fill_arrow

        write_rows(path, header, rows, fill_arrow)

    def open(self, path: Path) -> ArrowReader:
        return ArrowReader(path)


class LmdbFormat:
    """LMDB environment files: any LMDB reads them too. A row is one value."""

    suffix = SUFFIXES["lmdb"]

    def begin(self, path: Path, header: ShardHeader, rows_max: int, room_bytes: int) -> ShardWriter:
        from stager.shards.lmdb import fill_lmdb  # a reader needs no lmdb

        return CollectedRows(path, header, fill_lmdb, room_bytes)

    def write(self, path: Path, header: ShardHeader, rows: Sequence[Prepared]) -> None:
        from stager.shards.lmdb import fill_lmdb

        write_rows(path, header, rows, fill_lmdb)

    def open(self, path: Path) -> LmdbReader:
        return LmdbReader(path)


FORMATS: dict[str, ShardFormat] = {"arrow": ArrowFormat(), "lmdb": LmdbFormat()}


def verify_shard(path: Path, dead_rows: Collection[int] = ()) -> list[int]:
    """Read the samples of a shard; return the rows whose bytes do not match their checksum.

    Rows that nothing points to any more may be holes by now, and are left out.
    """
    shard = open_shard(path)
    return [
        row
        for row, identity in enumerate(shard.identities())
        if row not in dead_rows and not _is_sound(shard, row, *identity)
    ]


def _is_sound(shard: ShardReader, row: int, key: str, version: str) -> bool:
    try:
        arrays = shard.row(row)
    except ShardCorrupt:
        return False
    checksum = checksum_of(sample_tag(key, version), shard.header.recipe, shard.header.fields, arrays)
    return checksum == int(shard.checksums[row])
