"""Arrow tables as files with a seal: a checksum over every byte, compared before anything is parsed.

A file is Arrow IPC streams of one record batch each, which any Arrow reads, and a tail behind them. pyarrow
ends the process over some damaged files: no byte reaches it that the seal does not cover.
"""

import os
import struct
from pathlib import Path
from typing import Final

import pyarrow as pa
import xxhash

from stager.errors import CacheError

MAGIC: Final = b"STGRSEAL"
_TAIL: Final = struct.Struct("<8sQQ")  # magic, bytes before the tail, their XXH3
_READ_BYTES: Final = 1 << 20


def write_sealed(path: Path, *tables: pa.Table) -> None:
    """Write tables to a new file, and make its bytes durable."""
    with pa.OSFile(str(path), "wb") as sink:
        for table in tables:
            with pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table.combine_chunks())
    size_bytes = path.stat().st_size
    with path.open("r+b") as file:
        tail = _TAIL.pack(MAGIC, size_bytes, _sum(file.fileno(), size_bytes))
        file.seek(size_bytes)
        file.write(tail)
        file.flush()
        os.fsync(file.fileno())


def read_sealed(path: Path) -> pa.Table:
    """The first table of a file. Raise CacheError if it is missing, or not what was written."""
    return read_tables(path)[0]


def read_tables(path: Path) -> list[pa.Table]:
    """Map the tables of a file. Raise CacheError if it is missing, or not what was written."""
    try:
        with path.open("rb") as file:
            size_bytes = file.seek(0, os.SEEK_END) - _TAIL.size
            tail = os.pread(file.fileno(), _TAIL.size, max(size_bytes, 0))
            if size_bytes < 0 or tail != _TAIL.pack(MAGIC, size_bytes, _sum(file.fileno(), size_bytes)):
                raise CacheError(f"{path} is damaged", hint="run: stager prefetch, to scan again")
        tables = []
        with pa.memory_map(str(path)) as mapped:
            source = pa.BufferReader(mapped.read_buffer(size_bytes))
            while source.tell() < size_bytes:
                tables.append(pa.ipc.open_stream(source).read_all())
        return tables
    except (OSError, pa.ArrowInvalid) as error:
        raise CacheError(
            f"{path} cannot be read: {error}", hint="run: stager prefetch, to scan again"
        ) from None


def seal_of(path: Path) -> str:
    """The seal as 16 hex digits: a name for the content of a file that was just written."""
    with path.open("rb") as file:
        file.seek(-_TAIL.size, os.SEEK_END)
        return f"{_TAIL.unpack(file.read())[2]:016x}"


def _sum(fd: int, size_bytes: int) -> int:
    """XXH3 of a file's first bytes. By `pread`: a mapping would count as this process's memory."""
    state, offset = xxhash.xxh3_64(), 0
    while offset < size_bytes:
        part = os.pread(fd, min(_READ_BYTES, size_bytes - offset), offset)
        if not part:
            break
        state.update(part)
        offset += len(part)
    return state.intdigest()
