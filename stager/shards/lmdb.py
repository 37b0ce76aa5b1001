"""Write a shard as one LMDB environment file."""

import errno
import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pyarrow as pa

from stager.reader.shards.envelope import Envelope
from stager.reader.shards.lmdb import RowField
from stager.reader.shards.stored import bytes_of, stored_arrays
from stager.reader.shards.trailer import pack_trailer
from stager.reader.values import Field, Prepared, ShardHeader, canonical_json
from stager.shards.columns import ENVELOPE_FIELDS, envelope_columns, map_whole, places_of
from stager.shards.lmdb_pages import find_values

METADATA_KEY = b"stager"
ROWS_KEY = b"rows"
TRAILER_ALIGNMENT_BYTES = 4096


def row_key(row: int) -> bytes:
    """LMDB's key of a row: big-endian, so that rows lie in order, and before `rows` and `stager`."""
    return row.to_bytes(4, "big")


def fill_lmdb(path: Path, header: ShardHeader, rows: Sequence[Prepared]) -> None:
    """A value a row, its fields one after the other; then all keys, versions and checksums; then metadata.

    An empty file is a new environment to LMDB; to an old one it would add.
    """
    envelope = Envelope.of(header, rows)
    columns = [_values(field, rows) for field in header.fields]
    items: list[tuple[bytes, Any]] = []
    for row in range(len(rows)):
        parts = [part for column in columns for part in column[row]]
        items.append((row_key(row), parts[0] if len(parts) == 1 else b"".join(parts)))
    items.append((ROWS_KEY, _stream(envelope)))
    items.append((METADATA_KEY, canonical_json(envelope.metadata()).encode()))
    page_bytes = _write_environment(path, items)
    _add_trailer(path, envelope, page_bytes)


def _values(field: Field, rows: Sequence[Prepared]) -> list[tuple[Any, ...]]:
    """What each row's value holds of a field."""
    arrays = stored_arrays(field, rows)
    if field.row_bytes is not None:
        return [(bytes_of(array).data,) for array in arrays]
    prefix = RowField(field).prefix
    sides = [array.shape if field.encoding == "raw" else () for array in arrays]
    return [
        (prefix.pack(*shape, array.nbytes), bytes_of(array).data)
        for shape, array in zip(sides, arrays, strict=True)
    ]


def _stream(envelope: Envelope) -> memoryview:
    batch = pa.record_batch(envelope_columns(envelope), schema=pa.schema(ENVELOPE_FIELDS))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return memoryview(sink.getvalue())


def _write_environment(path: Path, items: Sequence[tuple[bytes, Any]]) -> int:
    """Put the items, which are in key order, by one transaction. Return LMDB's page size."""
    # Worst case a value: just too large for a leaf, so in pages of its own, and its share of the tree.
    map_bytes = sum(len(value) for _, value in items) + (2 * len(items) + 64) * mmap.PAGESIZE
    try:
        # No sync: the caller syncs the whole file. No writemap: on a full disk that is a SIGBUS.
        with lmdb.open(
            str(path), map_size=map_bytes, subdir=False, lock=False, sync=False, writemap=False
        ) as environment:
            with environment.begin(write=True) as transaction:
                for key, value in items:
                    transaction.put(key, value, append=True)
            return int(environment.stat()["psize"])
    except lmdb.Error as error:
        _ask_for_space(path, map_bytes)
        raise OSError(errno.EIO, f"LMDB could not write it: {error}", str(path)) from error


def _ask_for_space(path: Path, size_bytes: int) -> None:
    """Raise the disk's own error if it is full: LMDB calls that an input/output error."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.posix_fallocate(fd, 0, size_bytes)
    finally:
        os.close(fd)


def _add_trailer(path: Path, envelope: Envelope, page_bytes: int) -> None:
    """Append where each row's value begins, and the trailer: LMDB does not look behind its last page."""
    data = map_whole(path)
    values = {key: (offset, size) for key, offset, size in find_values(data, page_bytes)}
    rows_at, rows_bytes = values[ROWS_KEY]
    batch = pa.ipc.open_stream(pa.py_buffer(data[rows_at : rows_at + rows_bytes])).read_next_batch()
    row_offsets = [values[row_key(row)][0] for row in range(len(batch))]
    table = np.array(row_offsets, "<u8").tobytes()
    places = [*places_of(batch.columns, data), (len(data), len(table))]
    start = len(data) + len(table)
    trailer = pack_trailer(envelope.metadata(), places, start, TRAILER_ALIGNMENT_BYTES, b"", b"")
    with path.open("ab") as file:
        file.write(table + trailer)
