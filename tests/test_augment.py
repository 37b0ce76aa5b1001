"""Augmentation: torchvision's definitions, image by image."""

import math
import sys
from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from augmenting import applied, image_of, usual
from stager.errors import StagerError, UsageError
from stager_client.augment import (
    Augment,
    CentreCrop,
    ColourJitter,
    HorizontalFlip,
    RandomCrop,
    RandomResizedCrop,
    transforms,
)
from stager_client.augment.transforms import Chain
from stager_client.torch import Normalise

UNIFORM = st.floats(0, 1, exclude_max=True)


def draws_of(augments: list[Augment], shape: tuple[int, ...], count: int, seed: int = 0) -> list[list[float]]:
    key_hashes = np.random.default_rng(1).integers(0, 2**64, count, dtype=np.uint64)
    return Chain(augments, shape).uniforms(key_hashes, seed, 0)


def differ(one: npt.ArrayLike, other: npt.ArrayLike) -> float:
    """Kolmogorov and Smirnov's distance of two samples, over the limit it stays under 999 times of 1000."""
    a, b = np.sort(np.asarray(one)), np.sort(np.asarray(other))
    places = np.concatenate([a, b])
    below = np.searchsorted(a, places, "right") / len(a) - np.searchsorted(b, places, "right") / len(b)
    return float(np.abs(below).max()) / (1.95 * math.sqrt(1 / len(a) + 1 / len(b)))


class TestNumbers:
    def test_they_are_this_function_for_good(self) -> None:
        """In plain integers. Another function would change the pixels of a run that is resumed after it."""
        wrap = 2**64 - 1

        def mixed(value: int, seed: int) -> int:
            start = (seed * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) & wrap
            value ^= start ^ start >> 29
            value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & wrap
            value = (value ^ value >> 27) * 0x94D049BB133111EB & wrap
            return value ^ value >> 31

        key_hashes, salt = [3, 2**64 - 5, 0], 0x5354414745524155
        chain = Chain([RandomCrop(2), CentreCrop(2), HorizontalFlip()], (4, 4, 3))
        for key_hash, row in zip(
            key_hashes, chain.uniforms(np.array(key_hashes, np.uint64), 7, 11), strict=True
        ):
            of_sample = mixed(mixed(key_hash, 7), 11)
            salts = [mixed(mixed(draw, which), salt) for which, draw in [(0, 0), (0, 1), (2, 0)]]
            assert row == [(mixed(of_sample ^ own, salt) >> 11) / 2**53 for own in salts]

    def test_they_are_uniform_and_know_nothing_of_each_other(self) -> None:
        rows = [draws_of([RandomResizedCrop(8), HorizontalFlip()], (9, 9, 3), 5000, seed) for seed in (0, 1)]
        numbers = np.concatenate([np.asarray(part) for part in rows], axis=1)
        assert numbers.shape == (5000, 46)
        assert 0 <= numbers.min() < numbers.max() < 1
        counts = np.stack([np.histogram(column, 20, (0, 1))[0] for column in numbers.T])
        assert ((counts - 250) ** 2 / 250).sum(axis=1).max() < 55  # chi-square, 19 degrees: 1 in 40,000
        apart = np.corrcoef(numbers.T) - np.eye(46)
        assert np.abs(apart).max() < 4.5 / math.sqrt(5000)


class TestRandomResizedCrop:
    @staticmethod
    def torchvision_box(
        rng: np.random.Generator, height: int, width: int, scale: tuple[float, float], ratio: Any
    ) -> tuple[int, int, int, int]:
        """RandomResizedCrop.get_params of torchvision 0.28, with NumPy's random numbers."""
        for _ in range(10):
            target_area = height * width * rng.uniform(*scale)
            aspect_ratio = math.exp(rng.uniform(*np.log(ratio)))
            w = round(math.sqrt(target_area * aspect_ratio))
            h = round(math.sqrt(target_area / aspect_ratio))
            if 0 < w <= width and 0 < h <= height:
                return int(rng.integers(0, height - h + 1)), int(rng.integers(0, width - w + 1)), h, w
        in_ratio = width / height
        if in_ratio < min(ratio):
            w, h = width, round(width / min(ratio))
        elif in_ratio > max(ratio):
            w, h = round(height * max(ratio)), height
        else:
            w, h = width, height
        return (height - h) // 2, (width - w) // 2, h, w

    @pytest.mark.parametrize(
        ("height", "width", "scale", "ratio"),
        [
            (256, 256, (0.08, 1.0), (3 / 4, 4 / 3)),
            (256, 341, (0.35, 1.0), (3 / 4, 4 / 3)),
            (60, 400, (0.2, 1.0), (3 / 4, 4 / 3)),  # most tries fail
            (500, 50, (0.8, 1.0), (0.8, 1.25)),  # all do
        ],
    )
    def test_boxes_are_spread_as_torchvisions(
        self, height: int, width: int, scale: tuple[float, float], ratio: tuple[float, float]
    ) -> None:
        crop, rng = RandomResizedCrop(8, scale, ratio), np.random.default_rng(2)
        rows = draws_of([crop], (height, width, 3), 8000)
        ours = np.asarray([crop.box(height, width, row) for row in rows])
        theirs = np.asarray([self.torchvision_box(rng, height, width, scale, ratio) for _ in range(8000)])
        assert (ours[:, :2] >= 0).all()
        assert (ours[:, :2] + ours[:, 2:] <= (height, width)).all()
        for a, b in zip(ours.T, theirs.T, strict=True):
            assert differ(a, b) < 1
        assert differ(ours[:, 2] * ours[:, 3], theirs[:, 2] * theirs[:, 3]) < 1
        assert differ(ours[:, 3] / ours[:, 2], theirs[:, 3] / theirs[:, 2]) < 1

    def test_a_box_lies_everywhere_as_often(self) -> None:
        crop = RandomResizedCrop(8, (0.25, 0.25), (1.0, 1.0))
        boxes = [crop.box(4, 4, row) for row in draws_of([crop], (4, 4, 3), 4500)]
        places, counts = np.unique(boxes, axis=0, return_counts=True)
        assert places.tolist() == [[top, left, 2, 2] for top in range(3) for left in range(3)]
        assert ((counts - 500) ** 2 / 500).sum() < 32

    @settings(max_examples=60, deadline=None)
    @given(
        sides=st.tuples(st.integers(1, 50), st.integers(1, 50)),
        size=st.tuples(st.integers(1, 40), st.integers(1, 40)),
        channels=st.sampled_from([1, 3, 4]),
        uniforms=st.lists(UNIFORM, min_size=22, max_size=22),
    )
    def test_pixels_are_those_of_the_box_resized(
        self, sides: tuple[int, int], size: tuple[int, int], channels: int, uniforms: list[float]
    ) -> None:
        crop, image = RandomResizedCrop(size), image_of(*sides, channels)
        top, left, height, width = crop.box(*sides, uniforms)
        part = np.ascontiguousarray(image[top : top + height, left : left + width])
        expected = cv2.resize(part, size[::-1], interpolation=cv2.INTER_LINEAR).reshape(*size, channels)
        assert (applied([crop], image, uniforms) == expected).all()


@settings(max_examples=200, deadline=None)
@given(
    sides=st.tuples(st.integers(1, 12), st.integers(1, 12)),
    size=st.tuples(st.integers(1, 14), st.integers(1, 14)),
    padding=st.integers(0, 16),
    uniforms=st.tuples(UNIFORM, UNIFORM),
)
def test_a_random_crop_is_a_part_of_the_padded_image(
    sides: tuple[int, int], size: tuple[int, int], padding: int, uniforms: tuple[float, float]
) -> None:
    image = image_of(*sides)
    padded = np.pad(image, ((padding, padding), (padding, padding), (0, 0)))
    room = [have - want + 1 for have, want in zip(padded.shape[:2], size, strict=True)]
    if min(room) < 1:
        with pytest.raises(UsageError, match="larger than"):
            Chain([RandomCrop(size, padding)], image.shape)
        return
    top, left = (math.floor(number * places) for number, places in zip(uniforms, room, strict=True))
    found = applied([RandomCrop(size, padding)], image, list(uniforms))
    assert (found == padded[top : top + size[0], left : left + size[1]]).all()


def test_a_random_crop_lies_everywhere_as_often() -> None:
    crop, image = RandomCrop(4, padding=1), np.arange(36, dtype=np.uint8).reshape(6, 6, 1) + 1
    rows = draws_of([crop], image.shape, 5000)
    corners = [applied([crop], image, row)[1, 1, 0] for row in rows]  # never in the padding
    _, counts = np.unique(corners, return_counts=True)
    assert len(counts) == 25
    assert ((counts - 200) ** 2 / 200).sum() < 60


@pytest.mark.parametrize(
    ("height", "width", "top", "left"), [(9, 9, 2, 2), (10, 7, 2, 1), (5, 5, 0, 0), (6, 8, 0, 2)]
)
def test_a_centre_crop_rounds_as_torchvision_does(height: int, width: int, top: int, left: int) -> None:
    image = image_of(height, width)
    assert (applied([CentreCrop(5)], image, []) == image[top : top + 5, left : left + 5]).all()


def test_a_flip_is_a_coin() -> None:
    image = image_of(5, 7)
    rows = draws_of([HorizontalFlip(0.3)], image.shape, 20000)
    flipped = [not HorizontalFlip(0.3).idle(row) for row in rows]
    assert abs(sum(flipped) - 6000) < 4 * math.sqrt(20000 * 0.3 * 0.7)
    for row, turned in zip(rows[:50], flipped[:50], strict=True):
        assert (applied([HorizontalFlip(0.3)], image, row) == (image[:, ::-1] if turned else image)).all()
    assert HorizontalFlip(0).idle([0.0])
    assert not HorizontalFlip(1).idle([math.nextafter(1, 0)])


class TestColourJitter:
    @staticmethod
    def torchvision_step(which: int, image: npt.NDArray[Any], factor: float) -> npt.NDArray[Any]:
        """adjust_brightness, adjust_contrast and adjust_saturation of torchvision 0.28 on uint8 tensors."""
        grey = (image @ np.asarray([0.2989, 0.587, 0.114])).astype(np.uint8)[..., None]
        other = [0.0, grey.mean(), grey][which]
        blend = factor * image + (1.0 - factor) * other
        return np.asarray(np.clip(blend, 0, 255), dtype=np.uint8)

    @pytest.mark.parametrize("which", range(3))
    @pytest.mark.parametrize("factor", [0.0, 0.3, 1.4, 2.5])
    def test_a_step_is_torchvisions_but_for_rounding(self, which: int, factor: float) -> None:
        image = image_of(31, 27)
        spans = [(1.0, 1.0)] * 3
        spans[which] = (factor, factor)
        found = applied([ColourJitter(*spans)], image, [0.9, 0.5, 0.5, 0.5]).astype(int)
        assert np.abs(found - self.torchvision_step(which, image, factor)).max() <= 2

    @settings(max_examples=60, deadline=None)
    @given(uniforms=st.lists(UNIFORM, min_size=4, max_size=4))
    def test_steps_come_in_the_order_and_by_the_factors_drawn(self, uniforms: list[float]) -> None:
        image = image_of(20, 24)
        expected: npt.NDArray[Any] = image
        orders = [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)]
        for which in orders[int(6 * uniforms[0])]:
            expected = self.torchvision_step(which, expected, 0.6 + 0.8 * uniforms[1 + which])
        found = applied([ColourJitter(0.4, 0.4, 0.4)], image, uniforms).astype(int)
        assert np.abs(found - expected).max() <= 6

    def test_nothing_to_change_changes_nothing(self) -> None:
        assert ColourJitter().idle([0.5] * 4)
        assert (applied([ColourJitter()], image_of(4, 5), [0.5] * 4) == image_of(4, 5)).all()


CHANGES = st.one_of(
    st.builds(RandomCrop, st.tuples(st.integers(1, 9), st.integers(1, 9)), st.just(9)),
    st.builds(RandomResizedCrop, st.tuples(st.integers(1, 30), st.integers(1, 30))),
    st.builds(HorizontalFlip),
    st.builds(ColourJitter, st.sampled_from([0, 0.5]), st.just(0), st.sampled_from([0, 0.5])),
)


@settings(max_examples=300, deadline=None)
@given(changes=st.lists(CHANGES, max_size=5).map(list[Augment]), key=st.integers(0, 2**64 - 1))
def test_a_chain_is_its_augmentations_one_after_the_other(changes: list[Augment], key: int) -> None:
    """Whatever is skipped or done in place."""
    image = image_of(9, 8)
    before = image.copy()
    chain = Chain([*changes, *usual()][: len(changes) or 1], image.shape)
    out = np.full(chain.out_shape, 77, np.uint8)
    for epoch in range(3):
        (row,) = chain.uniforms(np.asarray([key], np.uint64), 0, epoch)
        expected, at = image, 0
        for change in chain.augments:
            expected = applied([change], expected.copy(), row[at : at + change.draws])
            at += change.draws
        chain.apply(image, row, out)
        assert (out == expected).all()
    assert (image == before).all()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: RandomResizedCrop(0),
        lambda: RandomResizedCrop(8, scale=(0.5, 0.1)),
        lambda: RandomResizedCrop(8, scale=(8, 100)),
        lambda: RandomResizedCrop(8, ratio=(0, 1)),
        lambda: CentreCrop((3, -1)),
        lambda: RandomCrop(8, padding=-1),
        lambda: HorizontalFlip(1.5),
        lambda: ColourJitter(brightness=-0.1),
        lambda: ColourJitter(contrast=(1.5, 0.5)),
        lambda: Chain([CentreCrop(9)], (8, 20, 3)),
        lambda: Chain([CentreCrop(6), RandomCrop(7)], (8, 8, 3)),
        lambda: Chain([ColourJitter(0.1)], (8, 8, 1)),
        lambda: Chain([HorizontalFlip()], (None, None, 3)),
        lambda: Normalise([0.5], [0.5, 0.5]),
        lambda: Normalise([0.5], [0.0]),
        lambda: Normalise([0.5], [0.5], torch.uint8),
    ],
)
def test_arguments_that_make_no_sense_are_refused(wrong: Callable[[], object]) -> None:
    with pytest.raises(UsageError) as refused:
        wrong()
    assert refused.value.hint


def test_without_opencv_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    transforms._cv2.cache_clear()
    with pytest.raises(StagerError) as refused:
        HorizontalFlip()
    assert "stager[augment]" in refused.value.hint
    CentreCrop(4)  # needs none


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_normalise_is_torchvisions_on_a_whole_batch(dtype: torch.dtype) -> None:
    images = torch.from_numpy(np.stack([image_of(6, 5), image_of(6, 5)])).permute(0, 3, 1, 2)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    found = Normalise(mean.tolist(), std.tolist(), dtype)(images)
    expected = (images.double() / 255 - mean[:, None, None]) / std[:, None, None]
    assert found.dtype == dtype
    assert found.is_contiguous(memory_format=torch.channels_last)
    precision = torch.finfo(dtype).eps
    assert torch.allclose(found.double(), expected, rtol=precision, atol=1e-5)
