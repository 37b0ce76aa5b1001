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
BOXES: Final = ((0, 0, HEIGHT, WIDTH), (3, 21, 31, 49))  # all of an image, and a part
# Of the pattern, as Pillow 13 resizes it: across first, and down first.
RESIZED_CRC32: Final = (75_021_624, 3_691_078_371)
PNG_ROW: Final = 63  # bytes; the part below has as many bytes as WINDOW
PNG_PART: Final = (28, PNG_ROW, 3, 11, 6, 17, 57, 0)
PNG_CRC32: Final = 4_292_891_330


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
    pattern, rows = _pattern(), _rows()
    jpegs = tiny_jpegs() if native.decodes_jpeg() else {}
    made = native.try_in_child(
        [
            *(
                _trial(library.stager_resize, pattern, HEIGHT, WIDTH, *TO, *WINDOW, is_down)
                for is_down in (0, 1)
            ),
            _trial(library.stager_restore_png, rows, len(rows), *PNG_PART),
            *(
                _trial(
                    library.stager_decode_resized,
                    data,
                    len(data),
                    *native.packed((HEIGHT, WIDTH), box),
                    *TO,
                    *WINDOW,
                )
                for data in jpegs.values()
                for box in BOXES
            ),
        ]
    )
    known = [*(("resize", crc32) for crc32 in RESIZED_CRC32), ("PNG", PNG_CRC32)]
    for pixels, (name, crc32) in zip(made, known, strict=False):
        if pixels is None or zlib.crc32(pixels) != crc32:
            return Fault(f"self-test failed: {name}", False)
    boxed = [(kind, data, box) for kind, data in jpegs.items() for box in BOXES]
    for (kind, data, box), pixels in zip(boxed, made[len(known) :], strict=True):
        if pixels != _decoded_by_library(data, box):
            return Fault(f"self-test failed: JPEG {kind}", True)
    return None


def _trial(call: Any, data: bytes, *numbers: int) -> native.TrialCall:
    """`data` must live as long as the trial."""
    out_bytes = WINDOW[2] * WINDOW[3] * 3
    at = address_of(memoryview(data))
    return native.TrialCall(cast(call, c_void_p), at, (c_int64 * 9)(*numbers), out_bytes)


def _pattern() -> bytes:
    """Pixels with all kinds of neighbours."""
    return (np.arange(HEIGHT * WIDTH * 3, dtype=np.uint32) * 40_503 >> 7).astype(np.uint8).tobytes()


def _rows() -> bytes:
    """Of a PNG, with every filter."""
    rows = np.frombuffer(_pattern(), np.uint8)[: 28 * (PNG_ROW + 1)].reshape(28, PNG_ROW + 1).copy()
    rows[:, 0] = np.arange(28) % 5
    return rows.tobytes()


def _decoded_by_library(data: bytes, box: native.CropBox) -> bytes:
    """The long way. Its resize is our own, which is known to be right by now."""
    import simplejpeg

    top, left, height, width = box
    pixels = simplejpeg.decode_jpeg(data, "RGB")[top : top + height, left : left + width]
    return native.resize_rgb(np.ascontiguousarray(pixels), TO, WINDOW, False).tobytes()
