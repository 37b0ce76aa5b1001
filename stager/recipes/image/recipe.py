"""The recipe for images: decode, turn upright, resize the shorter side, crop the centre."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Final

import numpy as np

from stager.errors import SampleError, UsageError, nearest
from stager.reader.values import Arrays, Field, canonical_json, digest_of
from stager.recipes.image.resize import CropBox, Pixels, Resized, resize

VERSION: Final = "image/1"  # to be raised when the same keys come to give other pixels
JPEG_SIDE_MAX: Final = 65_500

ENCODINGS: Final = ("raw", "jpeg")
DEFAULTS: Final[dict[str, Any]] = {
    "resize": 256,
    "crop": 224,
    "encode": "raw",
    "quality": 90,
    "decode_scale": 0,
    "max_pixels": 50_000_000,
}
RANGES: Final = {
    "resize": (0, 16_384),
    "crop": (0, 16_384),
    "quality": (1, 100),
    "decode_scale": (0, 8),
    "max_pixels": (1, 178_956_970),  # beyond that, Pillow refuses by itself
}


@dataclass(frozen=True, slots=True)
class ImageRecipe:
    """An image of any common format becomes RGB pixels, raw or as a JPEG."""

    resize: int  # the shorter side; 0: as it is
    crop: int  # a square from the centre; 0: all of it
    encode: str
    quality: int
    decode_scale: (
        int  # decode a large JPEG no larger than needed: this many times `resize`, or more; 0: whole
    )
    max_pixels: int

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
        side = self.crop or None
        return (Field("image", "uint8", (side, side, 3), self.encode, "HWC"),)

    def prepare(self, data: memoryview) -> Arrays:
        try:
            pixels = self._pixels(data)
            return {"image": pixels if self.encode == "raw" else encode_jpeg(pixels, self.quality)}
        except MemoryError as error:
            raise SampleError("unprepared", "there was no memory for it") from error

    def _pixels(self, data: memoryview) -> Pixels:
        decode = _decoders()
        if not self.decode_scale:
            pixels: Pixels | None = decode.decode_resized(data, self.max_pixels, self._target)
            if pixels is not None:
                return pixels
        decoded = decode.decode_at_least(data, self.max_pixels, self.decode_scale * self.resize)
        height, width, window = self._target(decoded.height, decoded.width)
        if height * width > self.max_pixels:  # a line of one pixel grows by as much in the other direction
            raise SampleError("too_large", f"resized to {width}x{height}: over {self.max_pixels} pixels")
        if (height, width) == decoded.pixels.shape[:2]:
            return cut(decoded.pixels, window)
        return resize(decoded.pixels, height, width, window)

    def _target(self, height: int, width: int) -> Resized:
        return target(height, width, self.resize, self.crop)


@cache
def _decoders() -> Any:
    """Loaded by whoever decodes, and by nobody else."""
    from stager.recipes.image import decode

    return decode


@lru_cache(1024)
def target(height: int, width: int, resize: int, crop: int) -> Resized:
    """What an image of this size becomes. Most photos of a data set have one of a few sizes."""
    to_height, to_width = resized(height, width, resize)
    return Resized(to_height, to_width, centre(to_height, to_width, crop))


def resized(height: int, width: int, shorter: int) -> tuple[int, int]:
    """The size after resizing the shorter side, as torchvision's Resize has it."""
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
    canvas = np.zeros((height, width, 3), np.uint8)
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


def check_image(keys: Mapping[str, Any]) -> dict[str, Any]:
    """All keys of an image recipe, checked, with defaults for those that are not given."""
    given = {key: value for key, value in keys.items() if value is not None}
    for key in given:
        if key not in DEFAULTS:
            raise UsageError(f"unknown key {key} in the recipe", hint=nearest(key, DEFAULTS))
    # 256 and 224 belong together: who gives one of them and not the other wants only that one.
    alone = {"resize": 0, "crop": 0} if given.keys() & {"resize", "crop"} else {}
    checked = {**DEFAULTS, **alone, **given}
    for key, (low, high) in RANGES.items():
        if type(checked[key]) is not int or not low <= checked[key] <= high:
            raise UsageError(f"recipe {key} is {checked[key]!r}", hint=f"use a whole number, {low} to {high}")
    if checked["encode"] not in ENCODINGS:
        raise UsageError(f"recipe encode is {checked['encode']!r}", hint="use " + " or ".join(ENCODINGS))
    if 0 < checked["resize"] < checked["crop"]:
        raise UsageError(
            f"recipe crop {checked['crop']} is larger than resize {checked['resize']}",
            hint=f"use crop = {checked['resize']} or less",
        )
    return checked
