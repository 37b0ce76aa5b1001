"""Antialiased bilinear resizing of the part that is wanted, by the fastest means at hand.

Whoever does it, the pixels are those of Pillow 13's `resize((width, height), BILINEAR)`. Those of our own
code and of Pillow are so to the last bit; of pillow-simd and torch, a few are a level or two off: they weigh
in 15 bits, Pillow in 22.
"""

import math
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from stager.reader.native import is_switched_off
from stager.recipes.image import native
from stager.recipes.image.selftest import check_native

if TYPE_CHECKING:
    from PIL.Image import Image

Pixels = npt.NDArray[np.uint8]  # height, width, 3

# Pillow gets the whole of an axis, whose bounds are exact, and not only the part that is wanted, whose bounds
# it would take as 32-bit floats. pillow-simd, which is off by more anyway, does so for speed; but scaled by
# p/q, an axis has q sets of weights in turn, and if q is small, sums of exactly one half are common, which
# the last bit of a weight rounds up or down: there it gets the whole, too.
FEW_WEIGHTS: Final = 32

# From 5 to 4 on both axes, 15 bits round all of those halves the other way than 22 bits: 8 % of the pixels
# differ. With the source squeezed by this much, half of them agree. Other ratios are better, or too rare.
SQUEEZE: Final = 1 - 3e-7


class CropBox(NamedTuple):
    """The part of an image that is wanted."""

    top: int
    left: int
    height: int
    width: int


class Resized(NamedTuple):
    """What an image becomes: its size, and the part of that which is wanted."""

    height: int
    width: int
    window: CropBox


class Wanted(NamedTuple):
    """The part of an image that is wanted, and what that becomes."""

    box: CropBox
    to: Resized


class Resizer(Protocol):
    def __call__(self, pixels: Pixels, height: int, width: int, window: CropBox) -> Pixels: ...


def resize(pixels: Pixels, height: int, width: int, window: CropBox) -> Pixels:
    """Resize to height x width and return the window of it, contiguous. Any number of threads may call."""
    return _chosen()[1](pixels, height, width, window)


def resizer_name() -> str:
    """native, pillow-simd, torch or pillow: what `resize` uses on this machine."""
    return _chosen()[0]


def installed_resizers() -> dict[str, Resizer]:
    """Every resizer that works on this machine, the fastest first."""
    by_pillow: dict[str, Resizer] = {"pillow-simd" if _pillow_is_simd() else "pillow": resize_by_pillow}
    by_torch: dict[str, Resizer] = {"torch": resize_by_torch} if _torch() is not None else {}
    by_native: dict[str, Resizer] = {"native": resize_by_native} if native.library else {}
    return by_native | (by_pillow | by_torch if _pillow_is_simd() else by_torch | by_pillow)


@cache
def _chosen() -> tuple[str, Resizer]:
    check_native()
    if native.library:  # asked first: importing torch takes seconds
        return "native", resize_by_native
    if _pillow_is_simd():
        return "pillow-simd", resize_by_pillow
    if is_switched_off() or native.fault:
        return "pillow", resize_by_pillow  # of the others, only Pillow has the same pixels to the last bit
    return next(iter(installed_resizers().items()))


@cache
def _pillow_is_simd() -> bool:
    import PIL

    return ".post" in PIL.__version__


@cache
def _torch() -> Any:
    try:
        import torch
    except (ImportError, OSError):  # OSError: it is installed, but one of its libraries is not
        return None
    return torch


def resize_by_native(pixels: Pixels, height: int, width: int, window: CropBox) -> Pixels:
    """Resize only what the window needs."""
    is_down_first = goes_down_first(pixels.shape[:2], (height, width))
    return native.resize_rgb(np.ascontiguousarray(pixels), (height, width), window, is_down_first)


def resize_by_torch(pixels: Pixels, height: int, width: int, window: CropBox) -> Pixels:
    """Resize all of it and cut out the window: torch cannot compute a part."""
    source = np.require(pixels, requirements=["C", "W"])
    # The batch axis is added before the permute: torch then sees channels_last strides and is 2.5 times as
    # fast. It takes one thread for one image: no need for set_num_threads, which is for the whole process.
    batch = _torch().from_numpy(source)[None].permute(0, 3, 1, 2)
    try:
        if goes_down_first(pixels.shape[:2], (height, width)):
            batch = _interpolate(batch, height, pixels.shape[1])
        resized = _interpolate(batch, height, width)[0].permute(1, 2, 0).numpy()
    except RuntimeError as error:  # what torch says when there is no memory
        raise MemoryError(str(error)) from error
    return _cut(resized, window.top, window.left, window)


def _interpolate(batch: Any, height: int, width: int) -> Any:
    factors = height / batch.shape[2], width / batch.shape[3]
    sizing: dict[str, Any] = {"size": (height, width)}
    if set(factors) in ({0.8}, {0.8, 1.0}):
        sizing = {"scale_factor": [factor / SQUEEZE if factor == 0.8 else factor for factor in factors]}
    return _torch().nn.functional.interpolate(batch, mode="bilinear", antialias=True, **sizing)


def resize_by_pillow(pixels: Pixels, height: int, width: int, window: CropBox) -> Pixels:
    """An axis at a time, the rest cut off. Pillow and pillow-simd are called alike."""
    from PIL.Image import Resampling, fromarray

    x = _span(pixels.shape[1], width, window.left, window.width)
    y = _span(pixels.shape[0], height, window.top, window.height)
    reach = max(1, pixels.shape[0] / height) + 1
    first = max(0, math.floor(y.begin - reach))
    image = fromarray(pixels[first : math.ceil(y.end + reach)])

    def across(image: "Image") -> "Image":
        box = (x.begin, 0, x.end, image.height)
        made = image.resize((x.outputs, image.height), Resampling.BILINEAR, box)
        return made.crop((x.skip, 0, x.skip + window.width, made.height))

    def down(image: "Image") -> "Image":
        box = (0, y.begin - first, image.width, y.end - first)
        made = image.resize((image.width, y.outputs), Resampling.BILINEAR, box)
        return made.crop((0, y.skip, made.width, y.skip + window.height))

    # An axis at a time: the order matters to the last bit, and not every Pillow has the same.
    is_down_first = goes_down_first(pixels.shape[:2], (height, width))
    return np.array(across(down(image)) if is_down_first else down(across(image)))


def resize_plane(pixels: npt.NDArray[Any], height: int, width: int, name: str) -> npt.NDArray[Any]:
    """Any pixels that Pillow has, by the filter of that name; RGB, or one channel of any depth."""
    from PIL.Image import Resampling, fromarray

    return np.array(fromarray(pixels).resize((width, height), Resampling[name.upper()]))


class _Span(NamedTuple):
    """One axis of a resize: what part of the source becomes how many outputs, and how many to skip."""

    begin: float
    end: float
    outputs: int
    skip: int


def _span(source: int, target: int, start: int, length: int) -> _Span:
    if _pillow_is_simd() and target // math.gcd(source, target) >= FEW_WEIGHTS:
        return _Span(start * source / target, (start + length) * source / target, length, 0)
    squeezed = _pillow_is_simd() and 4 * source == 5 * target
    return _Span(0, source * SQUEEZE if squeezed else source, target, start)


def goes_down_first(size: tuple[int, ...], to: tuple[int, int]) -> bool:
    """Pillow 13's rule: the vertical pass is first if height loses more than twice what width does."""
    return size[0] - to[0] > max(0, 2 * (size[1] - to[1]))


def _cut(pixels: Pixels, top: int, left: int, window: CropBox) -> Pixels:
    return np.ascontiguousarray(pixels[top : top + window.height, left : left + window.width])
