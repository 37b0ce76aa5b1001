"""Images and folders as people have them, one of each kind, by the name that tests/test_messy.py gives it."""

import io
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, features

from images import (
    Pixels,
    bad_images,
    encode,
    good_images,
    natural,
    oriented_jpeg,
    png_16_bit,
    tiff_12_bit,
)
from stager.interfaces import LeftOut, Scanning
from stager.layouts import check_layout, open_layout
from stager.reader.samples.manifest import Manifest
from stager.reader.samples.sample_list import SampleList
from stager.reader.samples.segments import read_segment
from stager.reader.values import SourceSpec
from stager.recipes import open_recipe
from stager.recipes.image.recipe import centre, resized
from stager.scan.scan import Scan, write_manifest
from stager.sources import open_source
from stager.worker.listing import SourceListing

RESIZE, CROP = 48, 40
GOOD: Final = good_images()
BAD: Final = bad_images()
WEBP: Final = "webp" in GOOD
DEPTHS: Final = {"png-12-told": 12, "tiff-12": 12}  # kinds that say that they use fewer than their 16 bits

Files = Mapping[str, "bytes | Link | None"]  # by key; None: a pipe; "a/": an empty folder


class Link(str):
    """A link to this target, in the place of a file."""


def _exif_png() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return encode(natural(80, 60), "PNG", exif=exif)


def _frames(format: str, **options: Any) -> bytes:
    """Three frames that are not alike."""
    first, *others = (Image.fromarray(natural(80, 60, seed)) for seed in (1, 2, 3))
    return encode(first, format, save_all=True, append_images=others, **options)


def _grey(depth: int) -> Image.Image:
    """Grey of so many bits, kept in 16."""
    grey = np.asarray(Image.fromarray(natural(80, 60)).convert("L"), np.uint16)
    return Image.fromarray(grey << np.uint16(depth - 8))


def _measured() -> npt.NDArray[np.uint16]:
    """Grey of a sensor of 12 bits: the lowest ones have noise."""
    noise = np.random.default_rng(7).integers(0, 16, (60, 80), np.uint16)
    return np.asarray(_grey(12)) | noise


def _icc_jpeg() -> bytes:
    """A profile that says something else than sRGB."""
    return encode(natural(80, 60), "JPEG", icc_profile=_profile())


def _profile() -> bytes:
    """A real one; a header alone where Pillow was built without LittleCMS, as pillow-simd may be."""
    if not features.check("littlecms2"):
        return b"\0\0\0\x84" + bytes(32) + b"acsp" + bytes(92)
    from PIL import ImageCms

    return ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")).tobytes()


def pixel_kinds() -> dict[str, tuple[str, bytes]]:
    """Kinds that become a sample: a key, and the bytes there."""
    unit = np.asarray(Image.fromarray(natural(80, 60)).convert("L"), np.float32) / 255
    return {
        "plain": ("kinds/plain.jpg", GOOD["jpeg"]),
        "upper-case": ("kinds/UPPER.JPEG", GOOD["jpeg"]),
        "deep": ("deep/a/b/c/d/e/f/1.jpg", GOOD["jpeg"]),
        "one-image-class": ("single/only.jpg", GOOD["jpeg"]),
        "folder-called-jpg": ("kinds/holiday.jpg/1.jpg", GOOD["jpeg"]),
        "spaces": ("two  words /1 (copy).jpg", GOOD["jpeg"]),
        "not-utf8": ("caf\udce9/1.jpg", GOOD["jpeg"]),
        "grey": ("kinds/grey.jpg", GOOD["jpeg grey"]),
        "progressive": ("kinds/progressive.jpg", GOOD["jpeg progressive"]),
        "cmyk": ("kinds/cmyk.jpg", GOOD["jpeg cmyk"]),
        "ycck": ("kinds/ycck.jpg", GOOD["jpeg ycck"]),
        "tiff-cmyk": ("kinds/cmyk.tif", GOOD["tiff cmyk"]),
        "icc": ("kinds/icc.jpg", _icc_jpeg()),
        "exif": ("kinds/exif.jpg", oriented_jpeg(6)),
        "exif-mirrored": ("kinds/exif-mirrored.jpg", oriented_jpeg(5)),
        "exif-png": ("kinds/exif.png", _exif_png()),
        "appended": ("kinds/appended.jpg", GOOD["jpeg and more"]),
        "mpo": ("kinds/phone.jpg", _frames("MPO")),
        "alpha": ("kinds/alpha.png", GOOD["png alpha"]),
        "grey-alpha": ("kinds/grey-alpha.png", GOOD["png grey alpha"]),
        "palette": ("kinds/palette.png", GOOD["png palette"]),
        "palette-alpha": ("kinds/palette-alpha.png", GOOD["png palette, many transparent"]),
        "one-bit": ("kinds/one-bit.png", GOOD["png 1 bit"]),
        "png-16": ("kinds/16.png", encode(_grey(16), "PNG")),
        "png-16-rgb": ("kinds/16-rgb.png", GOOD["png 16 bit rgb"]),
        "png-12": ("kinds/12.png", encode(_grey(12), "PNG")),
        "png-12-told": ("kinds/12-told.png", png_16_bit(_measured()[:, :, None], b"\x0c")),
        "tiff-12": ("kinds/12.tif", tiff_12_bit(_measured())),
        "tiff-16": ("kinds/16.tiff", encode(_grey(16), "TIFF")),
        "pgm-16": ("kinds/16.pgm", encode(_grey(16), "PPM")),
        "tiff-float": ("kinds/float.tif", GOOD["tiff float"]),
        "tiff-float-to-1": ("kinds/to-1.tif", encode(Image.fromarray(unit), "TIFF")),
        "tiff-pages": ("kinds/pages.tif", _frames("TIFF")),
        "animated-gif": ("kinds/animated.gif", _frames("GIF")),
        "animated-png": ("kinds/animated.png", _frames("PNG")),
        "bmp": ("kinds/plain.bmp", GOOD["bmp"]),
        "png-named-jpg": ("kinds/really-a-png.jpg", GOOD["png"]),
        "jpeg-named-png": ("kinds/really-a-jpeg.png", GOOD["jpeg"]),
        "one-pixel": ("kinds/one-pixel.png", encode(natural(1, 1), "PNG")),
        "panorama": ("kinds/panorama.jpg", encode(natural(1500, 20), "JPEG")),
        "webp-named-jpg": ("kinds/really-a-webp.jpg", GOOD["webp"] if WEBP else b""),
        "animated-webp": ("kinds/animated.webp", _frames("WEBP", lossless=True) if WEBP else b""),
    }


def failing_kinds() -> dict[str, tuple[str, bytes, str]]:
    """Kinds that are listed as samples and cannot be had: a key, the bytes there, and the reason."""
    heic = struct.pack(">I", 24) + b"ftypheic" + bytes(4) + b"mif1heic" + bytes(2000)
    return {
        "html": ("bad/page.jpg", *BAD["text"]),
        "heic-named-jpg": ("bad/iphone.jpg", heic, "unknown_format"),
        "pdf-named-png": ("bad/paper.png", b"%PDF-1.7\n" + bytes(500), "unknown_format"),
        "empty-file": ("bad/empty.jpg", *BAD["empty"]),
        "truncated": ("bad/half.jpg", *BAD["jpeg cut in half"]),
        "damaged": ("bad/damaged.png", *BAD["png damaged in the middle"]),
        "bomb": ("bad/bomb.png", *BAD["png bomb"]),
        "line": ("bad/line.png", encode(natural(25_000, 1), "PNG"), "too_large"),
    }


def put(root: Path, files: Files) -> Path:
    """Lay files and links down below a folder."""
    for key, data in files.items():
        path = root / key
        if key.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        if data is None:
            os.mkfifo(path)
        elif isinstance(data, Link):
            path.symlink_to(data)
        else:
            path.write_bytes(data)
    return root


def scan(
    root: Path, to: Path, layout: str, recipe: Mapping[str, str], options: Mapping[str, str]
) -> tuple[Manifest, str]:
    """What the real scanner makes of a folder, and the line that it says; as a worker does it."""
    opened, scanning = open_recipe(recipe), Scanning()
    left_out = LeftOut(opened.takes)
    listing = SourceListing(open_source(SourceSpec(os.fspath(root))), scanning)
    write_manifest(to, open_layout(layout, check_layout(layout, options), opened, left_out), listing)
    left_out.add(scanning.left_out)
    records = SampleList("0" * 32, (), ())
    for segment in Scan(to).segments:
        records = records.plus(segment.name, read_segment(segment))
    return Manifest.open(to, records), left_out.line()


def by_pillow(data: bytes, depth: int = 16) -> Pixels:
    """What the recipe promises, by Pillow alone: upright, `depth` bits as 8, RGB, resized, cropped."""
    with Image.open(io.BytesIO(data)) as opened:
        opened.load()
        image = ImageOps.exif_transpose(opened)
        if image.mode.startswith("I"):
            image = Image.fromarray((np.asarray(image).astype(np.int64) >> (depth - 8)).astype(np.uint8))
        return _cropped(image)


def by_image_folder(data: bytes) -> Pixels:
    """What torchvision gives (`pil_loader`, Resize, CenterCrop): nothing comes before `convert("RGB")`."""
    with Image.open(io.BytesIO(data)) as opened:
        return _cropped(opened)


def _cropped(image: Image.Image) -> Pixels:
    image.info.pop("transparency", None)  # convert drops it too, with a warning
    image = image.convert("RGB")
    height, width = resized(image.height, image.width, RESIZE)
    image = image.resize((width, height), Image.Resampling.BILINEAR)
    box = centre(height, width, CROP)
    return np.asarray(image.crop((box.left, box.top, box.left + CROP, box.top + CROP)))
