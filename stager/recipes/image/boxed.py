"""The recipe for a part of an image, by the box of its row, and for maps that keep their depth."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from stager.errors import SampleError
from stager.interfaces import Data, Input, Kind, Needs
from stager.reader.values import Arrays, Field, canonical_json, digest_of
from stager.recipes.image.box import window_of
from stager.recipes.image.pixels.resize import CropBox, Resized, Wanted, resize, resize_plane
from stager.recipes.image.recipe import ENDINGS, Side, cut, decoders, encode_jpeg, sides_of, target
from stager.recipes.paths import needs_of

VERSION: Final = "boxed/1"  # to be raised when the same keys come to give other pixels


@dataclass(frozen=True, slots=True)
class BoxedRecipe:
    """RGB of 8 bits, or one channel of a dtype. Cut, then resized, as a whole decode would have it."""

    resize: Side
    crop: int
    encode: str
    quality: int
    decode_scale: int  # 0: what is cut has its size in pixels of the whole
    max_pixels: int
    path: str = ""
    box: tuple[str, ...] = ()  # columns; (): all of the image
    margin: float = 0.0
    dtype: str = "uint8"
    channels: int = 3
    filter: str = "bilinear"

    takes = Kind("image", "images", ENDINGS)

    @property
    def digest(self) -> str:
        """Without the columns: what they say of a sample is in its version."""
        names = ("resize", "crop", "encode", "margin", "dtype", "channels", "filter")
        keys = {name: getattr(self, name) for name in names} | {"has_box": bool(self.box)}
        if self.encode == "jpeg":
            keys["quality"] = self.quality
        return digest_of(canonical_json({"version": VERSION, **keys}).encode())

    @property
    def fields(self) -> tuple[Field, ...]:
        shape = (*sides_of(self.resize, self.crop), self.channels)
        return (Field("image", self.dtype, shape, self.encode, "HWC"),)

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.box

    def needs(self, columns: Sequence[str], field: str = "") -> Needs:
        inputs = tuple(Input(name, is_number=True) for name in self.box)
        return needs_of(self.path, columns, field)._replace(inputs=inputs)

    def prepare(self, data: Sequence[Data], inputs: tuple[Any, ...]) -> Arrays:
        (part,) = data
        try:
            pixels = self._pixels(part if isinstance(part, memoryview) else part.data, inputs)
        except MemoryError as error:
            raise SampleError("unprepared", "not enough memory to prepare it") from error
        return {"image": pixels if self.encode == "raw" else encode_jpeg(pixels, self.quality)}

    def _pixels(self, data: memoryview, corners: tuple[Any, ...]) -> Any:
        def wanted_of(height: int, width: int) -> Wanted:
            box = window_of(corners, self.margin, height, width) if self.box else CropBox(0, 0, height, width)
            return Wanted(box, target(box.height, box.width, self.resize, self.crop))

        if self.channels == 3 and self.filter == "bilinear":
            made = decoders().decode_resized(data, self.max_pixels, wanted_of)
            if made is not None:
                return made
        pixels, to = self._cut_out(data, wanted_of)
        if to.height * to.width > self.max_pixels:
            told = f"resized to {to.width}x{to.height}: over {self.max_pixels} pixels"
            raise SampleError("too_large", told)
        made = self._resized(pixels, to)
        return np.ascontiguousarray(made if made.ndim == 3 else made[:, :, None])

    def _cut_out(self, data: memoryview, wanted_of: Callable[[int, int], Wanted]) -> tuple[Any, Resized]:
        """The part that is wanted, and what it becomes. Of a PNG, no row below it is unpacked."""
        wanted: list[Wanted] = []

        def box_of(height: int, width: int) -> CropBox:
            wanted.append(wanted_of(height, width))
            return wanted[-1].box

        dtype = "" if self.channels == 3 else self.dtype
        part = decoders().decode_box(data, self.max_pixels, box_of, dtype)
        return part, wanted[-1].to

    def _resized(self, pixels: Any, to: Resized) -> Any:
        if (to.height, to.width) == pixels.shape[:2]:
            return cut(pixels, to.window)
        if self.channels == 3 and self.filter == "bilinear":
            return resize(pixels, to.height, to.width, to.window)
        return cut(resize_plane(pixels, to.height, to.width, self.filter), to.window)
