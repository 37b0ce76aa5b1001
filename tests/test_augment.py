"""Augmentation: torchvision's definitions, and pixels that depend on seed, epoch and key alone."""

import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from making import image_folder
from running import Place
from stager.errors import StagerError, UsageError
from stager_client import augment
from stager_client.augment import (
    Augment,
    CentreCrop,
    Chain,
    ColourJitter,
    HorizontalFlip,
    Image,
    RandomCrop,
    RandomResizedCrop,
)
from stager_client.numpy import StagedArrays
from stager_client.torch import Normalise, StagedDataset, StagedLoader

SAMPLES = 60
UNIFORM = st.floats(0, 1, exclude_max=True)
Pixels = dict[int, bytes]


def image_of(height: int, width: int, channels: int = 3) -> Image:
    image = np.random.default_rng(height * width).integers(0, 256, (height, width, channels), dtype=np.uint8)
    image.flags.writeable = False  # as from a mapped shard
    return image


def applied(augments: list[Augment], image: Image, uniforms: list[float]) -> Image:
    chain = Chain(augments, image.shape)
    out = np.full(chain.out_shape, 77, np.uint8)
    chain.apply(image, uniforms, out)
    return out


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
    augment._cv2.cache_clear()
    with pytest.raises(StagerError) as refused:
        HorizontalFlip()
    assert "stager[torch]" in refused.value.hint
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


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    root = tmp_path_factory.mktemp("augment")
    image_folder(root / "source", 6, 10)
    recipes = {"data": "crop = 32", "uneven": "crop = 0", "jpeg": 'crop = 32, encode = "jpeg"'}
    tables = [
        f'[datasets.{name}]\nsource = "{root}/source"\nrecipe = {{resize = 36, {recipe}}}\n'
        for name, recipe in recipes.items()
    ]
    place = Place(root).configure("".join(tables))
    for name in recipes:
        assert place.run("prefetch", name).returncode == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STAGER_CONFIG", str(place.config))
        yield place


@pytest.fixture(scope="module")
def data(place: Place) -> StagedDataset:
    return StagedDataset("data")


def usual() -> list[Augment]:
    return [RandomResizedCrop(24), HorizontalFlip(), ColourJitter(0.4, 0.4, 0.4)]


def pixels_of(loader: StagedLoader, batches: int = SAMPLES) -> Pixels:
    """What the next batches have, by the sample's number in the manifest."""
    found: Pixels = {}
    for _, batch in zip(range(batches), loader.loader, strict=False):
        numbers = loader.loader.samples.numbers[batch.positions].tolist()
        for number, image in zip(numbers, batch.fields["image"], strict=True):
            assert found.setdefault(number, image.tobytes()) == image.tobytes()
    return found


@pytest.fixture(scope="module")
def whole(data: StagedDataset) -> Pixels:
    """One epoch, batch by batch of 8."""
    return pixels_of(StagedLoader(data, 8, shuffle=True, seed=3, augment=usual()))


@pytest.mark.parametrize("name", ["data", "jpeg", "uneven"])
def test_a_loader_gives_what_the_chain_makes_of_each_image(place: Place, name: str) -> None:
    data = StagedDataset(name)
    hashes = data.samples.reader.manifest.key_hashes
    images: list[torch.Tensor] = []
    for batch, _ in StagedLoader(data, 7, seed=5, augment=usual()):
        assert batch.dtype == torch.uint8
        assert batch.shape[1:] == (3, 24, 24)
        assert batch.is_contiguous(memory_format=torch.channels_last)
        images.extend(batch)  # kept: its buffer is not used again
    assert len(images) == SAMPLES
    for number, found in enumerate(images):
        source = np.ascontiguousarray(data[number][0].permute(1, 2, 0).numpy())
        (row,) = Chain(usual(), source.shape).uniforms(hashes[number : number + 1], 5, 0)
        assert (applied(usual(), source, row) == found.permute(1, 2, 0).numpy()).all()


@pytest.mark.parametrize(("batch", "threads"), [(1, 1), (13, 3), (60, 2)])
def test_pixels_do_not_depend_on_the_batch(
    data: StagedDataset, whole: Pixels, batch: int, threads: int
) -> None:
    for shuffle in (True, False):
        loader = StagedLoader(data, batch, shuffle=shuffle, seed=3, threads=threads, augment=usual())
        assert pixels_of(loader) == whole


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("stop", [1, 5])
def test_a_run_that_is_resumed_on_other_ranks_sees_the_same_pixels(
    data: StagedDataset, whole: Pixels, world_size: int, stop: int
) -> None:
    first = StagedLoader(data, 8, shuffle=True, seed=3, augment=usual())
    found = pixels_of(first, stop)
    state = first.state_dict()
    for rank in range(world_size):
        loader = StagedLoader(data, 5, shuffle=True, rank=rank, world_size=world_size, augment=usual())
        loader.load_state_dict(state)  # the seed, too
        rest = pixels_of(loader)
        assert rest.items() <= whole.items()
        found |= rest
    assert found == whole


def test_a_subset_has_the_pixels_of_the_whole(place: Place, whole: Pixels) -> None:
    part = pixels_of(StagedLoader(StagedDataset("data", classes=2, seed=1), 8, seed=3, augment=usual()))
    assert len(part) == 20
    assert part.items() <= whole.items()


def test_another_epoch_or_seed_has_other_pixels_and_the_same_epoch_the_same(
    data: StagedDataset, whole: Pixels
) -> None:
    loader = StagedLoader(data, 8, shuffle=True, seed=3, augment=usual())
    assert pixels_of(loader, 99) == whole
    second = pixels_of(loader, 99)
    other = pixels_of(StagedLoader(data, 8, shuffle=True, seed=4, augment=usual()))
    for number in range(SAMPLES):
        assert len({whole[number], second[number], other[number]}) == 3
    loader.set_epoch(0)
    run = iter(loader)
    next(run)
    loader.set_epoch(5)  # is of the next iteration, not of this one
    rest = [image.permute(1, 2, 0).numpy().tobytes() for images, _ in run for image in images]
    assert set(rest) <= set(whole.values())


def test_numpy_has_torchs_pixels(place: Place, data: StagedDataset) -> None:
    arrays = StagedArrays("data", 8, shuffle=True, seed=4, augment=usual())
    loader = StagedLoader(data, 8, shuffle=True, seed=4, augment=usual())
    for (images, _), (tensors, _) in zip(arrays, loader, strict=True):
        assert images.dtype == np.uint8
        assert (images == tensors.permute(0, 2, 3, 1).numpy()).all()


def test_the_batch_is_normalised_by_the_transform(data: StagedDataset) -> None:
    normalise = Normalise([0.5] * 3, [0.25] * 3, torch.float16)
    for images, _ in StagedLoader(data, 8, augment=[CentreCrop(20)], transform=normalise, device="cpu"):
        assert images.dtype == torch.float16
        assert images.shape[1:] == (3, 20, 20)
        assert -2 <= float(images.min()) < float(images.max()) <= 2


def test_a_crop_larger_than_the_images_is_refused_before_the_first_batch(data: StagedDataset) -> None:
    with pytest.raises(UsageError, match="larger than an image of 32 x 32"):
        StagedLoader(data, 4, augment=[RandomCrop(40)])


def test_where_images_differ_the_first_that_is_too_small_is_refused(place: Place) -> None:
    uneven = StagedDataset("uneven")  # 36 x 48
    assert next(iter(StagedLoader(uneven, 4, augment=[CentreCrop(36)])))[0].shape == (4, 3, 36, 36)
    with pytest.raises(UsageError, match="larger than an image of 36 x 48"):
        next(iter(StagedLoader(uneven, 4, augment=[CentreCrop(40)])))
    with pytest.raises(UsageError, match="differ in size"):
        StagedLoader(uneven, 4, augment=[HorizontalFlip()])
