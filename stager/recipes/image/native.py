"""The decoder and the resize in C. Where they were not compiled, libraries do the same.

`selftest.py` sees that they are right before they are used.
"""

from collections.abc import Sequence
from ctypes import CDLL, Structure, addressof, c_int, c_int64, c_void_p
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stager.reader.native import address_of, is_switched_off
from stager.reader.native import load as load_library

Pixels = npt.NDArray[np.uint8]  # height, width, 3
Size = tuple[int, int]  # height, width
CropBox = tuple[int, int, int, int]  # top, left, height, width: the part of an image that is wanted


WITHOUT_JPEG: Final = ("_native",)
NAMES: Final = ("_native_jpeg", *WITHOUT_JPEG)  # with libjpeg-turbo first
CPUS: Final = ("plain C", "AVX2", "AVX-512 VNNI")  # as stager_cpu() counts them


def load(names: Sequence[str] = NAMES) -> CDLL | None:
    """The first of these libraries that is there and fits; None: there is none, or it is switched off."""
    return load_library(Path(__file__).parent, names, declare)


def declare(library: CDLL) -> CDLL:
    """Tell ctypes what the functions take. Raise AttributeError if one is missing."""
    library.stager_cpu.argtypes, library.stager_cpu.restype = (), c_int
    library.stager_try.argtypes, library.stager_try.restype = (c_void_p, c_int64, c_void_p), c_int
    library.stager_resize.argtypes = (c_void_p, *[c_int64] * 9, c_void_p)
    library.stager_resize.restype = c_int
    library.stager_restore_png.argtypes = (c_void_p, *[c_int64] * 9, c_void_p)
    library.stager_restore_png.restype = c_int
    if hasattr(library, "stager_decode_resized"):
        library.stager_decode_resized.argtypes = (c_void_p, *[c_int64] * 9, c_void_p)
        library.stager_decode_resized.restype = c_int
        library.stager_look_at_jpeg.argtypes = (c_void_p, c_int64)
        library.stager_look_at_jpeg.restype = c_int64
        library.stager_has_huffman.argtypes, library.stager_has_huffman.restype = (), c_int
    return library


library = load()
fault = ""  # what the self-test found; by then it has replaced the library, or set it to None


def describe() -> str:
    """Which way this process goes, as people read it: "jpeg+resize (AVX2)", or "off: not compiled"."""
    if is_switched_off():
        return "off (STAGER_NATIVE=0)"
    if library is None:
        return f"off: {fault or 'not compiled'}"
    about = [CPUS[library.stager_cpu()]]
    if decodes_jpeg() and not library.stager_has_huffman():
        about.append("libjpeg's own Huffman decoder")
    if fault:
        about.append(fault)
    return f"{'jpeg+resize' if decodes_jpeg() else 'resize only'} ({'; '.join(about)})"


def decodes_jpeg() -> bool:
    """Whether it was compiled with libjpeg-turbo."""
    return library is not None and hasattr(library, "stager_decode_resized")


def resize_rgb(pixels: Pixels, to: Size, window: CropBox, is_down_first: bool) -> Pixels:
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


def decode_resized(data: memoryview, size: Size, box: CropBox, to: Size, window: CropBox) -> Pixels | None:
    """Decode a box of a JPEG of this size and resize that, across first. Only if `decodes_jpeg`.

    None: it is damaged, has another size, or is of a kind that is not for us.
    """
    assert library is not None
    out = _room_for(to, window)
    source, target = address_of(data), address_of(out.data)
    result = library.stager_decode_resized(source, len(data), *packed(size, box), *to, *window, target)
    if result < 0:
        raise MemoryError("no memory to decode an image")
    return out if result == 0 else None


def restore_png(
    data: memoryview, row_bytes: int, sample: np.dtype[Any], channels: int, box: CropBox
) -> npt.NDArray[Any] | None:
    """A box of an image, of the rows of a PNG that were unpacked, at least to its end. Only if compiled.

    None: they are no PNG's.
    """
    assert library is not None
    top, left, height, width = box
    pixel = sample.itemsize * channels
    out = np.empty((height, width, channels), sample)
    part = top + height, row_bytes, pixel, top, left * pixel, height, width * pixel, int(sample.itemsize == 2)
    result = library.stager_restore_png(address_of(data), len(data), *part, address_of(out.data))
    if result < 0:
        raise MemoryError("no memory to decode an image")
    return out if result == 0 else None


def packed(size: Size, box: CropBox) -> tuple[int, int]:
    """An image's sides, and a box in it, as jpeg.c takes them."""
    top, left, height, width = box
    return size[0] << 16 | size[1], c_int64(top << 48 | left << 32 | height << 16 | width).value


class TrialCall(Structure):
    """As trial.c has it: a call of stager_resize, stager_restore_png or stager_decode_resized."""

    _fields_ = (
        ("call", c_void_p),
        ("data", c_void_p),
        ("numbers", c_int64 * 9),
        ("out_bytes", c_int64),
        ("result", c_int64),
    )


def try_in_child(trials: Sequence[TrialCall]) -> list[bytes | None]:
    """What each trial made, in a child process; None: it failed, or the child died before it was done."""
    assert library is not None
    told = (TrialCall * len(trials))(*trials)
    out = np.zeros(sum(trial.out_bytes for trial in trials), np.uint8)
    if library.stager_try(addressof(told), len(trials), address_of(out.data)):
        raise MemoryError("no child process could be started")
    ends = np.cumsum([trial.out_bytes for trial in trials]).tolist()
    return [
        out[end - trial.out_bytes : end].tobytes() if trial.result == 0 else None
        for trial, end in zip(told, ends, strict=True)
    ]


def _room_for(size: Size, window: CropBox) -> Pixels:
    """Room for the window of an image of this size, which it must be inside of."""
    top, left, height, width = window
    assert 0 <= top < top + height <= size[0]
    assert 0 <= left < left + width <= size[1]
    return np.empty((height, width, 3), np.uint8)
