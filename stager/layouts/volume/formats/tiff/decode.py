"""A page of a TIFF without its voxels, and how strips and tiles of pages like it are decoded: by tifffile.

A worker has no file to open. It gets the first page's tags as a TIFF of no voxels, for all pages of an array
are alike.
"""

import base64
import io
import logging
import math
import struct
import threading
import zlib
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stager.errors import NotReady
from stager.reader.samples.computed.grid import Sides
from stager.reader.samples.computed.spans import unpacked_table

JPEG: Final = 7
JPEG_STRETCH: Final = 4  # so many times as many as a tile has may a JPEG say it has: it comes in blocks
SIZED: Final = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}  # markers of a JPEG that say its size
SCAN: Final = 0xDA
ALONE: Final = {0x01, *range(0xD0, 0xD9)}  # those with nothing behind them
TAGS: Final = (256, 257, 258, 259, 262, 266, 277, 278, 284, 317, 322, 323, 338, 339, 347, 530)
STRIPS: Final = (273, 279)  # offsets and byte counts, which a page without voxels needs, too
TILES: Final = (324, 325)
SIZES: Final = {
    1: 1,
    2: 1,
    3: 2,
    4: 4,
    5: 8,
    6: 1,
    7: 1,
    8: 2,
    9: 4,
    10: 8,
    11: 4,
    12: 8,
    13: 4,
    16: 8,
    17: 8,
    18: 8,
}


def without_voxels(page: Any) -> bytes:
    """The page's tags that say how it is decoded, as a TIFF of its own."""
    file, order = page.parent.filehandle, page.parent.byteorder
    entries: list[tuple[int, int, int, bytes]] = []
    for code in (*TAGS, *(TILES if page.is_tiled else STRIPS)):
        tag = page.tags.get(code)
        if code in (*STRIPS, *TILES):
            count = len(page.dataoffsets)
            entries.append((code, 4, count, b"\0" * 4 * count))
        elif tag is not None:
            size = SIZES[int(tag.dtype)] * tag.count
            file.seek(tag.valueoffset)
            entries.append((code, int(tag.dtype), tag.count, file.read(size)))
    head = struct.pack(f"{order}2sHI", b"II" if order == "<" else b"MM", 42, 8)
    behind, values = len(head) + 2 + 12 * len(entries) + 4, b""
    lines = b""
    for code, kind, count, data in sorted(entries):
        told = data.ljust(4, b"\0") if len(data) <= 4 else struct.pack(f"{order}I", behind + len(values))
        values += data + b"\0" * (len(data) % 2) if len(data) > 4 else b""
        lines += struct.pack(f"{order}HHI", code, kind, count) + told
    return head + struct.pack(f"{order}H", len(entries)) + lines + b"\0" * 4 + values


class _Errors(logging.Handler):
    """What tifffile logs as errors, in each thread: it raises none for a file that was cut short."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._of_thread = threading.local()

    @property
    def told(self) -> list[str]:
        return getattr(self._of_thread, "told", [])

    @told.setter
    def told(self, told: list[str]) -> None:
        self._of_thread.told = told

    def emit(self, record: logging.LogRecord) -> None:
        self.told = [*self.told, record.getMessage()]


ERRORS: Final = _Errors()


def library() -> Any:
    try:
        import imagecodecs  # noqa: F401
        import tifffile
    except ImportError as error:
        raise NotReady(
            f"TIFF volumes need {error.name}: not installed", hint="pip install 'stager[volume]'"
        ) from None
    log = logging.getLogger("tifffile")
    log.propagate = False
    if ERRORS not in log.handlers:
        log.addHandler(ERRORS)
    return tifffile


def _check_side(data: memoryview, most: int) -> None:
    """That a JPEG is no larger than what it is a part of: its decoder would take the memory that it says."""
    at = 0
    while (at := _next_marker(data, at)) < len(data):
        marker = data[at]
        if marker in SIZED:
            height, width = struct.unpack(">HH", data[at + 4 : at + 8])
            if height * width > most:
                raise ValueError(f"it says that it has {height} x {width} voxels")
        if marker == SCAN:  # behind it are voxels
            return
        at += 1 if marker in ALONE else 1 + int.from_bytes(data[at + 1 : at + 3], "big")


def _next_marker(data: memoryview, at: int) -> int:
    """Where the next marker is, whatever is before it: a decoder would go on there, too."""
    while at < len(data) and not (data[at] not in (0, 0xFF) and at and data[at - 1] == 0xFF):
        at += 1
    return at


class TiffDecoder:
    """Decodes strips, tiles, or whole pages of strips."""

    def __init__(self, page: str, chunk: Any, per: Any, table: str = "", before: Any = ()) -> None:
        """`per`: strips or tiles a page on each side. `table`: where all strips are, if pages are chunks."""
        file = library().TiffFile(
            io.BytesIO(zlib.decompress(base64.b64decode(page))), name="volume.tif", _multifile=False
        )
        self._page = file.pages[0]
        self._is_jpeg = int(self._page.compression) == JPEG
        self._jpeg = self._page.jpegtables if self._is_jpeg else None
        self._most = JPEG_STRETCH * math.prod(chunk)
        self._dtype = np.dtype(self._page.dtype).newbyteorder("<")
        self._chunk: Sides = tuple(chunk)
        self._per: Sides = tuple(per)
        self._before: Sides = tuple(before)
        self._table = unpacked_table(table) if table else None
        self._decode = self._page.decode

    def decode(self, at: Sides, data: memoryview) -> npt.NDArray[Any]:
        deep = (1,) * (len(at) - 2)
        if self._table is None:
            segment = self._segment(data, at[-2] * self._per[1] + at[-1])
            return segment.reshape(*deep, *segment.shape)
        number = int(np.ravel_multi_index(at[:-2], self._before)) * self._per[0]
        lines = self._table[number : number + self._per[0]]
        there = lines[lines[:, 2] > 0]
        first = int(there[:, 1].min()) if len(there) else 0
        page = np.zeros(self._chunk, self._dtype)
        row = 0
        for strip, (_, start, size) in enumerate(lines.tolist()):
            part = data[start - first : start - first + size] if size else memoryview(b"")
            if len(part) != size:
                raise ValueError(f"strip {strip} has {len(part)} of {size} bytes")
            decoded = self._segment(part, strip)
            page[row : row + len(decoded)] = decoded
            row += len(decoded)
        return page.reshape(*deep, *page.shape)

    def _segment(self, data: memoryview, number: int) -> npt.NDArray[Any]:
        """A strip or a tile; of no data, 0."""
        if not len(data):
            rows = min(int(self._page.rowsperstrip), self._page.imagelength) if not self._page.is_tiled else 0
            row = number % self._per[0] * rows
            side = (
                self._chunk if not rows else (min(rows, self._page.imagelength - row), self._page.imagewidth)
            )
            return np.zeros(side, self._dtype)
        if self._is_jpeg:
            _check_side(data, self._most)
        more = {"jpegtables": self._jpeg} if self._jpeg else {}
        decoded, _, _ = self._decode(bytes(data), number, **more)
        return np.asarray(decoded)[0, :, :, 0].astype(self._dtype, copy=False)
