"""A box of an image is decoded no further than it needs, and has the pixels of a whole decode."""

import io
import random
import re
import struct
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import ExifTags, Image, PngImagePlugin

from images import natural
from stager.errors import SampleError
from stager.recipes import open_recipe
from stager.recipes.image import native, selftest
from stager.recipes.image.box import window_of
from stager.recipes.image.pixels import decode
from stager.recipes.image.pixels.png import decode_png
from stager.recipes.image.pixels.resize import CropBox, Wanted, resize, resize_plane
from stager.recipes.image.recipe import cut, target
from stager.recipes.image.tiny_jpegs import tiny_jpegs

CORNERS = ["xmin", "ymin", "xmax", "ymax"]
HEIGHT, WIDTH = 150, 211


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


PHOTO = Image.fromarray(natural(WIDTH, HEIGHT, seed=3))
DEEP = (np.arange(HEIGHT * WIDTH, dtype=np.uint32) * 40_503 >> 5).astype(np.uint16).reshape(HEIGHT, WIDTH)
TEXT = PngImagePlugin.PngInfo()
TEXT.add_text("Software", "a camera")
PNGS = {
    "colours": encoded(PHOTO, "PNG"),
    "with a text": encoded(PHOTO, "PNG", pnginfo=TEXT),
    "alpha": encoded(PHOTO.convert("RGBA"), "PNG"),
    "grey": encoded(PHOTO.convert("L"), "PNG"),
    "grey and alpha": encoded(PHOTO.convert("LA"), "PNG"),
    "palette": encoded(PHOTO.quantize(64), "PNG"),
    "two colours": encoded(PHOTO.convert("1"), "PNG"),
    "16 bits": encoded(Image.fromarray(DEEP), "PNG"),
}
OURS = ("colours", "with a text", "grey", "16 bits")
JPEGS = {
    **tiny_jpegs(),
    "photo": encoded(PHOTO, "JPEG", quality=92),
    "photo, 4:4:4": encoded(PHOTO, "JPEG", quality=80, subsampling=0),
    "photo, progressive": encoded(PHOTO, "JPEG", progressive=True),
}


def sides(data: bytes) -> tuple[int, int]:
    with Image.open(io.BytesIO(data)) as image:
        return image.height, image.width


def boxes(height: int, width: int, count: int) -> list[tuple[int, int, int, int]]:
    rng = random.Random(height * width)
    found = []
    while len(found) < count:
        left, right = sorted(rng.sample(range(-5, width + 6), 2))
        top, bottom = sorted(rng.sample(range(-5, height + 6), 2))
        if left < width - 1 and top < height - 1 and right > 1 and bottom > 1:
            found.append((left, top, right, bottom))
    return [*found, (0, 0, width, height), (0, 0, 1, 1), (width - 1, height - 1, width, height)]


def the_long_way(data: bytes, box: tuple[int, ...], to: tuple[int, int], **keys: Any) -> npt.NDArray[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "decode_png", lambda *_: None)
        if keys:
            pixels: Any = decode.decode_plane(memoryview(data), 10**6, keys["dtype"])
        else:
            pixels = decode.decode_image(memoryview(data), 10**6)
    part = cut(pixels, window_of(box, 0.0, *pixels.shape[:2]))
    if part.shape[:2] == to:
        return part if part.ndim == 3 else part[:, :, None]
    if keys:
        return resize_plane(part, *to, "bilinear")[:, :, None]
    return resize(part, *to, CropBox(0, 0, *to))


@pytest.mark.parametrize("name", JPEGS)
def test_a_box_of_a_jpeg_is_that_of_a_whole_decode(name: str) -> None:
    data, taken = JPEGS[name], 0
    height, width = sides(data)
    for box in boxes(height, width, 40):
        for to in ((24, 32), (90, 70)):
            recipe = open_recipe({"box": CORNERS, "resize": list(to)})
            made = recipe.prepare([memoryview(data)], box)["image"]
            np.testing.assert_array_equal(made, the_long_way(data, box, to))
            window = window_of(box, 0.0, height, width)
            wanted = Wanted(window, target(window.height, window.width, to, 0))
            short = decode.decode_resized(memoryview(data), 10**6, lambda *_, w=wanted: w)
            if short is not None:
                np.testing.assert_array_equal(short, made)
                taken += 1
    assert taken > 50 or not native.decodes_jpeg()


@pytest.mark.parametrize("name", PNGS)
@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
def test_a_box_of_a_png_is_that_of_a_whole_decode(name: str, dtype: str) -> None:
    data = PNGS[name]
    keys = {} if dtype == "uint8" else {"dtype": dtype}
    whole = decode_png(memoryview(data), 10**6, lambda height, width: CropBox(0, 0, height, width))
    assert (whole is not None) == (name in OURS and native.library is not None)
    recipe = open_recipe({"box": CORNERS, "resize": [24, 32], **keys})
    for box in boxes(HEIGHT, WIDTH, 25):
        try:
            expected = the_long_way(data, box, (24, 32), **keys)
        except SampleError as error:
            with pytest.raises(SampleError, match=re.escape(error.message)):
                recipe.prepare([memoryview(data)], box)
            continue
        made = recipe.prepare([memoryview(data)], box)["image"]
        np.testing.assert_array_equal(made, expected)


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def test_what_is_special_in_a_png_goes_the_long_way() -> None:
    turned = PHOTO.copy()
    exif = turned.getexif()
    exif[ExifTags.Base.Orientation] = 6
    plain = PNGS["colours"]
    raw_profile = PngImagePlugin.PngInfo()
    raw_profile.add_text("Raw profile type exif", "\nexif\n      2\nabcd\n")
    special = {
        "turned": encoded(turned, "PNG", exif=exif),
        "turned by a text": encoded(PHOTO, "PNG", pnginfo=raw_profile),
        "interlaced": plain[:28] + b"\1" + plain[29:],
        "few bits of 16": PNGS["16 bits"][:33] + chunk(b"sBIT", b"\x0c") + PNGS["16 bits"][33:],
        "without an end": plain[:-12],
        "cut": plain[: len(plain) // 2],
        "empty": b"",
        "a JPEG": JPEGS["photo"],
    }
    for name, data in special.items():
        assert decode_png(memoryview(data), 10**6, lambda *_: CropBox(0, 0, 1, 1)) is None, name
    box = (5, 3, 60, 44)
    made = open_recipe({"box": CORNERS, "resize": [24, 32]}).prepare([memoryview(special["turned"])], box)
    np.testing.assert_array_equal(made["image"], the_long_way(special["turned"], box, (24, 32)))


def test_damage_below_the_box_is_told_as_before() -> None:
    recipe = open_recipe({"box": CORNERS, "resize": [24, 32]})
    plain = PNGS["colours"]
    for data in (plain[: len(plain) * 3 // 4], plain[: len(plain) // 3]):
        with pytest.raises(SampleError) as raised:
            recipe.prepare([memoryview(data)], (2, 2, 30, 10))
        assert raised.value.reason == "truncated"
    photo = JPEGS["photo"]
    with pytest.raises(SampleError):
        recipe.prepare([memoryview(photo[: len(photo) * 3 // 4])], (2, 2, 30, 10))


def restored(data: bytes, rows: int, row_bytes: int, pixel: int) -> npt.NDArray[np.uint8]:
    """The rows of a PNG as its specification has them, byte by byte."""
    out = np.zeros((rows + 1, pixel + row_bytes), np.int64)  # a row of zeros above, and zeros on the left
    for y in range(rows):
        kind, *values = data[y * (row_bytes + 1) : (y + 1) * (row_bytes + 1)]
        for x, value in enumerate(values, pixel):
            left, above, corner = int(out[y + 1, x - pixel]), int(out[y, x]), int(out[y, x - pixel])
            far = [abs(left + above - corner - near) for near in (left, above, corner)]
            paeth = (left, above, corner)[far.index(min(far))]
            out[y + 1, x] = (value + (0, left, above, (left + above) // 2, paeth)[kind]) % 256
    return out[1:, pixel:].astype(np.uint8)


def test_rows_of_every_filter_are_restored_as_the_specification_says() -> None:
    if native.library is None:
        pytest.skip("stager/recipes/image/c/png.c was not compiled")
    rng = np.random.default_rng(5)
    for pixel, row_bytes in ((1, 7), (2, 12), (3, 63), (6, 60), (3, 3)):
        rows = rng.integers(0, 256, (23, row_bytes + 1), np.uint8)
        rows[:, 0] = rng.integers(0, 5, 23)
        rows[0, 0] = pixel % 5
        expected = restored(rows.tobytes(), 23, row_bytes, pixel)
        sample = np.dtype("<u2") if pixel in (2, 6) else np.dtype(np.uint8)
        channels = pixel // sample.itemsize
        box = CropBox(4, 1 % (row_bytes // pixel), 17, row_bytes // pixel - 1 or 1)
        made = native.restore_png(memoryview(rows.tobytes()), row_bytes, sample, channels, box)
        assert made is not None
        part = expected[4:21, box.left * pixel : (box.left + box.width) * pixel]
        stored = np.ascontiguousarray(part).view(sample.newbyteorder(">"))
        np.testing.assert_array_equal(made.reshape(17, -1), stored)
        rows[9, 0] = 5
        assert native.restore_png(memoryview(rows.tobytes()), row_bytes, sample, channels, box) is None


def test_the_self_test_knows_the_rows() -> None:
    rows, row_bytes, pixel, top, left, height, width, _ = selftest.PNG_PART
    expected = restored(selftest._rows(), rows, row_bytes, pixel)
    part = expected[top : top + height, left : left + width]
    assert zlib.crc32(np.ascontiguousarray(part).tobytes()) == selftest.PNG_CRC32
