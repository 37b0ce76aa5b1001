"""Images of one channel with the depth that they have: distances, masks, heights."""

from typing import Any, Final

import numpy as np
import numpy.typing as npt
from PIL.Image import Image

from stager.errors import SampleError

# Pillow's modes of one channel, by what they are kept as: each holds all values of the mode.
MODES: Final = {
    "uint8": ("L", "P"),
    "uint16": ("L", "P", "I;16", "I;16L", "I;16B", "I;16N", "I"),
    "float32": ("L", "P", "I;16", "I;16L", "I;16B", "I;16N", "I", "F"),
}
WHOLE_MAX: Final = {"uint8": 255, "uint16": 65_535, "float32": 1 << 24}  # float32 has no larger ones exactly


def plane_of(image: Image, dtype: str) -> npt.NDArray[Any]:
    """The values as they are stored; of a palette, its indices. Raise SampleError if they do not fit."""
    if image.mode not in MODES[dtype]:
        raise SampleError("unknown_format", f"its pixels are {image.mode}, and {dtype} cannot keep them")
    values = np.asarray(image)
    low, high = (values.min(), values.max()) if values.dtype.kind == "i" and values.size else (0, 0)
    if (low < 0 and dtype != "float32") or max(high, -low) > WHOLE_MAX[dtype]:
        raise SampleError("unknown_format", f"its pixels go from {low} to {high}: too far for {dtype}")
    return values.astype(dtype)
