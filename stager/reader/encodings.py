"""How a field is stored, if not as its array: as a JPEG. Decoded where it is read."""

from typing import Any

import numpy.typing as npt

from stager.errors import StagerError
from stager.reader.values import Field


def decode(field: Field, stored: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The array that was stored."""
    if field.encoding != "jpeg":
        return stored
    try:
        import simplejpeg
    except ModuleNotFoundError:
        raise StagerError(
            "this data set is staged as JPEG, and simplejpeg is not installed",
            hint='pip install simplejpeg, or encode = "raw" in the recipe',
        ) from None
    decoded: npt.NDArray[Any] = simplejpeg.decode_jpeg(stored.data, colorspace="RGB")
    return decoded
