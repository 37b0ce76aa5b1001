"""TIFF volumes: a file of pages, or a folder with a file a slice. tifffile finds where their voxels lie."""

import base64
import math
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple

import numpy as np

from stager.errors import NotReady, SampleError, UsageError
from stager.layouts.packed.ranged import RangedFile
from stager.layouts.volume.formats.array import (
    DECODED_BYTES_MAX,
    Array,
    Place,
    Wanted,
    check_dtype,
    check_shape,
    check_there,
    raw,
    run_of,
)
from stager.layouts.volume.formats.tiff.decode import ERRORS, library, without_voxels
from stager.reader.samples.computed.chunked import Lies
from stager.reader.samples.computed.grid import Sides
from stager.reader.samples.computed.spans import Pages, Run, packed_table
from stager.reader.values import ObjectInfo, canonical_json

ENDINGS: Final = (".tif", ".tiff", ".btf", ".tf8", ".tf2")
GLOB: Final = "*?["
LINES_MAX: Final = 1 << 20  # strips or tiles of all pages
# Those that never decode to more than a strip or tile has: PackBits, LZW, deflate, LZMA, zstd, and JPEG.
COMPRESSIONS: Final = {1: "none", 5: "LZW", 7: "JPEG", 8: "deflate", 32773: "PackBits", 32946: "deflate",
                       34925: "LZMA", 34926: "zstd", 50000: "zstd"}  # fmt: skip


class Looks(NamedTuple):
    """What all pages of an array have alike."""

    side: Sides  # of a page
    dtype: str  # as it is stored, with its byte order
    tile: Sides  # what is compressed by itself: a tile, or a strip
    is_raw: bool  # its bytes are voxels
    page: bytes  # without voxels


class Segments(NamedTuple):
    """Where the strips or tiles of a page lie."""

    starts: Sequence[int]
    sizes: Sequence[int]


def is_tiff(path: str) -> bool:
    return path.lower().endswith(ENDINGS)


def find_tiff(place: Place, path: str, wanted: Wanted) -> Array:
    """The array of a TIFF file: of its first series of pages. Raise UsageError if there is none."""
    info = place.find(path)
    with _opened(place, info) as file:
        series = file.series[0]
        looks = _looks(path, series.keyframe)
        shape = check_shape(path, _with_pages(series, looks.side))
        if looks.is_raw and series.dataoffset is not None:
            dtype = np.dtype(looks.dtype)
            chunk = run_of(shape, wanted.brick, dtype.itemsize)
            told = info.key, info.size, info.version
            check_there(path, series.dataoffset + math.prod(shape) * dtype.itemsize, info.size)
            run = Run(told, series.dataoffset, shape, chunk, dtype.itemsize, False)
            return Array(shape, check_dtype(path, dtype), chunk, run, raw(dtype, shape, chunk))
        pages = [_segments(path, looks, page) for page in series]
    return _array(path, [info], [0] * len(pages), pages, shape, looks, wanted)


def _with_pages(series: Any, side: Sides) -> Sides:
    """The sides of a series: those of its pages, and before them those that its pages lie along."""
    whole, page = [int(of) for of in series.get_shape(False)], math.prod(side)
    while whole and page % whole[-1] == 0 and page > 1:
        page //= whole.pop()
    before = [of for of in whole if of > 1]
    return (*(before or [1]), *side)


def find_stack(place: Place, path: str, wanted: Wanted) -> Array | None:
    """The array of a folder of TIFF files, or of those that a pattern names; None: there are none.

    They are slices in the order of the numbers in their names. Raise UsageError if they are not alike.
    """
    infos = slices_of(place, path)
    if not infos:
        return None

    def look(info: ObjectInfo) -> tuple[Looks, Segments]:
        with _opened(place, info) as file:
            page = file.pages[0]
            looks = _looks(info.key, page)
            return looks, _segments(info.key, looks, page)

    pages: list[Segments] = []
    first: Looks | None = None
    for info, (looks, segments) in zip(infos, place.listing.side_by_side(infos, look), strict=True):
        first = first or looks
        if looks != first:
            told = [f"{list(of.side)} of {np.dtype(of.dtype).name}" for of in (looks, first)]
            raise UsageError(
                f"{info.key} is {told[0]}, {infos[0].key} {told[1]}"
                if told[0] != told[1]
                else f"{info.key} is compressed or cut in another way than {infos[0].key}",
                hint="the slices of a stack are alike",
            )
        pages.append(segments)
    assert first is not None
    shape = check_shape(path, (len(infos), *first.side))
    return _array(path, infos, list(range(len(infos))), pages, shape, first, wanted)


def slices_of(place: Place, path: str) -> list[ObjectInfo]:
    """The TIFF files right in a folder, or those of a pattern, by the numbers in their names."""
    if any(letter in path for letter in GLOB):
        fixed = re.split(f"[{re.escape(GLOB)}]", path)[0]
        prefix, depth = fixed, path.count("/")
        found = (
            info
            for info in place.under(prefix)
            if info.key.count("/") == depth and fnmatchcase(info.key, path)
        )
    else:
        prefix = f"{path}/" if path else ""
        found = (
            info for info in place.under(prefix) if "/" not in info.key[len(prefix) :] and is_tiff(info.key)
        )
    return sorted(found, key=lambda info: natural(info.key))


def natural(key: str) -> list[tuple[bool, int, str]]:
    """What sorts slice-2 before slice-10."""
    parts = re.split(r"([0-9]+)", key)
    return [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts]


def _array(
    path: str,
    infos: Sequence[ObjectInfo],
    which: Sequence[int],
    pages: Sequence[Segments],
    shape: Sides,
    looks: Looks,
    wanted: Wanted,
) -> Array:
    """Pages, each of which is one chunk, or several: pieces of lines, strips or tiles."""
    before, (height, width) = shape[:-2], looks.side
    if len(pages) != math.prod(before):
        raise UsageError(
            f"{path} has {len(pages)} pages, its shape {list(shape)} more or less", hint="is it damaged?"
        )
    dtype = np.dtype(looks.dtype)
    name, item = check_dtype(path, dtype), dtype.itemsize
    objects = tuple((info.key, info.size, info.version) for info in infos)
    deep = (1,) * len(before)
    per = tuple(-(-side // tile) for side, tile in zip(looks.side, looks.tile, strict=True))
    is_one_piece = all(_is_one_piece(page) for page in pages)
    if looks.is_raw and is_one_piece and looks.tile[1] >= width:
        brick = wanted.brick[-2:] if len(wanted.brick) == len(shape) else looks.side
        lines = run_of(looks.side, brick, item)[0]
        table = [[at, page.starts[0], sum(page.sizes)] for at, page in zip(which, pages, strict=True)]
        count = -(-height // lines)
        lies: Lies = Pages(objects, _packed(path, table), (*before, count, 1), count, lines * width * item)
        chunk = (*deep, lines, width)
        return Array(shape, name, chunk, lies, raw(dtype, shape, chunk))
    table = [
        [at, start, size]
        for at, page in zip(which, pages, strict=True)
        for start, size in zip(page.starts, page.sizes, strict=True)
    ]
    is_tiled = looks.tile[1] < width or looks.tile[0] >= height
    nests = len(wanted.brick) == len(shape) and not (
        looks.tile[0] % wanted.brick[-2] and wanted.brick[-2] % looks.tile[0]
    )
    packed = _packed(path, table)
    told = {"format": "tiff", "page": base64.b64encode(zlib.compress(looks.page)).decode()}
    if is_tiled or nests:
        _check_decoded(path, looks.tile, item)
        opens = canonical_json({**told, "chunk": looks.tile, "per": per})
        return Array(shape, name, (*deep, *looks.tile), Pages(objects, packed, (*before, *per)), opens)
    _check_decoded(path, looks.side, item)  # strips that bricks do not divide: a page is a chunk
    opens = canonical_json({**told, "chunk": looks.side, "per": per, "table": packed, "before": before})
    lies = Pages(objects, packed, (*before, 1, 1), lines=per[0])
    return Array(shape, name, (*deep, *looks.side), lies, opens)


def _is_one_piece(page: Segments) -> bool:
    """Whether the strips of a page lie one behind the other."""
    ends = [start + size for start, size in zip(page.starts, page.sizes, strict=True)]
    return all(page.sizes) and list(page.starts[1:]) == ends[:-1]


def _packed(path: str, table: list[list[int]]) -> str:
    if len(table) > LINES_MAX:
        raise UsageError(
            f"{path} has {len(table):,} strips or tiles, more than {LINES_MAX:,}",
            hint="write it with larger tiles",
        )
    return packed_table(np.asarray(table, np.int64))


def _check_decoded(path: str, side: Sides, item: int) -> None:
    if math.prod(side) * item > DECODED_BYTES_MAX:
        raise UsageError(
            f"{path}: {list(side)} voxels are compressed as one, more than {DECODED_BYTES_MAX >> 20} MiB",
            hint="write it with tiles",
        )


def _looks(path: str, page: Any) -> Looks:
    """What a page is. Raise UsageError if it is nothing that we read."""
    told = int(page.compression)
    what = ""
    if page.samplesperpixel != 1 or page.is_volumetric or page.imagedepth != 1:
        what = (
            f"{page.samplesperpixel} values a voxel" if page.samplesperpixel != 1 else "tiles that are boxes"
        )
    elif told not in COMPRESSIONS:
        what = f"the compression {told}"
    elif page.dtype is None or page.bitspersample not in (8, 16, 32, 64):
        what = f"{page.bitspersample} bits a voxel"
    if what:
        known = ", ".join(dict.fromkeys(COMPRESSIONS.values()))
        raise UsageError(f"{path} has {what}", hint=f"one number a voxel is read; compressed by: {known}")
    side = int(page.imagelength), int(page.imagewidth)
    check_shape(path, side)
    tile = (int(page.tilelength), int(page.tilewidth)) if page.is_tiled else (
        min(int(page.rowsperstrip), side[0]), side[1])  # fmt: skip
    check_shape(path, tile)
    is_raw = told == 1 and page.predictor == 1 and page.fillorder == 1 and not page.is_tiled
    order = page.parent.byteorder if is_raw else "<"
    dtype = np.dtype(page.dtype).newbyteorder(order).str
    check_dtype(path, np.dtype(dtype))
    return Looks(side, dtype, tile, is_raw, without_voxels(page))


def _segments(path: str, looks: Looks, page: Any) -> Segments:
    """Where its strips or tiles lie. A page that is not there has none: it is 0."""
    count = math.prod(-(-side // tile) for side, tile in zip(looks.side, looks.tile, strict=True))
    if page is None:
        return Segments([0] * count, [0] * count)
    starts, sizes = [int(at) for at in page.dataoffsets], [int(size) for size in page.databytecounts]
    if not (len(starts) == len(sizes) == count) or min((*starts, *sizes)) < 0:
        raise UsageError(
            f"{path} has a page of {count} strips or tiles, and {len(starts)} are told", hint="is it damaged?"
        )
    if looks.is_raw:  # some writers tell more bytes than there are lines
        line = looks.side[1] * np.dtype(looks.dtype).itemsize
        rest = looks.side[0]
        for number in range(count):
            lines = min(looks.tile[0], rest)
            sizes[number], rest = (
                lines * line if sizes[number] >= lines * line else sizes[number],
                rest - lines,
            )
    return Segments(starts, sizes)


@contextmanager
def _opened(place: Place, info: ObjectInfo) -> Iterator[Any]:
    """A TIFF file as tifffile has it. Raise UsageError for whatever it makes of one that is damaged."""
    tifffile = library()
    ERRORS.told = []
    try:
        with tifffile.TiffFile(
            RangedFile(info, place.listing.read), name="volume.tif", _multifile=False
        ) as file:
            yield file
            if ERRORS.told:  # it would go on with the pages that it has found
                raise ValueError(ERRORS.told[0])
    except (UsageError, NotReady, SampleError, MemoryError):
        raise
    except Exception as error:
        told = str(error) or type(error).__name__
        raise UsageError(f"{info.key} is no TIFF that can be read: {told}", hint="is it damaged?") from None
