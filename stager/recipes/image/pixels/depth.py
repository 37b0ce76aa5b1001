"""How many of their 16 bits the samples of an image use, and what they are in 8.

A camera's 12 bits are in a PNG of 16, whose sBIT chunk says so. By the specification they fill all 16 then,
and the upper 8 are right, as for all else. But programs also store them as they are, 0 to 4095, and the upper
8 of those are black. TIFF has 12 bits as they are.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

PNG: Final = b"\x89PNG\r\n\x1a\n"
FULL: Final = 16
HEADER_BYTES: Final = 33
HAS_COLOUR: Final = 2  # a bit of a PNG's colour type

Samples = npt.NDArray[Any]  # of 16 bits


def png_bits(raw: memoryview) -> int:
    """What a PNG of 16 bits says of its colours, alpha aside. FULL: it says nothing, or is no such PNG."""
    if bytes(raw[: len(PNG)]) != PNG or len(raw) < HEADER_BYTES or raw[24] != FULL:
        return FULL
    at = HEADER_BYTES
    while (name := bytes(raw[at + 4 : at + 8])) not in (b"", b"IDAT"):
        end = at + 8 + int.from_bytes(raw[at : at + 4], "big")
        if name == b"sBIT":
            bits = max(raw[at + 8 : end][: 3 if raw[25] & HAS_COLOUR else 1], default=FULL)
            return bits if 0 < bits < FULL else FULL
        at = end + 4
    return FULL


def are_unscaled(samples: Samples, bits: int) -> bool:
    """Whether samples of `bits` bits are stored as they are, rather than scaled to 16.

    A dark image that was scaled has no large sample, either. But its lower bits are 0, or 1 where the scaled
    value was rounded up; the noise of an image that was not is there.
    """
    lower = (1 << (FULL - bits)) - 1
    return not int(samples.max()) >> bits and int((samples & lower).max()) > 1


def to_8(samples: Samples, bits: int) -> npt.NDArray[np.uint8]:
    """The upper 8 of so many bits."""
    return ((samples << (FULL - bits)) >> 8).astype(np.uint8)
