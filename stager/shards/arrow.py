"""Write a shard as one Arrow IPC file."""

import io
import os
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stager.reader.shards.arrow import find_footer
from stager.reader.shards.envelope import Envelope
from stager.reader.shards.file import ShardFile
from stager.reader.shards.stored import bytes_of, stored_arrays
from stager.reader.shards.trailer import Place, pack_trailer
from stager.reader.values import Field, Prepared, ShardHeader, canonical_json
from stager.shards.columns import ENVELOPE_FIELDS, envelope_columns, map_whole, places_of
from stager.shards.slabs import SlabWriter, write_at

METADATA_KEY = b"stager"
ALIGNMENT_BYTES = 64
MAGIC_BYTES = 8  # an Arrow file opens with "ARROW1" and two zeros


def fill_arrow(path: Path, header: ShardHeader, rows: Sequence[Prepared]) -> None:
    """One record batch: a column a field (two if raw rows differ), then key, version and checksum."""
    envelope = Envelope.of(header, rows)
    columns: dict[str, pa.Array] = {}
    for field in header.fields:
        arrays = stored_arrays(field, rows)
        if field.row_bytes is not None:
            data = np.concatenate([bytes_of(array) for array in arrays])
            columns[field.name] = _fixed_column(field, len(arrays), data)
            continue
        columns[field.name] = _variable_column(arrays)
        if field.encoding == "raw":
            columns[f"{field.name}.shape"] = _shape_column(arrays)
    batch = _aligned(_batch_of(columns, envelope), canonical_json(envelope.metadata()))
    with path.open("r+b", buffering=0) as file:
        _write_batch(file, batch)
    _add_trailer(path, envelope)


class ArrowRows:
    """A shard whose rows go to the file as they come: for one field of fixed size, which Arrow keeps first.

    Nothing but keys, checksums and a slab or two stays in memory. Any thread may add; rows lie in the order
    of their coming.
    """

    def __init__(self, path: Path, header: ShardHeader, rows_max: int) -> None:
        (self._field,) = header.fields
        assert self._field.row_bytes
        self._path, self._header, self._row_bytes = path, header, self._field.row_bytes
        self._rows: dict[int, Prepared] = {}
        self._numbers = count()  # `next` is safe in threads
        self._starts_at = _rows_start(header, rows_max)
        self._file = path.open("xb", buffering=0)
        self._slabs = SlabWriter(self._file.fileno())
        self._is_whole = False
        try:  # a full disk says so now, and not in the middle
            os.posix_fallocate(self._file.fileno(), 0, self._starts_at + rows_max * self._row_bytes)
        except BaseException:
            self.__exit__()
            raise
        self._slabs.write(memoryview(bytes(self._starts_at)), 0)  # in place of what is known at the end

    def add(self, row: Prepared) -> int:
        (array,) = stored_arrays(self._field, [row])
        number = next(self._numbers)
        self._rows[number] = Prepared(row.key, row.version, {}, row.checksum)
        self._slabs.write(bytes_of(array).data, self._starts_at + number * self._row_bytes)
        return number

    def finish(self) -> None:
        envelope = Envelope.of(self._header, [self._rows[number] for number in range(len(self._rows))])
        end = self._starts_at + len(self._rows) * self._row_bytes
        self._slabs.finish()
        rows = np.frombuffer(map_whole(self._path)[self._starts_at : end], np.uint8)
        columns = {self._field.name: _fixed_column(self._field, len(self._rows), rows)}
        text = canonical_json(envelope.metadata())
        batch = _aligned(_batch_of(columns, envelope), text, self._starts_at)
        _write_batch(self._file, batch, passing_over=(self._starts_at, end))
        _add_trailer(self._path, envelope)
        self._is_whole = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        if not self._is_whole:
            self._path.unlink()


def _rows_start(header: ShardHeader, rows_max: int) -> int:
    """Where the first row of so many will lie, once the metadata is known."""
    (field,) = header.fields
    envelope = Envelope.of(header, [Prepared("", "", {}, 0)])
    none = np.zeros(field.row_bytes or 0, np.uint8)
    batch = _batch_of({field.name: _fixed_column(field, 1, none)}, envelope)
    text = canonical_json(envelope.metadata() | {"samples": rows_max})
    return _block_start(_aligned(batch, text))


def _batch_of(columns: dict[str, pa.Array], envelope: Envelope) -> pa.RecordBatch:
    schema = [pa.field(name, column.type, nullable=False) for name, column in columns.items()]
    return pa.record_batch(
        [*columns.values(), *envelope_columns(envelope)], schema=pa.schema([*schema, *ENVELOPE_FIELDS])
    )


class _Slabs(io.RawIOBase):
    """What pyarrow writes to. Bytes that are in the file already are passed over; the rest goes in slabs."""

    def __init__(self, file: io.FileIO, passing_over: Place) -> None:
        self._file, self._passing_over = file, passing_over

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._file.tell()

    def write(self, data: Any) -> int:
        begin, end = self._passing_over
        rest = memoryview(data).cast("B")
        size_bytes = len(rest)
        if self._file.tell() == begin and size_bytes == end - begin:
            self._file.seek(end)
            return size_bytes
        write_at(self._file.fileno(), rest, self._file.tell())
        self._file.seek(size_bytes, io.SEEK_CUR)
        return size_bytes


def _write_batch(file: io.FileIO, batch: pa.RecordBatch, passing_over: Place = (0, 0)) -> None:
    with pa.ipc.new_file(_Slabs(file, passing_over), batch.schema) as sink:
        sink.write_batch(batch)
    file.truncate()


def _fixed_column(field: Field, rows: int, data: npt.NDArray[np.uint8]) -> pa.Array:
    return pa.Array.from_buffers(pa.binary(field.row_bytes), rows, [None, pa.py_buffer(data)])


def _variable_column(arrays: Sequence[npt.NDArray[Any]]) -> pa.Array:
    offsets = np.cumsum([0, *(array.nbytes for array in arrays)], dtype="<i8")
    data = np.concatenate([bytes_of(array) for array in arrays])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_binary(), len(arrays), buffers)


def _shape_column(arrays: Sequence[npt.NDArray[Any]]) -> pa.Array:
    type = pa.list_(pa.field("item", pa.int32(), nullable=False), arrays[0].ndim)
    sides = np.array([array.shape for array in arrays], "<i4")
    return pa.FixedSizeListArray.from_arrays(pa.array(sides.reshape(-1)), type=type)


def _aligned(batch: pa.RecordBatch, text: str, block_at: int | None = None) -> pa.RecordBatch:
    """Add the metadata, and spaces that bring the first block to `block_at`, or else to a multiple of 64."""
    batch = batch.replace_schema_metadata({METADATA_KEY: text})
    found = _block_start(batch)
    spaces = -found % ALIGNMENT_BYTES if block_at is None else block_at - found
    return batch.replace_schema_metadata({METADATA_KEY: text + " " * spaces})


def _block_start(batch: pa.RecordBatch) -> int:
    message = memoryview(batch.slice(0, 1).serialize())
    description_bytes = 8 + int.from_bytes(message[4:8], "little")
    return MAGIC_BYTES + int(batch.schema.serialize().size) + description_bytes


def _add_trailer(path: Path, envelope: Envelope) -> None:
    """Put the trailer before the footer: Arrow's readers come from the end, go by offsets and skip it."""
    data = map_whole(path)
    batch = pa.ipc.open_file(pa.py_buffer(data)).get_batch(0)
    places = places_of(
        [*batch.columns[-len(ENVELOPE_FIELDS) :], *batch.columns[: -len(ENVELOPE_FIELDS)]], data
    )
    footer_at = find_footer(ShardFile(path))
    footer = bytes(data[footer_at:])
    head = bytes(data[: min(offset for offset, size in places if size)])
    trailer = pack_trailer(envelope.metadata(), places, footer_at, ALIGNMENT_BYTES, head, footer)
    with path.open("r+b") as file:
        file.seek(footer_at)
        file.write(trailer + footer)
