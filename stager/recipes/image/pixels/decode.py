"""An image's bytes become upright RGB pixels, or a SampleError says why not.

JPEG is simplejpeg's: faster than Pillow, and strict where Pillow makes up what is damaged. All else is
Pillow's. The bytes say what an image is, never its name. Where our own code was compiled, a plain JPEG of
which a part is wanted, smaller, is decoded no further than that part needs; if it is in any way special or
wrong, it goes the long way, which also says what is wrong.
"""

import io
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import ExifTags, Image, ImageFile, TiffImagePlugin, UnidentifiedImageError, WebPImagePlugin

from stager.errors import SampleError
from stager.recipes.image import native
from stager.recipes.image.pixels.depth import FULL, are_unscaled, png_bits, to_8
from stager.recipes.image.pixels.planes import plane_of
from stager.recipes.image.pixels.png import decode_png
from stager.recipes.image.pixels.resize import CropBox, Pixels, Wanted, goes_down_first
from stager.recipes.image.selftest import check_native

# Pillow knows the last two once they are imported. By itself it would import the forty others as well.
RARE: Final = (TiffImagePlugin.TiffImageFile.format, WebPImagePlugin.WebPImageFile.format)
PILLOW_FORMATS: Final = ("JPEG", "PNG", "GIF", "BMP", "PPM", *RARE)
JPEG: Final = b"\xff\xd8\xff"
BITS_PER_SAMPLE: Final = 258
EXIF: Final = b"Exif\0\0"
XMP_TURN: Final = b"tiff:Orientation"
# An image for certain, even if no decoder knows its header. BMP and PPM begin as a text might.
SIGNATURES: Final = (JPEG, b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a", b"II*\0", b"MM\0*")
ENDS_EARLY: Final = re.compile("truncated|premature end of (jpeg|input)|reached eof|not enough image", re.I)
# What decoders say when they get no memory, in an error of another kind.
NO_MEMORY: Final = re.compile("insufficient memory|out of memory|memory allocation|cannot allocate", re.I)

# Pillow warns where we raise, or do not mind.
HUSH: Final[Any] = ("ignore", None, Warning, re.compile(r"PIL\."), 0)

# Pillow's names for the upper bytes of 16 bits of colour, as it takes them from a PNG; and for the lower.
# The lower ones of grey with alpha become green.
LOWER: Final = {"RGB;16B": "RGB;16L", "RGBA;16B": "RGBA;16L", "LA;16B": "RGBA"}

INKS: Final = ("CMYK", "YCCK")

# What turns an image upright, by its EXIF orientation.
ToUpright = Callable[[Pixels], Pixels]
TURNS: Final[dict[Any, ToUpright]] = {
    2: lambda pixels: pixels[:, ::-1],
    3: lambda pixels: pixels[::-1, ::-1],
    4: lambda pixels: pixels[::-1],
    5: lambda pixels: pixels.swapaxes(0, 1),
    6: lambda pixels: pixels.swapaxes(0, 1)[:, ::-1],
    7: lambda pixels: pixels.swapaxes(0, 1)[::-1, ::-1],
    8: lambda pixels: pixels.swapaxes(0, 1)[::-1],
}


class Decoded(NamedTuple):
    """Pixels, perhaps of a smaller size than the image has, and the size it has."""

    pixels: Pixels
    height: int
    width: int


def decode_image(data: memoryview, max_pixels: int) -> Pixels:
    """Decode an image to contiguous RGB. Whatever the bytes are, nothing but SampleError is raised."""
    return decode_at_least(data, max_pixels, 0).pixels


def decode_box(
    data: memoryview, max_pixels: int, box_of: Callable[[int, int], CropBox], dtype: str = ""
) -> npt.NDArray[Any]:
    """A box of an image: RGB, or one channel of a dtype. It raises nothing but SampleError."""
    part = decode_png(data, max_pixels, box_of)
    if part is not None and not dtype:
        return _colours(part)
    if part is not None and part.shape[2] == 1 and (part.dtype == np.uint8 or dtype != "uint8"):
        return part[:, :, 0].astype(dtype)
    pixels: Any = decode_plane(data, max_pixels, dtype) if dtype else decode_image(data, max_pixels)
    top, left, height, width = box_of(*pixels.shape[:2])
    return np.ascontiguousarray(pixels[top : top + height, left : left + width])


def decode_at_least(data: memoryview, max_pixels: int, shorter: int) -> Decoded:
    """The same, but a large JPEG comes smaller, with both sides still `shorter` or more; 0: never."""
    try:
        if bytes(data[: len(JPEG)]) == JPEG:
            return _decode_jpeg(data, max_pixels, shorter)
        plain = decode_png(data, max_pixels, lambda height, width: CropBox(0, 0, height, width))
        if plain is not None:
            return _whole(_colours(plain))
        return _whole(_decode_by_pillow(data, max_pixels))
    except (SampleError, MemoryError, ImportError):  # the last two are no fault of the image's
        raise
    except Exception as error:
        raise _told(data, max_pixels, error) from error


def decode_plane(data: memoryview, max_pixels: int, dtype: str) -> npt.NDArray[Any]:
    """One channel, as it is stored if it is one. It raises nothing but SampleError."""
    try:
        with _open(data) as image:
            _refuse_bomb(image.width, image.height, max_pixels)
            image.load()
            plane = plane_of(image, dtype) if dtype != "uint8" or image.mode in "LP" else None
            if plane is None:
                plane = np.asarray(Image.fromarray(_rgb(image, data)).convert("L"))
            turn: Any = None
            with _readable():
                turn = _turn_by_exif(image)
            return np.ascontiguousarray(turn(plane) if turn else plane)
    except (SampleError, MemoryError, ImportError):
        raise
    except Exception as error:
        raise _told(data, max_pixels, error) from error


def _told(data: memoryview, max_pixels: int, error: Exception) -> Exception:
    """What an error of a decoder's means."""
    if not _has_memory(max_pixels):  # a decoder that gets none may say anything
        return MemoryError(str(error))
    return _sample_error(bytes(data), error)


def decode_resized(
    data: memoryview, max_pixels: int, wanted_of: Callable[[int, int], Wanted]
) -> Pixels | None:
    """The window, with the pixels that a whole decode and `resize` would give it; None: go the long way."""
    check_native()
    seen = native.look_at_jpeg(data) if native.decodes_jpeg() else None
    if seen is None:
        return None
    height, width, may_be_turned = seen
    if may_be_turned and _turn_of(data):
        return None
    box, target = wanted_of(height, width)
    size, to = (box.height, box.width), (target.height, target.width)
    is_plain = to != size and not goes_down_first(size, to)
    if not is_plain or max(height * width, target.height * target.width) > max_pixels:
        return None
    return native.decode_resized(data, (height, width), box, to, target.window)


def _has_memory(pixels: int) -> bool:
    """Whether there is memory for so many pixels. It is not touched, so it costs nothing."""
    try:
        np.empty(4 * pixels, np.uint8)
    except MemoryError:
        return False
    return True


def _whole(pixels: Pixels) -> Decoded:
    return Decoded(np.ascontiguousarray(pixels), *pixels.shape[:2])


def _decode_jpeg(raw: memoryview, max_pixels: int, shorter: int) -> Decoded:
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(raw)
    except (ValueError, KeyError):  # a header with something rare in it, or cut short: Pillow knows which
        return _whole(_decode_by_pillow(raw, max_pixels))
    _refuse_bomb(width, height, max_pixels)
    turn = _turn_of(raw)
    if colours in INKS:
        inks = 255 - simplejpeg.decode_jpeg(raw, "CMYK")  # stored inverted, as Adobe does
        pixels = np.array(Image.frombytes("CMYK", (width, height), inks.tobytes()).convert("RGB"))
    elif shorter and min(height, width) >= 2 * shorter and not turn:
        # By less than half it would cost more than it saves: only halves have fast code.
        scaled = simplejpeg.decode_jpeg(raw, "RGB", min_height=shorter, min_width=shorter, min_factor=2.0)
        return Decoded(scaled, height, width)
    else:
        pixels = simplejpeg.decode_jpeg(raw, "RGB")
    return _whole(turn(pixels) if turn else pixels)


def _turn_of(raw: memoryview) -> ToUpright | None:
    """What turns a JPEG upright, if it is not."""
    if _may_be_turned(raw):
        with _readable(), _open(raw) as image:
            return _turn_by_exif(image)
    return None


@contextmanager
def _readable() -> Iterator[None]:
    """A block that Pillow cannot read turns nothing. Without memory it is not known whether it does."""
    try:
        yield
    except MemoryError:
        raise
    except Exception:  # noqa: S110
        pass


def _may_be_turned(raw: memoryview) -> bool:
    """Whether a segment before the pixels may say so. To search all of the file took 2 % of all time."""
    at = 2
    while at + 4 <= len(raw) and raw[at] == 0xFF and raw[at + 1] not in (0xDA, 0xD9):  # until the scan begins
        if raw[at + 1] == 0xFF:  # a fill byte
            at += 1
            continue
        end = at + 2 + int.from_bytes(raw[at + 2 : at + 4], "big")
        if raw[at + 1] == 0xE1:
            segment = bytes(raw[at:end])
            if EXIF in segment or XMP_TURN in segment:
                return True
        at = end
    return False


def _decode_by_pillow(raw: memoryview, max_pixels: int) -> Pixels:
    with _open(raw) as image:
        _refuse_bomb(image.width, image.height, max_pixels)
        image.load()
        pixels = _rgb(image, raw)
        turn = None
        with _readable():
            turn = _turn_by_exif(image)
        return turn(pixels) if turn else pixels


def _open(raw: memoryview) -> ImageFile.ImageFile:
    """Read the header, and no more."""
    if next(iter(warnings.filters), None) != HUSH:  # catch_warnings would do, were it not unsafe with threads
        warnings.filterwarnings("ignore", module=HUSH[3].pattern)
    return Image.open(io.BytesIO(raw), formats=PILLOW_FORMATS)


def _colours(stored: npt.NDArray[Any]) -> Pixels:
    """RGB of 8 bits, of what a plain PNG has."""
    if stored.shape[2] == 3:
        return stored
    return np.repeat(stored if stored.dtype == np.uint8 else to_8(stored, FULL), 3, axis=2)


def _rgb(image: ImageFile.ImageFile, raw: memoryview) -> Pixels:
    """As convert("RGB"), which drops alpha; but it clips 16 bits of grey, and we scale them."""
    bits = png_bits(raw)
    if image.mode.startswith("I"):  # I;16 and its kin; or I, as 16 bits of a PPM are kept
        samples = np.clip(np.asarray(image), 0, 65535)
        if isinstance(image, TiffImagePlugin.TiffImageFile) and image.tag_v2.get(BITS_PER_SAMPLE) == (12,):
            grey = to_8(samples, 12)
        else:
            grey = to_8(samples, bits if are_unscaled(samples, bits) else FULL)
        return np.repeat(grey[:, :, None], 3, axis=2)
    upper = np.asarray(image if image.mode == "RGB" else image.convert("RGB"))
    if bits == FULL or int(upper.max()) << 8 >> bits:  # the latter: it fills 16, and needs no second look
        return upper
    samples = upper.astype(np.uint16) << 8 | _lower_bytes(raw)
    return to_8(samples, bits) if are_unscaled(samples, bits) else upper


def _lower_bytes(raw: memoryview) -> Pixels:
    """The lower bytes of a PNG's 16 bits of colour, which Pillow drops."""
    with _open(raw) as image:
        (tile,) = image.tile
        name = LOWER[str(tile.args)]
        image.tile = [tile._replace(args=name)]
        lower = np.array(image.convert("RGB"))
    return lower if name != "RGBA" else lower[:, :, 1:2]


def _turn_by_exif(image: Image.Image) -> ToUpright | None:
    """As PIL.ImageOps.exif_transpose."""
    return TURNS.get(image.getexif().get(ExifTags.Base.Orientation))


def _refuse_bomb(width: int, height: int, max_pixels: int) -> None:
    if width * height > max_pixels:
        raise SampleError("too_large", f"{width}x{height} is more than {max_pixels} pixels")


def _sample_error(raw: bytes, error: Exception) -> SampleError:
    text = " ".join(str(error).split()) or type(error).__name__
    if not raw:
        return SampleError("truncated", "it is empty")
    if NO_MEMORY.search(text):
        return SampleError("unprepared", text)
    if isinstance(error, Image.DecompressionBombError):
        return SampleError("too_large", text)
    if isinstance(error, UnidentifiedImageError):
        if raw.startswith(SIGNATURES):
            return SampleError("corrupt", "its header is invalid")
        return SampleError("unknown_format", "not a format that stager reads")
    return SampleError("truncated" if ENDS_EARLY.search(text) else "corrupt", text)
