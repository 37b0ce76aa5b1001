"""The loops in C, which run without Python's lock. Where it was not compiled, each has a stand-in."""

import ctypes
import importlib.machinery
from contextlib import suppress
from ctypes import CDLL, addressof, c_char, c_int, c_int64, c_void_p
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]  # height, width, 3
Size = tuple[int, int]  # height, width
Window = tuple[int, int, int, int]  # top, left, height, width of a resized image, the part that is wanted


NAMES: Final = ("_native_jpeg", "_native")  # with libjpeg-turbo, and without


def _load() -> CDLL | None:
    for name in NAMES:
        for suffix in importlib.machinery.EXTENSION_SUFFIXES:
            path = Path(__file__).with_name(name + suffix)
            if path.exists():
                with suppress(OSError):  # made for another machine, or libjpeg-turbo is gone
                    return _declare(ctypes.CDLL(str(path)))
    return None


def _declare(library: CDLL) -> CDLL:
    library.stager_read_samples.argtypes = (c_void_p, c_int64, *[c_void_p] * 5)
    library.stager_read_samples.restype = c_int64
    library.stager_map.argtypes, library.stager_map.restype = (c_int, c_void_p), c_void_p
    library.stager_unmap.argtypes, library.stager_unmap.restype = (c_void_p, c_int64), None
    library.stager_resize.argtypes = (c_void_p, *[c_int64] * 8, c_int, c_void_p)
    library.stager_resize.restype = c_int
    with suppress(AttributeError):
        library.stager_decode_resized.argtypes = (c_void_p, *[c_int64] * 9, c_void_p)
        library.stager_decode_resized.restype = c_int
        library.stager_look_at_jpeg.argtypes = (c_void_p, c_int64)
        library.stager_look_at_jpeg.restype = c_int64
    return library


library = _load()


def decodes_jpeg() -> bool:
    """Whether it was compiled with libjpeg-turbo."""
    return library is not None and hasattr(library, "stager_decode_resized")


def resize_rgb(pixels: Pixels, to: Size, window: Window, is_down_first: bool) -> Pixels:
    """Pillow's bilinear resize of RGB pixels, which are contiguous. Only where it was compiled."""
    assert library is not None
    assert pixels.flags.c_contiguous
    assert pixels.ndim == 3
    assert pixels.shape[2] == 3
    out = _room_for(to, window)
    source, target = address_of(pixels.data), address_of(out.data)
    if library.stager_resize(source, *pixels.shape[:2], *to, *window, int(is_down_first), target):
        raise MemoryError("no memory to resize an image")
    return out


def look_at_jpeg(data: memoryview) -> tuple[int, int, bool] | None:
    """Height and width of a JPEG, and whether it may have to be turned. Only if `decodes_jpeg`.

    None: it is none, or of a kind that is not for us.
    """
    assert library is not None
    found = library.stager_look_at_jpeg(address_of(data), len(data))
    return (found >> 16 & 0xFFFF, found & 0xFFFF, bool(found >> 32)) if found else None


def decode_resized(data: memoryview, size: Size, to: Size, window: Window) -> Pixels | None:
    """Decode a JPEG of this size and resize it, across first. Only if `decodes_jpeg`.

    None: it is damaged, has another size, or is of a kind that is not for us.
    """
    assert library is not None
    out = _room_for(to, window)
    source, target = address_of(data), address_of(out.data)
    result = library.stager_decode_resized(source, len(data), *size, *to, *window, target)
    if result < 0:
        raise MemoryError("no memory to decode an image")
    return out if result == 0 else None


def address_of(data: memoryview) -> int:
    """Where contiguous bytes lie."""
    try:
        return addressof(c_char.from_buffer(data))
    except (
        TypeError,
        ValueError,
    ):  # read-only, or none at all: NumPy takes these, too, in five times the time
        return np.frombuffer(data, np.uint8).ctypes.data


def _room_for(size: Size, window: Window) -> Pixels:
    """Room for the window of an image of this size, which it must be inside of."""
    top, left, height, width = window
    assert 0 <= top < top + height <= size[0]
    assert 0 <= left < left + width <= size[1]
    return np.empty((height, width, 3), np.uint8)
