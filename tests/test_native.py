"""What the compiled loops promise, and what stands in for them where there was no compiler."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from images import resize_as_pillow_13
from stager import native
from stager.recipes.resize import Window, resize_by_native

ROW_BYTES = 5000
SIZES = st.tuples(st.integers(1, 60), st.integers(1, 60))
Rows = npt.NDArray[np.uint8]


@pytest.fixture(params=["native", "python"])
def read_rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test is run with both."""
    if request.param == "python":
        monkeypatch.setattr(native, "library", None)
    elif native.library is None:
        compiled_or_skip()


def compiled_or_skip() -> None:
    if native.library is None:
        assert not os.environ.get("CI"), "stager/native.c was not compiled"
        pytest.skip("stager/native.c was not compiled")


@pytest.fixture
def files(tmp_path: Path) -> Iterator[tuple[list[int], Rows]]:
    """Three files of ten rows each, open, and what is in them."""
    rows = np.random.default_rng(0).integers(0, 256, (30, ROW_BYTES), np.uint8)
    with ExitStack() as stack:
        found = []
        for number in range(3):
            path = tmp_path / str(number)
            path.write_bytes(rows[number * 10 : number * 10 + 10].tobytes())
            found.append(stack.enter_context(path.open("rb")).fileno())
        yield found, rows


@pytest.mark.usefixtures("read_rows")
def test_rows_of_many_files_come_to_their_places(files: tuple[list[int], Rows]) -> None:
    descriptors, rows = files
    order = np.random.default_rng(1).permutation(30)
    out = np.zeros((40, ROW_BYTES), np.uint8)
    lost = native.read_rows(
        [descriptors[number // 10] for number in order],
        [int(number % 10) * ROW_BYTES for number in order],
        list(range(39, 9, -1)),
        out,
    )
    assert lost == []
    assert np.array_equal(out[39:9:-1], rows[order])
    assert not out[:10].any()


@pytest.mark.usefixtures("read_rows")
def test_what_cannot_be_read_whole_is_told_and_the_others_are_right(
    files: tuple[list[int], Rows], tmp_path: Path
) -> None:
    descriptors, rows = files
    closed = os.open(tmp_path, os.O_RDONLY)
    os.close(closed)
    folder = os.open(tmp_path, os.O_RDONLY)
    asked = [
        (descriptors[0], 0),
        (closed, 0),
        (descriptors[1], 9 * ROW_BYTES),
        (descriptors[1], 9 * ROW_BYTES + 1),  # it ends a byte too soon
        (folder, 0),
        (descriptors[2], 10 * ROW_BYTES),  # nothing is there
        (descriptors[2], ROW_BYTES),
    ]
    out = np.zeros((7, ROW_BYTES), np.uint8)
    try:
        places = np.arange(7)[::-1]
        lost = native.read_rows([fd for fd, _ in asked], [at for _, at in asked], places, out)
    finally:
        os.close(folder)
    assert lost == [1, 3, 4, 5]
    assert np.array_equal(out[places[[0, 2, 6]]], rows[[0, 19, 21]])


@pytest.mark.usefixtures("read_rows")
def test_no_row_at_all_is_no_error() -> None:
    assert native.read_rows([], [], [], np.zeros((4, ROW_BYTES), np.uint8)) == []


@pytest.mark.usefixtures("read_rows")
def test_a_place_that_is_not_there_is_refused(files: tuple[list[int], Rows]) -> None:
    descriptors, _ = files
    for place in (4, -1):
        with pytest.raises(AssertionError):
            native.read_rows(descriptors[:1], [0], [place], np.zeros((4, ROW_BYTES), np.uint8))


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
