"""A part of a plain PNG: its rows are unpacked down to the last that is wanted, and restored by our own C.

Whatever is special or wrong goes the long way, by Pillow, which also says what is wrong: palettes, alpha,
interlaced rows, fewer than 8 bits, chunks that may turn an image or say how deep its samples are.
"""

import zlib
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stager.recipes.image import native
from stager.recipes.image.pixels.depth import HEADER_BYTES, PNG
from stager.recipes.image.pixels.resize import CropBox
from stager.recipes.image.selftest import check_native

BEGIN: Final = PNG + b"\0\0\0\x0dIHDR"
# By bits and colour type, what a sample is, and how many a pixel has.
SAMPLES: Final[dict[tuple[int, int], tuple[np.dtype[Any], int]]] = {
    (8, 2): (np.dtype(np.uint8), 3),
    (8, 0): (np.dtype(np.uint8), 1),
    (16, 0): (np.dtype("<u2"), 1),
}
PLAIN: Final = frozenset((b"IDAT", b"cHRM", b"gAMA", b"iCCP", b"sRGB", b"pHYs", b"bKGD", b"tIME", b"tEXt"))
ABOUT_TURNS: Final = (b"Raw profile", b"XML:")  # texts that begin so may say how it is to be turned
AROUND: Final = 12  # bytes of a chunk beside its data


def decode_png(
    raw: memoryview, max_pixels: int, box_of: Callable[[int, int], CropBox]
) -> npt.NDArray[Any] | None:
    """A box of a PNG, as it is stored: height, width, channels. None: go the long way.

    All of the file is compared with its checksums. `box_of` tells the box, of height and width.
    """
    check_native()
    if native.library is None or bytes(raw[: len(BEGIN)]) != BEGIN or len(raw) < HEADER_BYTES:
        return None
    width, height = int.from_bytes(raw[16:20], "big"), int.from_bytes(raw[20:24], "big")
    kind = SAMPLES.get((raw[24], raw[25]))
    if kind is None or any(raw[26:29]) or not 0 < height * width <= max_pixels:
        return None
    packed = _packed(raw)
    if packed is None:
        return None
    sample, channels = kind
    box = box_of(height, width)
    row_bytes = width * sample.itemsize * channels
    wanted_bytes = (box.top + box.height) * (row_bytes + 1)
    rows = _unpacked(packed, wanted_bytes)
    if rows is None or len(rows) < wanted_bytes:
        return None
    return native.restore_png(memoryview(rows), row_bytes, sample, channels, box)


def _packed(raw: memoryview) -> bytes | None:
    """The pixels of a PNG that is whole and plain, as they are packed."""
    found: list[memoryview] = []
    at = len(PNG)
    while (name := bytes(raw[at + 4 : at + 8])) != b"IEND":
        end = at + AROUND + int.from_bytes(raw[at : at + 4], "big")
        if end > len(raw) or not (name in PLAIN or at == len(PNG)):  # the first is the header
            return None
        if zlib.crc32(raw[at + 4 : end - 4]) != int.from_bytes(raw[end - 4 : end], "big"):
            return None
        data = raw[at + 8 : end - 4]
        if name == b"IDAT":
            found.append(data)
        elif bytes(data[:16]).startswith(ABOUT_TURNS):
            return None
        at = end
    return b"".join(found)


def _unpacked(packed: bytes, most: int) -> bytes | None:
    """The first bytes of what was packed."""
    library = _inflating()
    try:
        return bytes(library.decompressobj().decompress(packed, most))
    except library.error:
        return None


@cache
def _inflating() -> Any:
    """isal unpacks three times as fast as zlib."""
    try:
        from isal import isal_zlib
    except ImportError:
        return zlib
    return isal_zlib
