"""The recipe for images: decode, turn upright, resize the shorter side, crop the centre."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Final

import numpy as np

from stager.errors import SampleError
from stager.interfaces import Data, Kind, Needs
from stager.reader.values import Arrays, Field, canonical_json, digest_of
from stager.recipes.image.pixels.resize import CropBox, Pixels, Resized, Wanted, resize
from stager.recipes.paths import needs_of

VERSION: Final = "image/1"  # to be raised when the same keys come to give other pixels
JPEG_SIDE_MAX: Final = 65_500

ENDINGS: Final = (".jpg", ".jpeg", ".png", ".gif", ".webp", ".bmp", ".tif", ".tiff", ".ppm", ".pgm")
Side = int | tuple[int, int]  # the shorter side; 0: as it is; or height and width


@dataclass(frozen=True, slots=True)
class ImageRecipe:
    """An image of any common format becomes RGB pixels, raw or as a JPEG."""

    resize: Side
    crop: int  # a square from the centre; 0: all of it
    encode: str
    quality: int
    decode_scale: (
        int  # decode a large JPEG no larger than needed: this many times `resize`, or more; 0: whole
    )
    max_pixels: int
    path: str = (
        ""  # of a table's row; not in the recipe's table if it is not given, as before there were tables
    )

    takes = Kind("image", "images", ENDINGS)
    inputs = ()

    @property
    def digest(self) -> str:
        # Without max_pixels: it decides which images fail, and not what those that do not fail become. With
        # it, a higher limit would stage the whole data set again.
        keys: dict[str, Any] = {"resize": self.resize, "crop": self.crop, "encode": self.encode}
        if self.encode == "jpeg":
            keys["quality"] = self.quality
        if self.decode_scale and self.resize:  # it came later: without it, digests are what they were
            keys["decode_scale"] = self.decode_scale
        return digest_of(canonical_json({"version": VERSION, **keys}).encode())

    @property
    def fields(self) -> tuple[Field, ...]:
        return (Field("image", "uint8", (*sides_of(self.resize, self.crop), 3), self.encode, "HWC"),)

    def needs(self, columns: Sequence[str], field: str = "") -> Needs:
        return needs_of(self.path, columns, field)

    def prepare(self, data: Sequence[Data], inputs: tuple[Any, ...]) -> Arrays:
        (part,) = data
        try:
            pixels = self._pixels(part if isinstance(part, memoryview) else part.data)
            return {"image": pixels if self.encode == "raw" else encode_jpeg(pixels, self.quality)}
        except MemoryError as error:
            raise SampleError("unprepared", "not enough memory to prepare it") from error

    def _pixels(self, data: memoryview) -> Pixels:
        decode = decoders()
        if not self.decode_scale:
            pixels: Pixels | None = decode.decode_resized(data, self.max_pixels, self._wanted)
            if pixels is not None:
                return pixels
        shorter = max(self.resize) if isinstance(self.resize, tuple) else self.resize
        decoded = decode.decode_at_least(data, self.max_pixels, self.decode_scale * shorter)
        height, width, window = self._target(decoded.height, decoded.width)
        if height * width > self.max_pixels:  # a line of one pixel grows by as much in the other direction
            raise SampleError("too_large", f"resized to {width}x{height}: over {self.max_pixels} pixels")
        if (height, width) == decoded.pixels.shape[:2]:
            return cut(decoded.pixels, window)
        return resize(decoded.pixels, height, width, window)

    def _wanted(self, height: int, width: int) -> Wanted:
        return Wanted(CropBox(0, 0, height, width), self._target(height, width))

    def _target(self, height: int, width: int) -> Resized:
        return target(height, width, self.resize, self.crop)


@cache
def decoders() -> Any:
    """Loaded by whoever decodes, and by nobody else."""
    from stager.recipes.image.pixels import decode

    return decode


def sides_of(resize: Side, crop: int) -> tuple[int | None, int | None]:
    """Height and width of what every image becomes; None: they vary."""
    if isinstance(resize, tuple):
        return resize
    return crop or None, crop or None


@lru_cache(1024)
def target(height: int, width: int, resize: Side, crop: int) -> Resized:
    """What an image of this size becomes. Most photos of a data set have one of a few sizes."""
    to_height, to_width = resized(height, width, resize)
    return Resized(to_height, to_width, centre(to_height, to_width, crop))


def resized(height: int, width: int, shorter: Side) -> tuple[int, int]:
    """The size after resizing the shorter side, or both, as torchvision's Resize has it."""
    if isinstance(shorter, tuple):
        return shorter
    if not shorter:
        return height, width
    if height < width:
        return shorter, int(shorter * width / height)
    return int(shorter * height / width), shorter


def centre(height: int, width: int, side: int) -> CropBox:
    """The centre of an image, as torchvision's CenterCrop has it: around the image, if that is smaller."""

    def start(size: int) -> int:
        return round((size - side) / 2) if side <= size else -((side - size) // 2)

    return CropBox(start(height), start(width), side, side) if side else CropBox(0, 0, height, width)


def cut(pixels: Pixels, window: CropBox) -> Pixels:
    """Cut a window out of an image. Outside of the image, it is black."""
    top, left, height, width = window
    inside = pixels[max(0, top) : top + height, max(0, left) : left + width]
    if inside.shape[:2] == (height, width):
        return np.ascontiguousarray(inside)
    canvas = np.zeros((height, width, *pixels.shape[2:]), pixels.dtype)
    top, left = max(0, -top), max(0, -left)
    canvas[top : top + inside.shape[0], left : left + inside.shape[1]] = inside
    return canvas


def encode_jpeg(pixels: Pixels, quality: int) -> Pixels:
    """The bytes of a JPEG, as an array."""
    from simplejpeg import encode_jpeg

    if max(pixels.shape) > JPEG_SIDE_MAX:
        raise SampleError("too_large", f"a JPEG has no side of more than {JPEG_SIDE_MAX} pixels")
    # 4:2:0, for space and speed are why one takes JPEG: 4:4:4 takes 24 % more bytes and half as much time
    # again to decode. Those bytes buy more in quality: 4:2:0 at 95 is closer to raw than 4:4:4 at 90.
    return np.frombuffer(encode_jpeg(pixels, quality, "RGB", "420"), np.uint8)
