"""Row groups of Parquet files: which bytes they are, and rows that are taken from them without the file."""

import threading
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from stager.errors import SampleError
from stager.interfaces import Data
from stager.layouts.packed.ranged import SeekableFile

BYTES = "bytes"  # Hugging Face keeps an image as a struct of its bytes and its path


def bytes_type(kind: pa.DataType) -> bool:
    """Whether rows of a column of this type are bytes, or texts."""
    if pa.types.is_struct(kind) and kind.get_field_index(BYTES) >= 0:
        kind = kind.field(BYTES).type
    checks = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
    return any(check(kind) for check in checks) or is_text(kind)


def is_text(kind: pa.DataType) -> bool:
    """Whether rows of a column of this type are texts."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def range_of(metadata: pq.FileMetaData, group: int, columns: Sequence[str]) -> tuple[int, int]:
    """The first byte of some columns of a row group, and the one behind their last."""
    told = metadata.row_group(group)
    starts, stops = [], []
    for number in range(told.num_columns):
        chunk = told.column(number)
        if _is_of(chunk.path_in_schema, columns):
            pages = [chunk.data_page_offset]
            if chunk.has_dictionary_page and chunk.dictionary_page_offset is not None:
                pages.append(chunk.dictionary_page_offset)
            starts.append(min(pages))
            stops.append(min(pages) + chunk.total_compressed_size)
    return min(starts), max(stops)


def _is_of(path: str, columns: Sequence[str]) -> bool:
    """Whether it is one of the columns, or of a struct the leaf that has the bytes."""
    return path in columns or path.removesuffix(f".{BYTES}") in columns


class RowGroups:
    """Samples are rows. Their first part is a row group's bytes, the second one their file's footer."""

    def open(self, number: int, data: memoryview) -> Any:
        if number == 0:
            return _Group(data)
        try:
            return pq.read_metadata(pa.BufferReader(pa.py_buffer(data)))
        except (pa.ArrowException, OSError) as error:
            raise SampleError("corrupt", f"its footer: {_one_line(error)}") from None

    def take(self, opened: Sequence[Any], at: Any) -> Sequence[Data]:
        group, metadata = opened
        number, row, *columns = at
        table = group.table(metadata, number, columns)
        if not row < table.num_rows:
            raise SampleError("corrupt", f"row group {number} has no row {row}")
        return [_bytes_of(table.column(name)[row], name) for name in columns]


class _Group:
    """A row group that is decoded by the first thread that takes a row of it."""

    def __init__(self, data: memoryview) -> None:
        self._data: memoryview | None = data
        self._lock = threading.Lock()
        self._table: pa.Table | None = None

    def table(self, metadata: pq.FileMetaData, group: int, columns: Sequence[str]) -> pa.Table:
        with self._lock:
            if self._table is None:
                assert self._data is not None
                try:
                    self._table = _decoded(self._data, metadata, group, columns)
                except (pa.ArrowException, OSError, ValueError) as error:
                    raise SampleError("corrupt", f"row group {group}: {_one_line(error)}") from None
            return self._table


def _decoded(data: memoryview, metadata: pq.FileMetaData, group: int, columns: Sequence[str]) -> pa.Table:
    start, _ = range_of(metadata, group, columns)
    kinds = {name: metadata.schema.to_arrow_schema().field(name).type for name in columns}
    leaves = [f"{name}.{BYTES}" if pa.types.is_struct(kind) else name for name, kind in kinds.items()]
    file = pq.ParquetFile(
        pa.PythonFile(_PartOfFile(start, data), mode="r"), metadata=metadata, page_checksum_verification=True
    )
    return file.read_row_group(group, columns=leaves, use_threads=False)


class _PartOfFile(SeekableFile):
    """A file of which only some bytes are there, up to its end."""

    def __init__(self, start: int, data: memoryview) -> None:
        super().__init__(start + len(data))
        self._start, self._data = start, data

    def read(self, size: int = -1) -> bytes:
        first = self._position - self._start
        if first < 0:
            raise OSError("bytes in front of the row group were asked for")
        found = bytes(self._data[first:] if size < 0 else self._data[first : first + size])
        self._position += len(found)
        return found


def _bytes_of(value: pa.Scalar, column: str) -> memoryview:
    if isinstance(value, pa.StructScalar) and value.is_valid:
        value = value[BYTES]
    if not value.is_valid:
        raise SampleError("missing", f"its column {column} has no bytes in this row")
    return memoryview(value.as_buffer())


def _one_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
