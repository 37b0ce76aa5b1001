"""What is fuzzed, and what it promises."""

import ctypes
import io
import os
import random
import shutil
import tempfile
import weakref
import zlib
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image

from fuzz_parsers import PARSERS
from fuzzing import Target
from stager.errors import SampleError, ShardError, StagerError, UsageError
from stager.recipes.image import native
from stager.recipes.image.pixels.resize import CropBox, Wanted

HERE = Path(__file__).parent


def files(pattern: str) -> list[Path]:
    return sorted((HERE / "corpus").glob(pattern))


def folder_for(target: Target) -> Path:
    """A folder in memory, for as long as the target is there."""
    folder = tempfile.mkdtemp(prefix="fuzz-", dir="/dev/shm")
    weakref.finalize(target, shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


class Jpegs(Target):
    """What our decoder takes has the pixels of the long way; whatever else comes, it says no."""

    # resize, crop: a part from the middle, all of it, larger than it is
    RECIPES: Final = ((40, 32), (20, 0), (33, 7), (90, 60))
    PIXELS_MOST: Final = 300_000
    words = (
        *(bytes([0xFF, marker]) for marker in (0xC0, 0xC2, 0xC4, 0xD0, 0xD8, 0xD9, 0xDA, 0xDB, 0xDD, 0xE1)),
        *(b"\xff\xff", b"\xff\x00", b"\x11", b"\x22", b"\x21", b"\x00\x08\x00\x08", b"\x3f\x00"),
    )

    def __init__(self) -> None:
        from stager.recipes.image.pixels import decode
        from stager.recipes.image.pixels.resize import resize
        from stager.recipes.image.recipe import target
        from stager.recipes.image.tiny_jpegs import tiny_jpegs

        self.corpus = [*tiny_jpegs().values(), *(path.read_bytes() for path in files("*.jpg"))]
        self.decode, self.target, self.resize = decode, target, resize
        if path := os.environ.get("STAGER_FUZZED_LIBRARY"):
            native.library = native.declare(ctypes.CDLL(path))
        assert native.decodes_jpeg(), "stager/recipes/image/c/jpeg.c was not compiled"

    def check(self, data: bytes) -> str:
        resize, crop = self.RECIPES[zlib.crc32(data) % len(self.RECIPES)]
        room = (ctypes.c_char * len(data)).from_buffer_copy(data)  # of its very size, for the sanitizer
        view = memoryview(room).cast("B")
        margin = zlib.crc32(data) % 3  # sixths of each side that are no part of the box

        def wanted_of(height: int, width: int) -> Any:
            box = CropBox(
                *(margin * side // 6 for side in (height, width)),
                *(max(side - 2 * (margin * side // 6), 1) for side in (height, width)),
            )
            return Wanted(box, self.target(box.height, box.width, resize, crop))

        short = self.decode.decode_resized(view, self.PIXELS_MOST, wanted_of)
        if short is None:
            return "left to others"
        try:
            decoded = self.decode.decode_at_least(view, self.PIXELS_MOST, 0)
        except SampleError as error:
            raise AssertionError(f"our decoder takes it, the long way says {error}") from error
        (top, left, rows, columns), to = wanted_of(decoded.height, decoded.width)
        long = self.resize(decoded.pixels[top : top + rows, left : left + columns], *to)
        assert np.array_equal(short, long), f"off by {np.abs(short.astype(int) - long).max()}"
        return "decoded alike"


class Pngs(Target):
    """What our decoder takes of a PNG has Pillow's pixels; whatever else comes, it says no."""

    PIXELS_MOST: Final = 20_000
    words = (b"IDAT", b"IEND", b"tEXt", b"eXIf", b"PLTE", b"\0\0\0\0", b"\x10\0", b"\x08\2", b"\x08\6")

    def __init__(self) -> None:
        from stager.recipes.image.pixels import decode

        random_of = np.random.default_rng(1)
        samples = random_of.integers(0, 40, (30, 41, 3)).cumsum(0)
        kinds = (
            samples.astype(np.uint8),
            samples[:, :, 0].astype(np.uint8),
            samples[:, :, 1].astype(np.uint16),
        )
        self.corpus, self.decode = [self._encoded(Image.fromarray(pixels)) for pixels in kinds], decode
        if path := os.environ.get("STAGER_FUZZED_LIBRARY"):
            native.library = native.declare(ctypes.CDLL(path))

    @staticmethod
    def _encoded(image: Image.Image) -> bytes:
        file = io.BytesIO()
        image.save(file, "PNG")
        return file.getvalue()

    def mend(self, data: bytes, rng: random.Random) -> bytes:
        """Checksums that fit, of chunks that are still there."""
        whole, at = bytearray(data), 8
        while at + 12 <= len(whole) and rng.random() < 0.95:
            end = at + 12 + int.from_bytes(whole[at : at + 4], "big")
            if end <= len(whole):
                whole[end - 4 : end] = zlib.crc32(whole[at + 4 : end - 4]).to_bytes(4, "big")
            at = end
        return bytes(whole)

    def check(self, data: bytes) -> str:
        view = memoryview(data)
        made = self.decode.decode_png(
            view, self.PIXELS_MOST, lambda height, width: CropBox(0, 0, height, width)
        )
        if made is None:
            return "left to others"
        try:
            with Image.open(io.BytesIO(data), formats=("PNG",)) as image:
                pixels = np.asarray(image)
        except Exception:  # of what lies around the pixels
            return "Pillow takes offence"
        assert np.array_equal(made.reshape(pixels.shape), pixels)
        return "decoded alike"


class Shards(Target):
    """A shard that was damaged in any way is read, or a ShardError, even if its checksum was made to fit."""

    suffix: str
    words = (*Target.words, b"-1", b"null", b"[]", b"{}", b'""', b"9" * 30, b"1e9", b"ARROW1", b"STGRSHRD")

    def __init__(self) -> None:
        self.corpus = [(HERE / "golden" / f"shard-v1{self.suffix}").read_bytes()]
        self.path = folder_for(self) / f"shard{self.suffix}"

    def check(self, data: bytes) -> str:
        from stager.reader.shards import open_shard
        from stager.shards import verify_shard

        self.path.write_bytes(data)
        try:
            shard = open_shard(self.path)
            shard.identities()
            bad = verify_shard(self.path)
            for field in shard.header.fields:
                shard.starts(field.name)
        except ShardError as error:
            return type(error).__name__
        for row in range(len(shard)):
            try:
                shard.places(row)
                shard.row(row)
            except ShardError:
                assert row in bad
        return f"{len(bad)} bad rows" if bad else "whole"

    def mend(self, data: bytes, rng: random.Random) -> bytes:
        from stager.reader.shards.trailer import _CHECKSUM, _TAIL, FORMAT_VERSION, MAGIC, _checksum

        at = data.rfind(MAGIC)
        end = at + _TAIL.size + _CHECKSUM.size
        if at < 0 or end > len(data) or rng.random() < 0.2:
            return data
        *_, text_bytes, head_bytes = _TAIL.unpack_from(data, at)
        begin = max(0, at - text_bytes)
        if (found := data.rfind(b'{"digest"', 0, at)) >= 0:  # its length may have changed
            begin = found
        tail = _TAIL.pack(MAGIC, FORMAT_VERSION, 0, len(data), at - begin, head_bytes)
        checksum = _checksum(data[:head_bytes], data[begin:at], tail, data[end:])
        return data[:at] + tail + _CHECKSUM.pack(checksum) + data[end:]


class ArrowShards(Shards):
    suffix = ".arrow"


class LmdbShards(Shards):
    suffix = ".lmdb"


class Listings(Target):
    """What a server says it has is a list of objects, or an error of the source."""

    corpus = tuple(path.read_bytes() for path in files("*.xml"))
    words = (
        *(b"<Contents>", b"</Contents>", b"<Key>", b"</Key>", b"<ETag>", b"<Size>", b"<Size>-1</Size>"),
        *(b"&amp;", b"&#0;", b"&#x110000;", b"&quot;", b"\xff", b"]]>", b"<!--", b"9" * 40, b"e9", b"nan"),
        *(b"<IsTruncated>true</IsTruncated>", b"<NextContinuationToken>", b"<CommonPrefixes>", b"<Error>"),
    )

    def __init__(self) -> None:
        from botocore.awsrequest import AWSResponse
        from botocore.compat import HTTPHeaders

        from stager.reader.values import SourceSpec
        from stager.sources.s3.source import BotoSource

        spec = SourceSpec("s3://bucket/data", endpoint_url="http://127.0.0.1:1", region="a", anonymous=True)
        self.source = BotoSource(spec)
        self.body = b""

        def answer(request: Any, **_: object) -> Any:
            raw = io.BytesIO(self.body)
            raw.stream = lambda *_: iter([raw.getvalue()])  # type: ignore[attr-defined]
            return AWSResponse(request.url, 200, HTTPHeaders(), raw)

        self.source.client.meta.events.register("before-send.s3.ListObjectsV2", answer)

    def check(self, data: bytes) -> str:
        self.body = data
        try:
            infos = list(self.source.scan())
        except StagerError as error:
            return type(error).__name__
        assert all(isinstance(info.key, str) and info.size >= 0 for info in infos)
        return "listed"


class Wheres(Target):
    """An expression is true for some samples, or a UsageError says what is wrong with it."""

    corpus = (
        b"size > 10KB and class in (cat, dog) and not key like '%_small.jpg'",
        b"(label <= 3 or label != 1) and split = train",
        b'version == "abc" or not (size < 1.5MiB and size >= 0)',
        b"class not in ('a', b, 12) and key not like '%\\_%'",
    )
    words = (
        *(
            b"and",
            b" or ",
            b"not ",
            b"in (",
            b"like",
            b"(",
            b")",
            b"'",
            b'"',
            b",",
            b"size",
            b"class",
            b"key",
        ),
        *(b"label", b"split", b"9" * 40, b"1e400", b"TB", b"0_0", b"<>", b"!=", b"\0", b"\xff", b"%", b"\\"),
        *(b"(" * 60, b"not " * 60, "\u2028\U0001f408".encode(), b"\xed\xa0\x80"),
    )

    def __init__(self) -> None:
        from making import manifest_of

        keys = [f"train/{name}/{number}.jpg" for name in ("a", "cat", "dog") for number in range(3)]
        self.manifest = manifest_of(folder_for(self) / "manifest", keys)

    def check(self, data: bytes) -> str:
        from stager.reader.samples.predicate import select

        try:
            mask = select(self.manifest, data.decode(errors="surrogateescape"))
        except UsageError:
            return "refused"
        assert mask.shape == (len(self.manifest),)
        assert mask.dtype == bool
        return "selected"


TARGETS: Final[dict[str, type[Target]]] = {
    "jpeg": Jpegs,
    "png": Pngs,
    "arrow": ArrowShards,
    "lmdb": LmdbShards,
    "listing": Listings,
    "where": Wheres,
    **PARSERS,
}
