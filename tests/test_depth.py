"""Images of fewer bits than their file has room for: 12 bits of a camera become 8 by their own depth."""

import io

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from images import PNG_COLOURS, png_16_bit, tiff_12_bit
from stager.recipes.image.pixels.decode import decode_image
from stager.recipes.image.pixels.depth import FULL, png_bits

Samples = npt.NDArray[np.uint16]
HEIGHT, WIDTH = 24, 32


def decode(data: bytes) -> npt.NDArray[np.uint8]:
    return decode_image(memoryview(data), 1_000_000)


def measured(channels: int, bits: int = 12) -> Samples:
    """Samples of a sensor: all values of so many bits."""
    rng = np.random.default_rng(7)
    return rng.integers(0, 1 << bits, (HEIGHT, WIDTH, channels), dtype=np.uint16)


def colours(samples: Samples) -> Samples:
    """Three channels, and no alpha."""
    return np.repeat(samples[:, :, :1], 3, axis=2) if samples.shape[2] < 3 else samples[:, :, :3]


def sbit(samples: Samples, bits: int) -> bytes:
    return bytes([bits]) * samples.shape[2]


@pytest.mark.parametrize("bits", [8, 10, 12, 14])
@pytest.mark.parametrize("channels", PNG_COLOURS)
def test_a_png_that_was_not_scaled_is_scaled_by_its_own_depth(channels: int, bits: int) -> None:
    samples = measured(channels, bits)
    got = decode(png_16_bit(samples, sbit(samples, bits)))
    assert np.array_equal(got, colours(samples) >> (bits - 8))


SCALED = {
    "shifted": lambda samples: samples << 4,
    "repeated": lambda samples: samples << 4 | samples >> 8,
    "rounded": lambda samples: np.round(samples * (65535 / 4095)).astype(np.uint16),
}


@pytest.mark.parametrize("how", SCALED)
@pytest.mark.parametrize("brightest", [4096, 256, 16], ids=["bright", "dark", "darker"])
@pytest.mark.parametrize("channels", PNG_COLOURS)
def test_a_png_that_was_scaled_keeps_its_upper_bits_however_dark(
    channels: int, brightest: int, how: str
) -> None:
    samples = SCALED[how](measured(channels) % brightest)
    got = decode(png_16_bit(samples, sbit(samples, 12)))
    assert np.array_equal(got, colours(samples) >> 8)


@pytest.mark.parametrize("channels", PNG_COLOURS)
def test_a_png_that_says_nothing_is_taken_for_all_16_bits(channels: int) -> None:
    samples = measured(channels)
    assert np.array_equal(decode(png_16_bit(samples)), colours(samples) >> 8)


def test_alpha_does_not_count() -> None:
    samples = measured(4)
    samples[:, :, 3] = 65535
    got = decode(png_16_bit(samples, bytes([12, 12, 12, 16])))
    assert np.array_equal(got, samples[:, :, :3] >> 4)


def test_the_deepest_colour_is_the_depth_of_all() -> None:
    samples = measured(3)
    samples[:, :, 2] >>= 2
    got = decode(png_16_bit(samples, bytes([12, 12, 10])))
    assert np.array_equal(got, samples >> 4)


@pytest.mark.parametrize("said", [0, 16, 17, 255])
def test_a_depth_that_makes_no_sense_is_not_taken(said: int) -> None:
    samples = measured(1)
    assert np.array_equal(decode(png_16_bit(samples, bytes([said]))), colours(samples) >> 8)


def test_a_black_image_stays_black() -> None:
    samples = np.zeros((HEIGHT, WIDTH, 3), np.uint16)
    assert not decode(png_16_bit(samples, sbit(samples, 12))).any()


def test_a_png_of_8_bits_has_no_such_depth() -> None:
    file = io.BytesIO()
    Image.fromarray(measured(3, 4).astype(np.uint8)).save(file, "PNG")
    head, tail = file.getvalue()[:33], file.getvalue()[33:]
    assert png_bits(memoryview(head + b"\0\0\0\3sBIT\4\4\4....." + tail)) == FULL


def test_a_png_that_ends_anywhere_says_nothing_or_what_it_said() -> None:
    samples = measured(1)
    whole = png_16_bit(samples, b"\x0c")
    assert {png_bits(memoryview(whole)[:end]) for end in range(80)} == {12, FULL}


def test_a_tiff_of_12_bits_is_scaled_by_its_own_depth() -> None:
    samples = measured(1)
    assert np.array_equal(decode(tiff_12_bit(samples[:, :, 0])), colours(samples) >> 4)
