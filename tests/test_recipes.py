"""What recipes promise: Pillow's pixels, a reason for every image that fails, a digest that holds."""

import io
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile, ImageOps

from images import Pixels, bad_images, encode, good_images, natural, oriented_by_xmp, oriented_jpeg
from stager.errors import SampleError, UsageError
from stager.reader.values import Field
from stager.recipes import check_recipe, open_recipe
from stager.recipes.image import recipe as image
from stager.recipes.image.pixels.decode import decode_at_least, decode_image
from stager.recipes.image.pixels.resize import CropBox
from stager.recipes.image.recipe import centre, resized

GOOD, BAD = good_images(), bad_images()
SIZES = {"resize": 256, "crop": 224}
DEFAULT = {
    "kind": "image",
    **SIZES,
    "encode": "raw",
    "quality": 90,
    "decode_scale": 0,
    "max_pixels": 50_000_000,
}


def prepare(data: bytes, **keys: Any) -> Pixels:
    return open_recipe(keys).prepare([memoryview(data)], ())["image"]


def decode(data: bytes) -> Pixels:
    return decode_image(memoryview(data), 50_000_000)


def plain_pillow(data: bytes) -> Pixels:
    with Image.open(io.BytesIO(data)) as opened:
        opened.load()
        opened.info.pop("transparency", None)  # convert would drop it too, with a warning
        return np.asarray(ImageOps.exif_transpose(opened).convert("RGB"))


# Decoding


@pytest.mark.parametrize("name", [name for name in GOOD if "16 bit" not in name])
def test_an_image_is_decoded_as_pillow_does(name: str) -> None:
    assert np.array_equal(decode(GOOD[name]), plain_pillow(GOOD[name]))


@pytest.mark.parametrize("name", [name for name in GOOD if "16 bit" in name])
def test_16_bits_are_scaled_to_8_alike_in_every_format(name: str) -> None:
    want = np.asarray(Image.fromarray(natural(80, 60)).convert("L"))
    assert np.array_equal(decode(GOOD[name]), np.repeat(want[:, :, None], 3, axis=2))


@pytest.mark.parametrize("orientation", range(1, 10))
@pytest.mark.parametrize("make", [oriented_jpeg, oriented_by_xmp])
def test_an_image_is_turned_upright_as_pillow_does(make: Any, orientation: int) -> None:
    data = make(orientation)
    assert np.array_equal(decode(data), plain_pillow(data))
    assert decode(data).shape[:2] == ((80, 60) if 5 <= orientation <= 8 else (60, 80))


@pytest.mark.parametrize("format", ["PNG", "TIFF"])
def test_not_only_jpegs_are_turned_upright(format: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encode(natural(80, 60), format, exif=exif)
    assert decode(data).shape == (80, 60, 3)
    assert np.array_equal(decode(data), plain_pillow(data))


def test_an_exif_block_of_garbage_turns_nothing() -> None:
    data = encode(natural(80, 60), "JPEG", exif=b"Exif\0\0II*\0garbage")
    assert decode(data).shape == (60, 80, 3)


@pytest.mark.parametrize("name", BAD)
def test_a_bad_image_has_a_reason(name: str) -> None:
    data, reason = BAD[name]
    with pytest.raises(SampleError) as caught:
        prepare(data)
    assert caught.value.reason == reason
    assert caught.value.message


def test_an_image_that_is_too_large_is_refused_by_its_header() -> None:
    data = GOOD["png"]
    assert prepare(data, max_pixels=80 * 60, crop=0, resize=0).shape == (60, 80, 3)
    with pytest.raises(SampleError, match="80x60 is more than 4799 pixels"):
        prepare(data, max_pixels=80 * 60 - 1)


def test_an_image_that_resizing_makes_too_large_is_refused() -> None:
    with pytest.raises(SampleError) as caught:
        prepare(encode(natural(2000, 1), "PNG"), resize=256)
    assert caught.value.reason == "too_large"


def test_no_memory_is_not_the_images_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def resize(*args: object) -> Pixels:
        raise MemoryError

    monkeypatch.setattr(image, "resize", resize)
    with pytest.raises(SampleError) as caught:
        prepare(GOOD["png"])
    assert caught.value.reason == "unprepared"


def test_a_jpeg_has_sides_of_16_bits() -> None:
    with pytest.raises(SampleError) as caught:
        prepare(encode(natural(66_000, 1), "PNG"), resize=0, crop=0, encode="jpeg")
    assert caught.value.reason == "too_large"


def test_pillow_is_left_as_it_was_and_keeps_quiet() -> None:
    limit = Image.MAX_IMAGE_PIXELS
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for data in [*GOOD.values(), *(data for data, _ in BAD.values())]:
            try_to_prepare(data)
    assert warned == []
    assert not ImageFile.LOAD_TRUNCATED_IMAGES
    assert limit == Image.MAX_IMAGE_PIXELS


def try_to_prepare(data: bytes) -> None:
    """Only a SampleError or a sample of the right shape may come of any bytes."""
    recipe = open_recipe({"resize": 32, "crop": 24, "max_pixels": 1_000_000})
    try:
        arrays = recipe.prepare([memoryview(data)], ())
    except SampleError:
        return
    assert arrays["image"].shape == (24, 24, 3)
    assert arrays["image"].dtype == np.uint8


@given(st.binary(max_size=200), st.sampled_from(sorted(GOOD)), st.integers(0, 40))
@settings(max_examples=150, deadline=None)
def test_any_bytes_are_an_image_or_a_sample_error(tail: bytes, name: str, kept: int) -> None:
    try_to_prepare(GOOD[name][:kept] + tail)


@given(st.sampled_from(sorted(GOOD)), st.data())
@settings(max_examples=400, deadline=None)
def test_any_damage_leaves_an_image_or_a_sample_error(name: str, draw: st.DataObject) -> None:
    damaged = bytearray(GOOD[name])
    # Headers are at the front, or, in a TIFF, at the end.
    places = st.one_of(st.integers(0, 200), st.integers(-200, -1), st.integers(0, len(damaged) - 1))
    for place, value in draw.draw(st.lists(st.tuples(places, st.integers(0, 255)), min_size=1, max_size=8)):
        damaged[place] = value
    try_to_prepare(bytes(damaged[: draw.draw(st.integers(1, len(damaged)))]))


# Samples


@pytest.mark.parametrize(
    ("size", "shorter", "want"),
    [
        ((375, 500), 256, (256, 341)),
        ((500, 375), 256, (341, 256)),
        ((500, 500), 256, (256, 256)),
        ((1, 7), 3, (3, 21)),
        ((375, 500), 0, (375, 500)),
    ],
)
def test_the_shorter_side_is_resized_as_torchvision_does(
    size: tuple[int, int], shorter: int, want: tuple[int, int]
) -> None:
    assert resized(*size, shorter) == want


@pytest.mark.parametrize(
    ("size", "crop", "want"),
    [
        ((256, 341), 224, CropBox(16, 58, 224, 224)),  # 58.5 is rounded to even
        ((259, 256), 224, CropBox(18, 16, 224, 224)),  # and so is 17.5
        ((256, 341), 0, CropBox(0, 0, 256, 341)),
        ((99, 300), 102, CropBox(-1, 99, 102, 102)),  # one more line of padding below than above
    ],
)
def test_the_centre_is_where_torchvision_has_it(size: tuple[int, int], crop: int, want: CropBox) -> None:
    assert centre(*size, crop) == want


def test_a_crop_of_a_smaller_image_is_padded_with_black() -> None:
    pixels = natural(80, 60)
    padded = prepare(encode(pixels, "PNG"), crop=71)
    assert padded.shape == (71, 71, 3)
    assert np.array_equal(padded[5:65], pixels[:, 4:75])
    assert not padded[:5].any()
    assert not padded[65:].any()


def test_a_raw_sample_is_what_pillow_gives() -> None:
    data = encode(natural(500, 375), "JPEG")
    whole = Image.open(io.BytesIO(data)).resize((341, 256), Image.Resampling.BILINEAR)
    want = np.asarray(whole.crop((58, 16, 58 + 224, 16 + 224))).astype(int)
    assert np.abs(prepare(data) - want).mean() < 0.05


def test_a_jpeg_sample_decodes_to_nearly_the_raw_one() -> None:
    data = encode(natural(500, 375), "JPEG")
    stored = prepare(data, encode="jpeg")
    assert stored.ndim == 1
    assert stored.dtype == np.uint8
    decoded = simplejpeg.decode_jpeg(stored, "RGB").astype(int)
    assert np.abs(decoded - prepare(data)).mean() < 8
    assert len(stored) < len(prepare(data, encode="jpeg", quality=99))


def test_fields_say_what_a_sample_is() -> None:
    assert open_recipe({}).fields == (Field("image", "uint8", (224, 224, 3), "raw", "HWC"),)
    assert open_recipe({"encode": "jpeg"}).fields == (Field("image", "uint8", (224, 224, 3), "jpeg", "HWC"),)
    assert open_recipe({"resize": 64}).fields == (Field("image", "uint8", (None, None, 3), "raw", "HWC"),)


def test_threads_prepare_what_one_alone_does() -> None:
    recipe = open_recipe({"resize": 48, "crop": 40})
    images = [memoryview(data) for data in GOOD.values()]
    alone = [recipe.prepare([data], ())["image"] for data in images]
    with ThreadPoolExecutor(8) as pool:
        together = pool.map(lambda data: recipe.prepare([data], ()), images * 5)
        assert all(np.array_equal(got["image"], want) for got, want in zip(together, alone * 5, strict=True))


# Specs and digests


def test_what_is_not_given_has_a_default() -> None:
    assert check_recipe({}) == DEFAULT
    assert check_recipe({"encode": "jpeg"}) == {**DEFAULT, "encode": "jpeg"}
    assert check_recipe({"resize": 128}) == {**DEFAULT, "resize": 128, "crop": 0}
    assert check_recipe({"crop": 64, "resize": None}) == {**DEFAULT, "resize": 0, "crop": 64}
    assert check_recipe(check_recipe({"crop": 64})) == check_recipe({"crop": 64})


@pytest.mark.parametrize(
    ("spec", "message", "hint"),
    [
        ({"resise": 256}, "resise", "resize"),
        ({"kind": "imagee"}, "imagee", "image"),
        ({"kind": ["image"]}, "kind", "image"),
        ({"resize": "256"}, "'256'", "whole number"),
        ({"resize": 25.6}, "25.6", "whole number"),
        ({"crop": True}, "True", "whole number"),
        ({"crop": -1}, "-1", "whole number"),
        ({"resize": 100, "crop": 101}, "crop 101", "100 or less"),
        ({"encode": "webp"}, "webp", "raw or jpeg"),
        ({"encode": []}, "encode", "raw or jpeg"),
        ({"quality": 0}, "quality", "1 to 100"),
        ({"quality": 101}, "quality", "1 to 100"),
        ({"max_pixels": 0}, "max_pixels", "whole number"),
    ],
)
def test_a_spec_that_makes_no_sense_is_refused_with_a_hint(spec: Any, message: str, hint: str) -> None:
    for refuse in (check_recipe, open_recipe):
        with pytest.raises(UsageError, match=message) as caught:
            refuse(spec)
        assert hint in caught.value.hint


GOLDEN: list[tuple[dict[str, Any], str]] = [
    ({}, "9b46be84e75ca104b10a11e1ca14d4c8"),
    ({"resize": 128}, "fd6ec0f93a721aca96354a821e0ce811"),
    ({"resize": 128, "crop": 112}, "69c6f10cf8dafbfdb0bb2423fa123aa3"),
    ({"crop": 224}, "cb151ee79d1229ea88e8aa618f55f854"),
    ({"resize": 0, "crop": 0}, "ec53735906f92dd70124321e35b90bc5"),
    ({"encode": "jpeg"}, "24f1a81057f7e16d5ec7968a7fa01e7b"),
    ({"encode": "jpeg", "quality": 95}, "4f15badb8401212838f52caadb94e5fe"),
]


@pytest.mark.parametrize(("spec", "digest"), GOLDEN)
def test_a_digest_stays_as_it_is(spec: dict[str, Any], digest: str) -> None:
    # If the pixels changed, raise VERSION and change these. If not, all that was staged would be lost.
    assert open_recipe(spec).digest == digest


def test_what_changes_the_result_changes_the_digest() -> None:
    assert len({digest for _, digest in GOLDEN}) == len(GOLDEN)


@pytest.mark.parametrize("same", [DEFAULT, SIZES, {"quality": 50}, {"max_pixels": 7}])
def test_what_does_not_change_the_result_keeps_the_digest(same: dict[str, Any]) -> None:
    assert open_recipe(same).digest == open_recipe({}).digest


def test_a_recipe_is_opened_without_a_decoder() -> None:
    code = (
        "import sys; from stager.recipes import open_recipe\n"
        "recipe = open_recipe({}); recipe.digest, recipe.fields\n"
        "sys.exit(bool({'PIL', 'simplejpeg', 'torch'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# Decoding at a reduced size


def large_jpeg(height: int, width: int, orientation: int = 1) -> bytes:
    exif = Image.Exif()
    if orientation != 1:
        exif[0x0112] = orientation
    file = io.BytesIO()
    Image.fromarray(natural(width, height)).save(
        file, "JPEG", quality=92, exif=exif.tobytes() if exif else b""
    )
    return file.getvalue()


@pytest.mark.parametrize(("height", "width"), [(400, 300), (257, 1001), (640, 161)])
@pytest.mark.parametrize("decode_scale", [1, 2])
def test_a_reduced_decode_gives_nearly_the_same_pixels(height: int, width: int, decode_scale: int) -> None:
    data = large_jpeg(height, width)
    whole = prepare(data, resize=40, crop=32)
    reduced = prepare(data, resize=40, crop=32, decode_scale=decode_scale)
    assert reduced.shape == whole.shape
    assert np.abs(reduced.astype(int) - whole).mean() < 6  # docs/DECODERS.md


def test_by_default_and_where_it_is_not_large_or_may_be_turned_an_image_is_decoded_whole() -> None:
    large = memoryview(large_jpeg(400, 300))
    assert decode_at_least(large, 10**6, 0).pixels.shape == (400, 300, 3)
    assert decode_at_least(large, 10**6, 151).pixels.shape == (400, 300, 3)
    smaller = decode_at_least(large, 10**6, 150)
    assert smaller.pixels.shape == (200, 150, 3)
    assert (smaller.height, smaller.width) == (400, 300)
    turned = decode_at_least(memoryview(large_jpeg(400, 300, orientation=6)), 10**6, 50)
    assert turned.pixels.shape == (300, 400, 3)
    assert (turned.height, turned.width) == (300, 400)


def test_a_reduced_decode_is_another_recipe_and_none_is_the_recipe_of_old() -> None:
    assert open_recipe({"decode_scale": 1}).digest != open_recipe({"decode_scale": 2}).digest
    assert open_recipe({"decode_scale": 0}).digest == open_recipe({}).digest
    assert open_recipe({"crop": 9, "decode_scale": 2}).digest == open_recipe({"crop": 9}).digest
