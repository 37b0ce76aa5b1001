"""A JPEG that is decoded no further than its crop needs: the pixels of the long way, and its errors."""

import io
import os
import random
import struct

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image, ImageFile

from images import Pixels, natural
from stager.errors import SampleError
from stager.recipes import open_recipe
from stager.recipes.image import native
from stager.recipes.image.pixels import decode

RECIPE = {"kind": "image", "resize": 64, "crop": 56}
EXIF = b"Exif\0\0"
SAMPLINGS = {"4:4:4": 0, "4:2:2": 1, "4:2:0": 2}


@pytest.fixture(autouse=True)
def is_compiled() -> None:
    if not native.decodes_jpeg():
        assert not os.environ.get("CI"), "stager/recipes/image/c/jpeg.c was not compiled"
        pytest.skip("stager/recipes/image/c/jpeg.c was not compiled")


def jpeg(pixels: Pixels, **options: object) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", **{"quality": 90, **options})
    return file.getvalue()


def prepared(data: bytes, **recipe: object) -> Pixels | str:
    """The pixels, or the reason why there are none."""
    try:
        return open_recipe({**RECIPE, **recipe}).prepare([memoryview(data)], ())["image"]
    except SampleError as error:
        return error.reason


def both_ways(data: bytes, monkeypatch: pytest.MonkeyPatch, **recipe: object) -> list[Pixels | str]:
    """By the short way if it can be, and by the long way."""
    short = prepared(data, **recipe)
    with monkeypatch.context() as patch:
        patch.setattr(native, "decodes_jpeg", lambda: False)
        return [short, prepared(data, **recipe)]


def takes_the_short_way(data: bytes, monkeypatch: pytest.MonkeyPatch) -> bool:
    with monkeypatch.context() as patch:
        patch.setattr(decode, "decode_at_least", lambda *_: pytest.fail("it went the long way"))
        try:
            prepared(data)
        except pytest.fail.Exception:
            return False
    return True


@pytest.mark.parametrize(
    "options", [{}, {"progressive": True}, {"optimize": True}, {"restart_marker_blocks": 3}]
)
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize(
    "size", [(500, 375), (375, 500), (333, 201), (97, 640), (640, 97), (65, 64), (70, 90), (40, 30)], ids=str
)
def test_the_pixels_are_those_of_the_long_way(
    size: tuple[int, int], sampling: str, options: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = jpeg(natural(*size), subsampling=SAMPLINGS[sampling], **options)
    for recipe in ({}, {"resize": 100, "crop": 0}, {"resize": 90, "crop": 33}):
        short, long = both_ways(data, monkeypatch, **recipe)
        assert np.array_equal(short, long)


def test_photos_take_the_short_way_and_special_ones_the_long_way(monkeypatch: pytest.MonkeyPatch) -> None:
    photo = natural(200, 150)
    assert takes_the_short_way(jpeg(photo), monkeypatch)
    assert takes_the_short_way(jpeg(photo[:, :, 0]), monkeypatch)  # grey
    upright, turned = Image.Exif(), Image.Exif()
    upright[0x0112], turned[0x0112] = 1, 6
    assert takes_the_short_way(jpeg(photo, exif=upright), monkeypatch)
    assert not takes_the_short_way(jpeg(photo, exif=turned), monkeypatch)
    inks = io.BytesIO()
    Image.fromarray(photo).convert("CMYK").save(inks, "JPEG")
    assert not takes_the_short_way(inks.getvalue(), monkeypatch)
    assert not takes_the_short_way(jpeg(natural(70, 300)), monkeypatch)  # Pillow goes down first


Entries = list[tuple[int, int, int, bytes]]  # tag, type, count, the four bytes of its value
TAGS = st.sampled_from([0x0110, 0x0112, 0x0112, 0x0131])
VALUES = st.sampled_from([b"\x06\0\0\0", b"\0\x06\0\0", b"\0\0\0\x06", b"\x01\0\0\0", b"\0\x01\0\0"])
ENTRIES = st.lists(st.tuples(TAGS, st.integers(0, 5), st.integers(0, 3), VALUES), max_size=4)


def with_exif(entries: Entries, order: str = "<", said: int = 0, cut: int = 0, before: bytes = b"") -> bytes:
    """A JPEG with these entries; `said`: how many more it claims to have; `cut`: bytes lacking at the end."""
    head = b"II*\0" if order == "<" else b"MM\0*"
    block = head + struct.pack(f"{order}IH", 8, len(entries) + said)
    block += b"".join(struct.pack(f"{order}HHI4s", *entry) for entry in entries) + bytes(4)
    return jpeg(natural(80, 60), exif=before + EXIF + block[: len(block) - cut])


@given(
    ENTRIES,
    st.sampled_from("<>"),
    st.sampled_from([0, 0, 1]),
    st.integers(0, 20),
    st.sampled_from([b"", EXIF]),
)
@example([(0x0112, 4, 1, b"\0\0\0\x06")], ">", 0, 0, b"")  # as 32 bits
def test_what_exif_turns_is_never_taken_for_upright(
    entries: Entries, order: str, said: int, cut: int, before: bytes
) -> None:
    data = memoryview(with_exif(entries, order, said, cut, before))
    seen = native.look_at_jpeg(data)
    assert seen is not None
    assert seen[2] or decode._turn_of(data) is None


@pytest.mark.parametrize("order", ["<", ">"])
def test_exif_that_turns_nothing_is_known_without_pillow(order: str) -> None:
    one, six = (struct.pack(f"{order}HH", value, 0) for value in (1, 6))
    for entries in (
        [],
        [(0x0112, 3, 1, one)],
        [(0x0110, 2, 3, six), (0x0112, 3, 1, bytes(4)), (0x0131, 3, 1, six)],
    ):
        assert native.look_at_jpeg(memoryview(with_exif(entries, order))) == (60, 80, False)
    for turn in range(2, 9):
        turned = with_exif([(0x0112, 3, 1, struct.pack(f"{order}HH", turn, 0))], order)
        assert native.look_at_jpeg(memoryview(turned)) == (60, 80, True)


def test_grey_is_the_same_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    short, long = both_ways(jpeg(natural(200, 150)[:, :, 0]), monkeypatch)
    assert np.array_equal(short, long)


def test_damage_anywhere_is_found_as_by_the_long_way(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(0)
    found = 0
    for options in ({}, {"progressive": True}, {"restart_marker_blocks": 2}):
        whole = jpeg(natural(200, 150), **options)
        for _ in range(150):
            data = bytearray(whole)
            for _ in range(rng.choice([1, 1, 3])):
                data[rng.randrange(2, len(data))] ^= 1 << rng.randrange(8)
            short, long = both_ways(bytes(data), monkeypatch)
            if isinstance(long, str):
                found += 1
                assert isinstance(short, str)
                assert short == long
            else:
                assert np.array_equal(short, long)
    assert found > 50


def test_an_image_that_is_cut_short_is_found_as_by_the_long_way(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = jpeg(natural(200, 150))
    for length in [*range(0, len(whole), 97), len(whole) - 2, len(whole) - 1]:
        short, long = both_ways(whole[:length], monkeypatch)
        assert isinstance(long, str)
        assert isinstance(short, str)
        assert short == long


@pytest.mark.parametrize("quality", [1, 5, 30, 75, 95, 100])
@pytest.mark.parametrize("optimize", [False, True], ids=["usual tables", "tables of its own"])
@pytest.mark.parametrize("kind", ["noise", "black and white", "one colour"])
def test_codes_and_numbers_of_all_lengths_are_read(
    kind: str, optimize: bool, quality: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Noise at quality 100 has the longest numbers, tables of its own the longest codes."""
    monkeypatch.setattr(ImageFile, "MAXBLOCK", 1 << 20)  # Pillow's encoder wants room for all of it
    rng = np.random.default_rng(quality)
    pixels = {
        "noise": rng.integers(0, 256, (200, 150, 3)),
        "black and white": rng.integers(0, 2, (200, 150, 3)) * 255,
        "one colour": np.full((200, 150, 3), 77),
    }[kind].astype(np.uint8)
    for sampling in SAMPLINGS.values():
        data = jpeg(pixels, quality=quality, optimize=optimize, subsampling=sampling)
        assert takes_the_short_way(data, monkeypatch)
        short, long = both_ways(data, monkeypatch)
        assert np.array_equal(short, long)


def test_bytes_that_do_not_belong_to_the_image_are_judged_as_by_the_long_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = jpeg(natural(200, 150))
    pixels, end = whole[:-2], whole[-2:]
    for more in (b"\0", b"\0" * 9, b"\xff\0", b"\xff\xff", b"\xff\xd0", b"\x7f" * 40):
        for data in (pixels + more + end, pixels + end + more):
            short, long = both_ways(data, monkeypatch)
            assert short == long if isinstance(long, str) else np.array_equal(short, long)


def scans_of(whole: bytes) -> list[int]:
    """Where each scan's coded bytes end."""
    ends, at = [], 2
    while whole[at + 1] != 0xD9:
        is_scan = whole[at + 1] == 0xDA
        at += 2 + int.from_bytes(whole[at + 2 : at + 4], "big")
        if is_scan:
            while whole[at] != 0xFF or whole[at + 1] == 0 or 0xD0 <= whole[at + 1] <= 0xD7:
                at += 1
            ends.append(at)
    return ends


@pytest.mark.parametrize("sampling", [*SAMPLINGS, "grey"])
@pytest.mark.parametrize("quality", [30, 75, 95])
def test_a_progressive_image_that_lacks_scans_has_the_pixels_of_the_long_way(
    quality: int, sampling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    photo = natural(200, 150, seed=quality)
    photo = photo[:, :, 0] if sampling == "grey" else photo
    whole = jpeg(photo, progressive=True, quality=quality, subsampling=SAMPLINGS.get(sampling, 0))
    ends = scans_of(whole)
    assert len(ends) == (6 if sampling == "grey" else 10)
    for end in ends:
        data = whole[:end] + whole[-2:]
        short, long = both_ways(data, monkeypatch)
        assert not isinstance(long, str)
        assert np.array_equal(short, long)
        assert takes_the_short_way(data, monkeypatch) == (end == ends[-1])
