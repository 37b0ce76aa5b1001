"""Write a file in pieces that the page cache keeps whole.

The page cache has the bytes of one write side by side, as far as they begin and end at a multiple of their
size, and reads what lies side by side faster. For rows of 150 KB, in CPU time: written one by one 42 us, and
17 us to read; in pieces of 256 KiB 30 us and 13 us. Larger pieces are read no faster, and to write them took
four times as long, each second time.
"""

import os
import threading
from typing import Final

PIECE_BYTES: Final = 256 << 10
PARTS_MAX: Final = 1024  # that one system call takes


def write_at(fd: int, data: memoryview, at: int) -> None:
    """Write at an offset, in pieces. Raise OSError."""
    while data:
        written = os.pwrite(fd, data[: PIECE_BYTES - at % PIECE_BYTES], at)
        data, at = data[written:], at + written


class PieceWriter:
    """Rows side by side in a file, from any thread: a piece is written once all of it is there.

    Rows are not copied: they are kept until then, so whoever gives one must not change it any more.
    """

    def __init__(self, fd: int, starts_at: int) -> None:
        self._fd, self._starts_at = fd, starts_at
        self._pieces: dict[int, _Piece] = {}  # by their offsets: begun, and not written yet
        self._lock = threading.Lock()

    def write(self, data: memoryview, at: int) -> None:
        """Take the bytes for an offset. Raise OSError if a piece that is whole now cannot be written."""
        while data:
            start = at - at % PIECE_BYTES
            part = data[: start + PIECE_BYTES - at]
            with self._lock:
                if start not in self._pieces:
                    self._pieces[start] = _Piece(start + PIECE_BYTES - max(self._starts_at, start))
                piece = self._pieces[start]
                piece.parts[at] = part
                piece.lacking_bytes -= len(part)
                is_whole = not piece.lacking_bytes
                if is_whole:
                    del self._pieces[start]
            if is_whole:
                self._write(piece)
            data, at = data[len(part) :], at + len(part)

    def finish(self) -> None:
        """Write the pieces that are not whole: the last, for no more rows come."""
        for _, piece in sorted(self._pieces.items()):
            self._write(piece)
        self._pieces.clear()

    def _write(self, piece: "_Piece") -> None:
        """Write the parts of a piece, which lie side by side, at once."""
        at = min(piece.parts)
        parts = [piece.parts[offset] for offset in sorted(piece.parts)]
        for begin in range(0, len(parts), PARTS_MAX):
            some = parts[begin : begin + PARTS_MAX]
            size_bytes = sum(map(len, some))
            written = os.pwritev(self._fd, some, at)
            if written < size_bytes:  # a signal, or the disk is full: the next write tells
                write_at(self._fd, memoryview(b"".join(some))[written:], at + written)
            at += size_bytes


class _Piece:
    """Parts of rows by their offsets, and how many bytes are not there yet."""

    __slots__ = ("lacking_bytes", "parts")

    def __init__(self, lacking_bytes: int) -> None:
        self.lacking_bytes = lacking_bytes
        self.parts: dict[int, memoryview] = {}
