"""Arrow columns, as shards are written with them."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from stager.reader.shards.envelope import COLUMN_NAMES, Envelope, Texts
from stager.reader.shards.trailer import Place

ENVELOPE_FIELDS = [
    pa.field(name, type, nullable=False)
    for name, type in zip(COLUMN_NAMES, (pa.binary(), pa.string(), pa.uint64()), strict=True)
]


def envelope_columns(envelope: Envelope) -> list[pa.Array]:
    """Keys, versions and checksums: a row each, in every shard."""
    return [
        _text_column(envelope.keys, pa.binary()),
        _text_column(envelope.versions, pa.string()),
        pa.array(envelope.checksums, pa.uint64()),
    ]


def _text_column(texts: Texts, type: pa.DataType) -> pa.Array:
    buffers = [None, pa.py_buffer(texts.offsets), pa.py_buffer(texts.data)]
    return pa.Array.from_buffers(type, len(texts.offsets) - 1, buffers)


def map_whole(path: Path) -> memoryview:
    """A file that was just written, to find what lies where. Readers map nothing: see shards/file.py."""
    with pa.memory_map(str(path)) as file:
        return memoryview(file.read_buffer())


def places_of(columns: Iterable[pa.Array], data: memoryview) -> list[Place]:
    """Where in `data` lie the buffers of columns that were read from it. No column has nulls."""
    start = np.frombuffer(data, np.uint8).ctypes.data
    return [place for column in columns for place in _column_places(column.buffers(), column.type, start)]


def _column_places(buffers: Sequence[pa.Buffer | None], type: pa.DataType, start: int) -> list[Place]:
    if pa.types.is_fixed_size_list(type):
        buffers = buffers[1:]  # the list has no buffer but that of its nulls
    return [(buffer.address - start, buffer.size) if buffer else (0, 0) for buffer in buffers[1:]]
