"""The loops of native.c, which run without Python's lock. Where it was not compiled, each has a stand-in."""

import ctypes
import importlib.machinery
import os
from collections.abc import Sequence
from contextlib import suppress
from ctypes import CDLL, c_int, c_int64, c_void_p
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt


def _load() -> CDLL | None:
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        path = Path(__file__).with_name(f"_native{suffix}")
        if path.exists():
            with suppress(OSError):  # made for another machine
                return _declare(ctypes.CDLL(str(path)))
    return None


def _declare(library: CDLL) -> CDLL:
    library.stager_read_rows.argtypes = (c_int64, *[c_void_p] * 3, c_int64, *[c_void_p] * 2)
    library.stager_read_rows.restype = None
    library.stager_resize.argtypes = (c_void_p, *[c_int64] * 8, c_int, c_void_p)
    library.stager_resize.restype = c_int
    return library


library = _load()


def read_rows(
    files: Sequence[int], offsets: Sequence[int], places: Sequence[int], out: npt.NDArray[Any]
) -> list[int]:
    """Read a row from each place of a file to its place in `out`; return the places that did not come whole.

    `out` is contiguous and has rows of one size. The files, descriptors, must stay open meanwhile.
    """
    at = np.array(places, np.int64)
    assert out.flags.c_contiguous
    assert len(files) == len(offsets) == len(at)
    assert not len(at) or 0 <= at.min() <= at.max() < len(out)
    if library is None:
        return _read_rows_one_by_one(files, offsets, places, out)
    descriptors, starts, whole = (
        np.array(files, np.int32),
        np.array(offsets, np.int64),
        np.zeros(len(at), bool),
    )
    row_bytes = out.nbytes // max(len(out), 1)
    library.stager_read_rows(
        len(at),
        descriptors.ctypes.data,
        starts.ctypes.data,
        at.ctypes.data,
        row_bytes,
        out.ctypes.data,
        whole.ctypes.data,
    )
    return [] if whole.all() else at[~whole].tolist()


def _read_rows_one_by_one(
    files: Sequence[int], offsets: Sequence[int], places: Sequence[int], out: npt.NDArray[Any]
) -> list[int]:
    lost = []
    for file, offset, place in zip(files, offsets, places, strict=True):
        row = out[place : place + 1].reshape(-1).view(np.uint8).data
        came, more = 0, -1
        with suppress(OSError):
            while came < len(row) and more:
                came += (more := os.preadv(file, [row[came:]], offset + came))
        if came < len(row):
            lost.append(place)
    return lost


def resize_rgb(
    pixels: npt.NDArray[np.uint8],
    size: tuple[int, int],
    window: tuple[int, int, int, int],
    is_down_first: bool,
) -> npt.NDArray[np.uint8]:
    """Pillow's bilinear resize to `size`, height and width, of which the window is wanted: top, left, size.

    Only where it was compiled. The pixels are contiguous, and the window is inside of the resized image.
    """
    assert library is not None
    assert pixels.flags.c_contiguous
    assert pixels.ndim == 3
    assert pixels.shape[2] == 3
    top, left, height, width = window
    assert 0 <= top < top + height <= size[0]
    assert 0 <= left < left + width <= size[1]
    out = np.empty((height, width, 3), np.uint8)
    source, target = pixels.ctypes.data, out.ctypes.data
    if library.stager_resize(source, *pixels.shape[:2], *size, *window, int(is_down_first), target):
        raise MemoryError("no memory to resize an image")
    return out
