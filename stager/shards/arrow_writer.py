"""Write a shard as one Arrow IPC file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stager.model import Field, Row, ShardHeader, canonical_json
from stager.shards.arrow_reader import find_footer
from stager.shards.columns import ENVELOPE_FIELDS, envelope_columns, places_of
from stager.shards.envelope import Envelope
from stager.shards.mapping import map_file
from stager.shards.stored import bytes_of, stored_arrays
from stager.shards.trailer import pack_trailer

METADATA_KEY = b"stager"
ALIGNMENT_BYTES = 64
MAGIC_BYTES = 8  # an Arrow file opens with "ARROW1" and two zeros


def write_arrow(path: Path, header: ShardHeader, rows: Sequence[Row]) -> None:
    """One record batch: a column a field (two if raw rows differ), then key, version and checksum."""
    envelope = Envelope.of(header, rows)
    columns: dict[str, pa.Array] = {}
    for field in header.fields:
        arrays = stored_arrays(field, rows)
        if field.row_bytes is not None:
            columns[field.name] = _fixed_column(field, arrays)
            continue
        columns[field.name] = _variable_column(arrays)
        if field.encoding == "raw":
            columns[f"{field.name}.shape"] = _shape_column(arrays)
    schema = [pa.field(name, column.type, nullable=False) for name, column in columns.items()]
    batch = pa.record_batch(
        [*columns.values(), *envelope_columns(envelope)], schema=pa.schema([*schema, *ENVELOPE_FIELDS])
    )
    batch = _aligned(batch, canonical_json(envelope.metadata()))
    with path.open("xb") as file, pa.ipc.new_file(file, batch.schema) as sink:
        sink.write_batch(batch)
    _add_trailer(path, envelope)


def _fixed_column(field: Field, arrays: Sequence[npt.NDArray[Any]]) -> pa.Array:
    """The rows' own memory if they lie there side by side, else gathered."""
    first, row_bytes = arrays[0], field.row_bytes
    starts = np.fromiter((array.__array_interface__["data"][0] for array in arrays), np.int64, len(arrays))
    if row_bytes and np.all(np.diff(starts) == row_bytes):
        # All of this memory belongs to `arrays`, so the view over it stays within what is alive.
        shape, strides = (len(arrays), *first.shape), (row_bytes, *first.strides)
        data = bytes_of(np.lib.stride_tricks.as_strided(first, shape, strides, writeable=False))
    else:
        data = np.concatenate([bytes_of(array) for array in arrays])
    return pa.Array.from_buffers(pa.binary(row_bytes), len(arrays), [None, pa.py_buffer(data)])


def _variable_column(arrays: Sequence[npt.NDArray[Any]]) -> pa.Array:
    offsets = np.cumsum([0, *(array.nbytes for array in arrays)], dtype="<i8")
    data = np.concatenate([bytes_of(array) for array in arrays])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_binary(), len(arrays), buffers)


def _shape_column(arrays: Sequence[npt.NDArray[Any]]) -> pa.Array:
    type = pa.list_(pa.field("item", pa.int32(), nullable=False), arrays[0].ndim)
    sides = np.array([array.shape for array in arrays], "<i4")
    return pa.FixedSizeListArray.from_arrays(pa.array(sides.reshape(-1)), type=type)


def _aligned(batch: pa.RecordBatch, text: str) -> pa.RecordBatch:
    """Add the metadata, with as many spaces behind it as bring the first block to a multiple of 64 bytes."""
    batch = batch.replace_schema_metadata({METADATA_KEY: text})
    message = memoryview(batch.slice(0, 1).serialize())
    description_bytes = 8 + int.from_bytes(message[4:8], "little")
    block_at = MAGIC_BYTES + batch.schema.serialize().size + description_bytes
    return batch.replace_schema_metadata({METADATA_KEY: text + " " * (-block_at % ALIGNMENT_BYTES)})


def _add_trailer(path: Path, envelope: Envelope) -> None:
    """Put the trailer before the footer: Arrow's readers come from the end, go by offsets and skip it."""
    data = map_file(path)
    batch = pa.ipc.open_file(pa.py_buffer(data)).get_batch(0)
    places = places_of(
        [*batch.columns[-len(ENVELOPE_FIELDS) :], *batch.columns[: -len(ENVELOPE_FIELDS)]], data
    )
    footer_at = find_footer(data)
    footer = bytes(data[footer_at:])
    head = bytes(data[: min(offset for offset, size in places if size)])
    trailer = pack_trailer(envelope.metadata(), places, footer_at, ALIGNMENT_BYTES, head, footer)
    with path.open("r+b") as file:
        file.seek(footer_at)
        file.write(trailer + footer)
