"""Images of every kind a data set may hold, good and bad, made on the spot."""

import io
import struct
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt
import PIL
from PIL import Image, features

Pixels = npt.NDArray[np.uint8]
IS_SIMD = ".post" in PIL.__version__  # pillow-simd is in the place of Pillow


def are_same(pixels: Pixels, others: Pixels) -> bool:
    """To the last bit, as Pillow has them; pillow-simd may be a level or two off here and there."""
    if not IS_SIMD or pixels.shape != others.shape:
        return np.array_equal(pixels, others)
    difference = np.abs(pixels.astype(int) - others)
    return bool(difference.mean() < 0.05 and difference.max() <= 2)


def natural(width: int, height: int, seed: int = 0) -> Pixels:
    """Pixels as a photo has them: smooth light, some noise, and edges as of letters."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    light = [np.sin(x / rng.uniform(20, 90) + y / rng.uniform(20, 90) + rng.uniform(0, 6)) for _ in range(3)]
    pixels = 128 + 80 * np.stack(light, axis=2) + rng.normal(0, 8, (height, width, 3))
    letters = (x // 3 % 4 == 0) & (y // 5 % 3 > 0) & (y > height * 2 // 3)
    pixels[letters] = rng.integers(0, 256, 3)
    return np.clip(pixels, 0, 255).astype(np.uint8)


def resize_as_pillow_13(pixels: Pixels, height: int, width: int) -> Pixels:
    """What Pillow 13 gives for a bilinear resize, bit by bit, whatever Pillow is installed."""

    def across(pixels: Pixels, target: int) -> Pixels:
        source = pixels.shape[1]
        support = max(source / target, 1.0)
        centres = (np.arange(target) + 0.5) * (source / target)
        first = np.maximum((centres - support + 0.5).astype(int), 0)
        last = np.minimum((centres + support + 0.5).astype(int), source)
        taps = first[:, None] + np.arange((last - first).max())
        weights = np.maximum(1 - np.abs((taps - centres[:, None] + 0.5) * (1 / support)), 0)
        weights[taps >= last[:, None]] = 0
        weights /= weights.sum(axis=1, keepdims=True)
        fixed = (weights * 2**22 + 0.5).astype(int)
        sums = np.full((len(pixels), target, 3), 2**21)
        for tap, weight in zip(taps.T, fixed.T, strict=True):
            sums += pixels[:, np.minimum(tap, source - 1)] * weight[:, None]
        return (sums >> 22).astype(np.uint8)

    def down(pixels: Pixels, target: int) -> Pixels:
        return across(pixels.swapaxes(0, 1), target).swapaxes(0, 1)

    if pixels.shape[0] - height > max(0, 2 * (pixels.shape[1] - width)):
        return across(down(pixels, height), width)
    return down(across(pixels, width), height)


def encode(pixels: npt.NDArray[Any] | Image.Image, format: str, **options: Any) -> bytes:
    """An image file's bytes."""
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def oriented_jpeg(orientation: int) -> bytes:
    """A JPEG whose EXIF block asks to be turned."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encode(natural(80, 60), "JPEG", exif=exif)


def oriented_by_xmp(orientation: int) -> bytes:
    """A JPEG that has its orientation in XMP, and no EXIF block."""
    xmp = f'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf tiff:Orientation="{orientation}"/></x:xmpmeta>'
    return encode(natural(80, 60), "JPEG", xmp=xmp.encode())


def rgb_png_16_bit(grey: npt.NDArray[np.uint16]) -> bytes:
    """A PNG of 16 bits a channel, which Pillow reads but does not write."""
    return png_16_bit(np.repeat(grey[:, :, None], 3, axis=2))


PNG_COLOURS = {1: 0, 2: 4, 3: 2, 4: 6}  # channels, and what a PNG calls them: alpha is the last of 2 and of 4


def png_16_bit(samples: npt.NDArray[np.uint16], sbit: bytes = b"") -> bytes:
    """A PNG of 16 bits, of 1 to 4 channels, that says how many of them count."""
    height, width, channels = samples.shape
    lines = b"".join(b"\0" + row.tobytes() for row in samples.astype(">u2"))
    return _png(width, height, 16, PNG_COLOURS[channels], lines, sbit)


def tiff_12_bit(grey: npt.NDArray[np.uint16]) -> bytes:
    """A TIFF of 12 bits, two samples in three bytes, which Pillow reads but does not write."""
    even, odd = grey.reshape(-1, 2).T
    packed = np.stack([even >> 4, (even & 15) << 4 | odd >> 8, odd & 255], axis=1).astype(np.uint8)
    height, width = grey.shape
    tags = {256: width, 257: height, 258: 12, 259: 1, 262: 1, 273: 0, 277: 1, 278: height, 279: packed.size}
    tags[273] = 8 + 2 + 12 * len(tags) + 4
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    return struct.pack("<2sHIH", b"II", 42, 8, len(tags)) + entries + bytes(4) + packed.tobytes()


def good_images() -> dict[str, bytes]:
    """One of each kind that we read, 80x60."""
    image = Image.fromarray(natural(80, 60))
    grey16 = np.asarray(image.convert("L"), np.uint16) * np.uint16(256) + np.uint16(77)
    alpha = image.convert("RGBA")
    alpha.putalpha(image.convert("L"))
    palette = image.convert("P", palette=Image.Palette.ADAPTIVE, colors=64)
    images = {
        "jpeg": encode(image, "JPEG"),
        "jpeg 4:4:4": encode(image, "JPEG", subsampling=0),
        "jpeg grey": encode(image.convert("L"), "JPEG"),
        "jpeg cmyk": encode(image.convert("CMYK"), "JPEG"),
        "jpeg ycck": _as_ycck(encode(image.convert("CMYK"), "JPEG")),
        "jpeg progressive": encode(image, "JPEG", progressive=True),
        "jpeg rgb": encode(image, "JPEG", keep_rgb=True),
        "jpeg of the future": encode(image, "JPEG").replace(b"JFIF\0\1", b"JFIF\0\x09"),
        "jpeg and more": encode(image, "JPEG") + b"appended by a careless program",
        "png": encode(image, "PNG"),
        "png grey": encode(image.convert("L"), "PNG"),
        "png alpha": encode(alpha, "PNG"),
        "png grey alpha": encode(alpha.convert("LA"), "PNG"),
        "png palette": encode(palette, "PNG"),
        "png palette, one transparent": encode(palette, "PNG", transparency=3),
        "png palette, many transparent": encode(palette, "PNG", transparency=bytes(range(64))),
        "png 1 bit": encode(image.convert("1"), "PNG"),
        "png 16 bit grey": encode(Image.fromarray(grey16), "PNG"),
        "png 16 bit rgb": rgb_png_16_bit(grey16),
        "gif": encode(palette, "GIF"),
        "gif of two frames": encode(palette, "GIF", save_all=True, append_images=[image.convert("P")]),
        "bmp": encode(image, "BMP"),
        "tiff": encode(image, "TIFF"),
        "tiff 16 bit": encode(Image.fromarray(grey16), "TIFF"),
        "tiff float": encode(image.convert("F"), "TIFF"),
        "tiff cmyk": encode(image.convert("CMYK"), "TIFF"),
        "ppm": encode(image, "PPM"),
        "pgm 16 bit": encode(Image.fromarray(grey16), "PPM"),
    }
    if features.check("webp"):
        images |= {"webp": encode(image, "WEBP"), "webp alpha": encode(alpha, "WEBP", lossless=True)}
    if features.check("libtiff"):
        images["tiff lzw"] = encode(image, "TIFF", compression="tiff_lzw")
    return images


def bad_images() -> dict[str, tuple[bytes, str]]:
    """One of each kind that we refuse, and the reason we give."""
    jpeg, png = encode(natural(80, 60), "JPEG"), encode(natural(80, 60), "PNG")
    middle = len(jpeg) * 2 // 3
    return {
        "empty": (b"", "truncated"),
        "jpeg cut in half": (jpeg[: len(jpeg) // 2], "truncated"),
        "jpeg cut in the header": (jpeg[:100], "truncated"),
        "jpeg without its end": (jpeg[:-2], "truncated"),
        "png cut in half": (png[: len(png) // 2], "truncated"),
        "gif cut in half": (encode(natural(80, 60), "GIF")[:2000], "truncated"),
        "bmp cut in half": (encode(natural(80, 60), "BMP")[:2000], "truncated"),
        "jpeg damaged in the middle": (jpeg[:middle] + b"\xff\0" * 20 + jpeg[middle + 40 :], "corrupt"),
        "png damaged in the middle": (png[:5000] + b"\x5a" * 40 + png[5040:], "corrupt"),
        "png with a broken header": (png[:12] + b"IHDX" + png[16:], "corrupt"),
        "text": (b"<html><body>404 Not Found</body></html>", "unknown_format"),
        "postscript": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "unknown_format"),
        "zeros": (bytes(1000), "unknown_format"),
        "png bomb": (_png(50_000, 50_000, 8, 2, bytes(1000)), "too_large"),
        "png bomb, smaller": (_png(10_000, 10_000, 8, 2, bytes(1000)), "too_large"),
        "jpeg bomb": (_with_jpeg_size(jpeg, 60_000, 60_000), "too_large"),
    }


def _png(width: int, height: int, bits: int, colours: int, lines: bytes, sbit: bytes = b"") -> bytes:
    def chunk(name: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
        )

    header = struct.pack(">IIBBBBB", width, height, bits, colours, 0, 0, 0)
    head = chunk(b"IHDR", header) + (chunk(b"sBIT", sbit) if sbit else b"")
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")


def _with_jpeg_size(jpeg: bytes, width: int, height: int) -> bytes:
    at = jpeg.index(b"\xff\xc0") + 5
    return jpeg[:at] + struct.pack(">HH", height, width) + jpeg[at + 4 :]


def _as_ycck(cmyk: bytes) -> bytes:
    """Let the same four channels be taken for YCCK, by what the Adobe marker says of them."""
    at = cmyk.index(b"Adobe") + 11
    return cmyk[:at] + b"\2" + cmyk[at + 1 :]
