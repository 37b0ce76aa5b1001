"""Our own C against the libraries, before a process trusts it: tiny JPEGs both ways, in some milliseconds.

The C runs in a child process (trial.c). With a libjpeg that is not what it was compiled for, the child may
die, and we go on without it: a worker that died at each start would have all samples called `crashed`.
"""

import logging
import threading
import zlib
from ctypes import c_int64, c_void_p, cast
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np

from stager.reader.native import address_of
from stager.recipes.image import native
from stager.recipes.image.tiny_jpegs import HEIGHT, WIDTH, tiny_jpegs

log = logging.getLogger("stager.reader.native")

TO: Final = (25, 45)
WINDOW: Final = (4, 13, 17, 19)  # something is left out on each side
# Of the pattern, as Pillow 13 resizes it: across first, and down first.
RESIZED_CRC32: Final = (75_021_624, 3_691_078_371)


class Fault(NamedTuple):
    text: str
    is_jpeg_only: bool


_one_at_a_time = threading.Lock()


@cache
def check_native() -> None:
    """If our C is not right, this process goes without it, or without its decoder. It is logged, once."""
    with _one_at_a_time:
        _check()


@cache
def _check() -> None:
    if native.library is None:
        return
    try:
        fault = _find_fault()
    except Exception as error:  # whatever it is, the libraries are there
        fault = Fault(f"self-test impossible: {error}", False)
    if fault:
        native.fault = fault.text
        native.library = native.load(native.WITHOUT_JPEG) if fault.is_jpeg_only else None
        log.warning("native code refused fault=%r native=%r", fault.text, native.describe())


def _find_fault() -> Fault | None:
    library = native.library
    assert library is not None
    pattern = _pattern()
    jpegs = tiny_jpegs() if native.decodes_jpeg() else {}
    made = native.try_in_child(
        [
            *(_trial(library.stager_resize, pattern, *_sizes(), is_down) for is_down in (0, 1)),
            *(_trial(library.stager_decode_resized, data, len(data), *_sizes()) for data in jpegs.values()),
        ]
    )
    for pixels, crc32 in zip(made, RESIZED_CRC32, strict=False):
        if pixels is None or zlib.crc32(pixels) != crc32:
            return Fault("self-test failed: resize", False)
    for (kind, data), pixels in zip(jpegs.items(), made[len(RESIZED_CRC32) :], strict=True):
        if pixels != _decoded_by_library(data):
            return Fault(f"self-test failed: JPEG {kind}", True)
    return None


def _trial(call: Any, data: bytes, *numbers: int) -> native.Trial:
    """`data` must live as long as the trial."""
    out_bytes = WINDOW[2] * WINDOW[3] * 3
    at = address_of(memoryview(data))
    return native.Trial(cast(call, c_void_p), at, (c_int64 * 9)(*numbers), out_bytes)


def _sizes() -> tuple[int, ...]:
    return HEIGHT, WIDTH, *TO, *WINDOW


def _pattern() -> bytes:
    """Pixels with all kinds of neighbours."""
    return (np.arange(HEIGHT * WIDTH * 3, dtype=np.uint32) * 40_503 >> 7).astype(np.uint8).tobytes()


def _decoded_by_library(data: bytes) -> bytes:
    """The long way. Its resize is our own, which is known to be right by now."""
    import simplejpeg

    pixels = simplejpeg.decode_jpeg(data, "RGB")
    return native.resize_rgb(pixels, TO, WINDOW, False).tobytes()
