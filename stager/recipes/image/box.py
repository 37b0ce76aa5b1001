"""The box of a table's row: which part of an image its sample is made of."""

import math
from collections.abc import Sequence
from typing import Any, Final

from stager.errors import SampleError, UsageError
from stager.recipes.image.pixels.resize import CropBox

CORNERS: Final = ("xmin", "ymin", "xmax", "ymax")
FARTHEST: Final = 1 << 31  # no image reaches so far


def window_of(corners: Sequence[Any], margin: float, height: int, width: int) -> CropBox:
    """The pixels inside of a box, rounded as Pillow's `crop` rounds, and no farther than the image goes.

    The margin is a part of the box's sides, added on each. Raise SampleError if there is no such part.
    """
    told = ", ".join(map(_told, corners))
    if not all(_is_number(value) for value in corners):
        raise SampleError("bad_row", f"the box ({told}) is not four numbers")
    left, top, right, bottom = corners
    if right < left or bottom < top:
        raise SampleError("bad_row", f"the box ({told}) ends before it begins: are its corners swapped?")
    if right == left or bottom == top:
        raise SampleError("bad_row", f"the box ({told}) is empty")
    if right <= 0 or bottom <= 0 or left >= width or top >= height:
        raise SampleError("bad_row", f"the box ({told}) is outside of the image, {width}x{height}")
    across, down = margin * (right - left), margin * (bottom - top)
    x, end_x = _clamped(left - across, width), _clamped(right + across, width)
    y, end_y = _clamped(top - down, height), _clamped(bottom + down, height)
    if x == end_x or y == end_y:
        raise SampleError("bad_row", f"the box ({told}) is less than a pixel of the image, {width}x{height}")
    return CropBox(y, x, end_y - y, end_x - x)


def check_box(box: Any) -> tuple[str, ...]:
    """The columns of a box, as a recipe's table has them."""
    is_four = isinstance(box, list | tuple) and len(box) == len(CORNERS)
    if not is_four or not all(isinstance(name, str) and name for name in box):
        raise UsageError(
            f"recipe box is {box!r}", hint='four columns of the table, as ["xmin", "ymin", "xmax", "ymax"]'
        )
    return tuple(box)


def check_margin(margin: Any) -> float:
    """Raise UsageError if it is no share of a box."""
    if type(margin) not in (int, float) or not 0 <= margin <= 10:
        raise UsageError(f"recipe margin is {margin!r}", hint="a part of the box's sides, as 0.1; at most 10")
    return float(margin)


def _told(value: Any) -> str:
    return "nothing" if value is None else f"{value:.10g}" if isinstance(value, float) else str(value)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and abs(value) <= FARTHEST


def _clamped(value: float, most: int) -> int:
    return round(min(max(value, 0), most))
