"""Rows that are written in pieces: every byte in its place, in any order, however much a write takes."""

import os
import random
from pathlib import Path

import pytest

from stager.shards.pieces import PIECE_BYTES, PieceWriter

HEAD = bytes(4_160)  # the rows begin in the middle of the first piece


def written(path: Path, row_bytes: int, rows: int) -> tuple[bytes, bytes]:
    """What was written of rows in any order, and what should be there."""
    rng = random.Random(row_bytes)
    data = rng.randbytes(rows * row_bytes)
    with path.open("wb", buffering=0) as file:
        writer = PieceWriter(file.fileno())
        writer.write(memoryview(HEAD), 0)
        for row in rng.sample(range(rows), rows):
            at = row * row_bytes
            writer.write(memoryview(data)[at : at + row_bytes], len(HEAD) + at)
        writer.finish()
    return path.read_bytes(), HEAD + data


@pytest.mark.parametrize("row_bytes", [100, 4_096, 150_528, PIECE_BYTES, 3 * PIECE_BYTES + 7])
def test_all_bytes_are_in_their_places(tmp_path: Path, row_bytes: int) -> None:
    got, wanted = written(tmp_path / "file", row_bytes, max(5, 5_000_000 // row_bytes))
    assert got == wanted


@pytest.mark.parametrize("row_bytes", [100, 150_528])
def test_writes_that_stop_halfway_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row_bytes: int
) -> None:
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwritev", lambda fd, parts, at: pwrite(fd, b"".join(parts)[:1000], at))
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, data[:50_000], at))
    got, wanted = written(tmp_path / "file", row_bytes, max(5, 5_000_000 // row_bytes))
    assert got == wanted
