"""What every resizer promises: Pillow's pixels, of the part that is wanted, from many threads at once."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import PIL
import pytest
from PIL import Image

from images import IS_SIMD, Pixels, natural, resize_as_pillow_13
from stager.recipes.image.pixels.resize import CropBox, installed_resizers, resizer_name
from stager.recipes.image.recipe import centre, cut, resized

PLAIN_PILLOW_13 = not IS_SIMD and int(PIL.__version__.split(".")[0]) >= 13

# Width and height of an image, its shorter side after resizing, the crop (0: none).
SIZES = [
    (500, 375, 256, 224),
    (375, 500, 256, 224),
    (500, 333, 256, 224),
    (640, 480, 256, 0),
    (512, 512, 256, 224),
    (400, 300, 225, 224),
    (257, 259, 256, 256),
    (901, 677, 96, 64),
    (320, 320, 256, 224),
    (500, 320, 256, 224),
    (320, 720, 256, 224),
    (300, 900, 128, 112),
    (900, 300, 128, 0),
    (100, 75, 256, 224),
    (53, 37, 64, 64),
    (40, 1, 32, 32),
    (1, 40, 32, 0),
    (1, 1, 16, 16),
]


def plain_pillow(pixels: Pixels, height: int, width: int, window: CropBox) -> Pixels:
    return cut(resize_as_pillow_13(pixels, height, width), window)


def geometry(width: int, height: int, shorter: int, crop: int) -> tuple[int, int, CropBox]:
    resized_height, resized_width = resized(height, width, shorter)
    return resized_height, resized_width, centre(resized_height, resized_width, crop)


@pytest.mark.skipif(not PLAIN_PILLOW_13, reason="wants Pillow 13 itself")
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_the_reference_is_plain_pillow(sizes: tuple[int, int, int, int]) -> None:
    pixels = natural(*sizes[:2])
    height, width, window = geometry(*sizes)
    whole = Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR)
    box = (window.left, window.top, window.left + window.width, window.top + window.height)
    assert np.array_equal(np.asarray(whole.crop(box)), plain_pillow(pixels, height, width, window))


class ResizeContract:
    """What every resizer promises. Subclass, say which, inherit the tests."""

    name: str

    @pytest.fixture
    def resizer(self) -> Any:
        resizers = installed_resizers()
        if self.name not in resizers:
            assert self.name != "native" or not os.environ.get("CI"), (
                "stager/recipes/image/c/resize.c was not compiled"
            )
            pytest.skip(f"{self.name} is not installed")
        return resizers[self.name]

    @pytest.mark.parametrize("sizes", SIZES, ids=str)
    def test_pixels_are_those_of_pillow(self, resizer: Any, sizes: tuple[int, int, int, int]) -> None:
        pixels = natural(*sizes[:2])
        height, width, window = geometry(*sizes)
        got = resizer(pixels, height, width, window)
        assert got.shape == (window.height, window.width, 3)
        assert got.dtype == np.uint8
        assert got.flags.c_contiguous
        difference = np.abs(got.astype(int) - plain_pillow(pixels, height, width, window))
        assert difference.mean() < 0.05
        assert difference.max() <= 2

    def test_any_window_is_that_part_of_the_whole(self, resizer: Any) -> None:
        pixels = natural(301, 211)
        whole = resizer(pixels, 128, 192, CropBox(0, 0, 128, 192)).astype(int)
        for window in (CropBox(0, 0, 20, 30), CropBox(108, 162, 20, 30), CropBox(50, 1, 1, 190)):
            part = resizer(pixels, 128, 192, window)
            assert np.abs(part - cut(whole, window)).mean() < 0.05

    def test_pixels_may_be_read_only_or_a_view(self, resizer: Any) -> None:
        pixels = natural(100, 80)
        window = CropBox(0, 0, 40, 50)
        want = resizer(pixels, 40, 50, window)
        pixels.flags.writeable = False
        assert np.array_equal(resizer(pixels, 40, 50, window), want)
        mirrored = np.ascontiguousarray(pixels[:, ::-1])[:, ::-1]
        assert np.array_equal(resizer(mirrored, 40, 50, window), want)

    def test_threads_do_not_disturb_one_another(self, resizer: Any) -> None:
        images = [natural(200, 150, seed) for seed in range(8)]
        alone = [resizer(pixels, 96, 128, CropBox(5, 20, 80, 80)) for pixels in images]
        with ThreadPoolExecutor(8) as pool:
            together = pool.map(lambda pixels: resizer(pixels, 96, 128, CropBox(5, 20, 80, 80)), images * 8)
            assert all(np.array_equal(got, want) for got, want in zip(together, alone * 8, strict=True))


class ExactResizeContract(ResizeContract):
    """What they promise that stand in for one another."""

    @pytest.mark.parametrize("sizes", SIZES, ids=str)
    def test_pixels_are_those_of_pillow_to_the_last_bit(
        self, resizer: Any, sizes: tuple[int, int, int, int]
    ) -> None:
        pixels = natural(*sizes[:2])
        height, width, window = geometry(*sizes)
        got = resizer(pixels, height, width, window)
        assert np.array_equal(got, plain_pillow(pixels, height, width, window))

    @pytest.mark.parametrize("window", [CropBox(8, 18, 48, 48), CropBox(0, 0, 64, 85), CropBox(63, 84, 1, 1)])
    def test_any_window_is_that_part_of_the_whole_to_the_last_bit(
        self, resizer: Any, window: CropBox
    ) -> None:
        pixels = natural(96, 72)
        assert np.array_equal(resizer(pixels, 64, 85, window), plain_pillow(pixels, 64, 85, window))


class TestNative(ExactResizeContract):
    name = "native"


class TestPillow(ExactResizeContract):
    name = "pillow"


class TestTorch(ResizeContract):
    name = "torch"


class TestPillowSimd(ResizeContract):
    name = "pillow-simd"


def test_the_fastest_resizer_that_is_installed_is_used() -> None:
    fastest = next(
        name for name in ("native", "pillow-simd", "torch", "pillow") if name in installed_resizers()
    )
    assert resizer_name() == fastest


def test_pillow_does_without_torch_and_native_code() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from stager.recipes.image import native; native.library = None\n"
        "from stager.recipes.image.pixels.resize import resizer_name; print(resizer_name())"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    )
    assert result.stdout.strip() in ("pillow", "pillow-simd")
