"""Images that say which object and which content they are, and a source that keeps every version of itself.

An image is noise drawn from (object, content), with both numbers in its middle: of any crop that a reader
gets, we know what it says it is, and what every pixel of it must be then. A hole, a mixture of two images, or
a neighbour's row cannot pass. A version is the contents of all objects at one scan.
"""

import json
import os
import struct
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from images import Pixels, encode
from sets import table

SIDE = 96  # of the images at the source
CROP_A, CROP_B = "crop = 64", "crop = 56"  # rows over 8 kB: smaller ones are never evicted by themselves
SIDE_A, SIDE_B = 64, 56
CLASSES = 5
IDENTITY = struct.Struct("<III")  # object, content, and their check: twelve bytes are four pixels
MIX = 0x9E3779B1
FIRST_MTIME_NS = 1_700_000_000 * 10**9

Version = Mapping[int, int]  # the content of each object


def key_of(number: int) -> str:
    return f"c{number % CLASSES}/{number:05d}.png"


def number_of(key: str) -> int:
    return int(key.split("/")[1].removesuffix(".png"))


@lru_cache(4096)
def image_of(number: int, content: int) -> Pixels:
    """The pixels of one content of an object."""
    pixels = np.random.default_rng([number, content]).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
    said = IDENTITY.pack(number, content, _check_of(number, content))
    pixels[SIDE // 2, SIDE // 2 : SIDE // 2 + 4] = np.frombuffer(said, np.uint8).reshape(4, 3)
    return pixels


def cropped(pixels: Pixels, side: int) -> Pixels:
    """The square in the middle, as a recipe with `crop` has it."""
    at = (SIDE - side) // 2
    return pixels[at : at + side, at : at + side]


def said_by(pixels: npt.NDArray[Any]) -> tuple[int, int] | None:
    """Which object and which content an image of a reader says it is; None if it says nothing."""
    middle = pixels.shape[0] // 2
    said = np.ascontiguousarray(pixels[middle, middle : middle + 4]).tobytes()
    number, content, check = IDENTITY.unpack(said)
    return (number, content) if check == _check_of(number, content) else None


def what_is_wrong(pixels: npt.NDArray[Any], label: int | None, version: Version) -> str:
    """Why an image of a reader is no sample of this version; "" if it is one, with the right label."""
    said = said_by(pixels)
    if said is None:
        zeros = np.count_nonzero(pixels == 0) / pixels.size
        return f"the image says nothing of itself; {zeros:.0%} of it are zeros"
    number, content = said
    if number not in version:
        return f"{key_of(number)} is not in the version that was opened"
    if content != version[number]:
        return f"{key_of(number)}: content {content}, the version that was opened has {version[number]}"
    right = cropped(image_of(number, content), pixels.shape[0])
    if not np.array_equal(pixels, right):
        differ = np.count_nonzero(pixels != right) / pixels.size
        return f"{key_of(number)}: content {content}, but {differ:.2%} of its bytes are others"
    classes = sorted({key_of(known).split("/")[0] for known in version})
    if label is not None and classes[label] != key_of(number).split("/")[0]:
        return f"{key_of(number)}: its label says {classes[label]}"
    return ""


class KeptSource:
    """A directory of such images that changes; each version of it can be kept."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.contents: dict[int, int] = {}
        self.next_content = 1
        self._mtimes_ns: dict[tuple[int, int], int] = {}
        root.mkdir(parents=True)

    def put(self, number: int, content: int | None = None) -> None:
        """A new content of an object, or one that it had before: then its file is as it was, to the time."""
        if content is None:
            content = self.next_content
            self.next_content += 1
        mtime_ns = self._mtimes_ns.setdefault((number, content), FIRST_MTIME_NS + len(self._mtimes_ns))
        path = self.root / key_of(number)
        path.parent.mkdir(exist_ok=True)
        scratch = self.root / "scratch.part"
        scratch.write_bytes(encode(image_of(number, content), "PNG", compress_level=1))
        os.utime(scratch, ns=(mtime_ns, mtime_ns))
        scratch.rename(path)  # a reader of the source never sees half of one
        self.contents[number] = content

    def remove(self, number: int) -> None:
        (self.root / key_of(number)).unlink()
        del self.contents[number]

    def contents_of(self, number: int) -> list[int]:
        """Every content that an object ever had."""
        return [content for known, content in self._mtimes_ns if known == number]

    def version(self) -> dict[int, int]:
        return dict(self.contents)

    def table(self, name: str, recipe: str = CROP_A) -> str:
        return table(name, self.root, recipe)


def write_version(path: Path, version: Version) -> None:
    """Whole or not at all: readers look at it while we write."""
    scratch = path.with_suffix(".part")
    scratch.write_text(json.dumps(version))
    scratch.rename(path)


def read_version(path: Path) -> dict[int, int]:
    return {int(number): content for number, content in json.loads(path.read_text()).items()}


def _check_of(number: int, content: int) -> int:
    return (number * MIX ^ content * (MIX >> 3) ^ 0x5BD1E995) & 0xFFFFFFFF
