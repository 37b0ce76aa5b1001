"""What the compiled loops promise, and what stands in for them where there was no compiler."""

import os
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from images import resize_as_pillow_13
from stager import native
from stager.recipes.resize import Window, resize_by_native

SIZES = st.tuples(st.integers(1, 60), st.integers(1, 60))


def compiled_or_skip() -> None:
    if native.library is None:
        assert not os.environ.get("CI"), "stager/native.c was not compiled"
        pytest.skip("stager/native.c was not compiled")


@settings(max_examples=300, deadline=None)
@given(
    st.tuples(*[st.integers(1, 60)] * 2),
    st.tuples(*[st.integers(1, 60)] * 2),
    st.randoms(use_true_random=False),
)
def test_any_window_of_any_size_has_the_pixels_of_pillow(
    size: tuple[int, int], resized: tuple[int, int], random: Random
) -> None:
    compiled_or_skip()
    pixels = np.frombuffer(random.randbytes(size[0] * size[1] * 3), np.uint8).reshape(*size, 3)
    top, left = random.randrange(resized[0]), random.randrange(resized[1])
    height, width = random.randint(1, resized[0] - top), random.randint(1, resized[1] - left)
    got = resize_by_native(pixels, *resized, Window(top, left, height, width))
    whole = resize_as_pillow_13(pixels, *resized)
    assert np.array_equal(got, whole[top : top + height, left : left + width])
