"""What the compiled loops promise, and what stands in for them where there was no compiler."""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from random import Random
from tempfile import mkdtemp

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from images import resize_as_pillow_13
from stager.recipes.image import native
from stager.recipes.image.pixels.resize import CropBox, resize_by_native

SIZES = st.tuples(st.integers(1, 60), st.integers(1, 60))  # height, width


def compiled_or_skip() -> None:
    if native.library is None:
        assert not os.environ.get("CI"), "stager/recipes/image/c/resize.c was not compiled"
        pytest.skip("stager/recipes/image/c/resize.c was not compiled")


CPUS = {"what this one has": "", "AVX2": "-DSTAGER_WITHOUT_VNNI", "none of it": "-DSTAGER_WITHOUT_AVX2"}


@cache
def library_for(cpu: str) -> ctypes.CDLL:
    """The code that a CPU which has no more than that would run."""
    assert native.library is not None
    if not CPUS[cpu]:
        return native.library
    here = Path(native.__file__).parent
    sources = [str(here / "c" / name) for name in ("resize.c", "vnni.c", "trial.c", "png.c")]
    made = Path(mkdtemp(prefix="stager-native-")) / "native.so"
    try:
        command = ["cc", "-O3", "-shared", "-fPIC", CPUS[cpu], *sources, "-lm", "-o", str(made)]
        subprocess.run(command, check=True)
        return native.declare(ctypes.CDLL(str(made)))
    finally:
        shutil.rmtree(made.parent)


@contextmanager
def on_cpu(cpu: str) -> Iterator[None]:
    library, native.library = native.library, library_for(cpu)
    try:
        yield
    finally:
        native.library = library


@pytest.mark.parametrize("cpu", CPUS)
@settings(max_examples=300, deadline=None)
@given(
    size=SIZES,
    resized=SIZES,
    random=st.randoms(use_true_random=False),
)
def test_any_window_of_any_size_has_the_pixels_of_pillow(
    cpu: str, size: tuple[int, int], resized: tuple[int, int], random: Random
) -> None:
    compiled_or_skip()
    pixels = np.frombuffer(random.randbytes(size[0] * size[1] * 3), np.uint8).reshape(*size, 3)
    top, left = random.randrange(resized[0]), random.randrange(resized[1])
    height, width = random.randint(1, resized[0] - top), random.randint(1, resized[1] - left)
    with on_cpu(cpu):
        got = resize_by_native(pixels, *resized, CropBox(top, left, height, width))
    whole = resize_as_pillow_13(pixels, *resized)
    assert np.array_equal(got, whole[top : top + height, left : left + width])


@pytest.mark.parametrize("cpu", CPUS)
def test_a_line_of_many_pixels_has_those_of_pillow(cpu: str) -> None:
    compiled_or_skip()
    pixels = np.random.default_rng(1).integers(0, 256, (3, 30_000, 3), np.uint8)
    with on_cpu(cpu):
        got = resize_by_native(pixels, 2, 20_000, CropBox(0, 0, 2, 20_000))
    assert np.array_equal(got, resize_as_pillow_13(pixels, 2, 20_000))
