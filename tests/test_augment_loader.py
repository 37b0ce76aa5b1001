"""Augmentation in the loader: pixels that depend on seed, epoch and key alone."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from augmenting import applied, usual
from making import image_folder
from running import Place
from stager.errors import UsageError
from stager.reader.order import epoch_order
from stager_client.augment import (
    Augment,
    CentreCrop,
    ColourJitter,
    HorizontalFlip,
    RandomCrop,
    RandomResizedCrop,
)
from stager_client.augment.transforms import Chain
from stager_client.numpy import StagedArrays
from stager_client.torch import Normalise, StagedDataset, StagedLoader

SAMPLES = 60
Pixels = dict[int, bytes]


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


def pixels_of(loader: StagedLoader, batches: int = SAMPLES) -> Pixels:
    """What the next batches have, by the sample's number in the manifest."""
    found: Pixels = {}
    for _, batch in zip(range(batches), loader.loader, strict=False):
        numbers = loader.loader.samples.numbers[batch.positions].tolist()
        for number, image in zip(numbers, batch.columns["image"], strict=True):
            assert found.setdefault(number, image.tobytes()) == image.tobytes()
    return found


@pytest.fixture(scope="module")
def whole(data: StagedDataset) -> Pixels:
    """One epoch, batch by batch of 8."""
    return pixels_of(StagedLoader(data, 8, shuffle=True, seed=3, augment=usual()))


@pytest.mark.parametrize("name", ["data", "jpeg", "uneven"])
def test_a_loader_gives_what_the_chain_makes_of_each_image(place: Place, name: str) -> None:
    data = StagedDataset(name)
    hashes = data.samples.key_hashes(np.arange(SAMPLES))
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


@pytest.mark.parametrize(
    "other",
    [
        [],
        usual()[:2],
        [RandomResizedCrop(24, scale=(0.5, 1.0)), *usual()[1:]],
        [*usual()[:2], ColourJitter(0.4)],
    ],
)
def test_a_run_is_not_resumed_with_another_augment(data: StagedDataset, other: list[Augment]) -> None:
    first = StagedLoader(data, 8, augment=usual())
    next(iter(first))
    with pytest.raises(UsageError, match="another augment"):
        StagedLoader(data, 8, augment=other).load_state_dict(first.state_dict())
    StagedLoader(data, 8, augment=usual()).load_state_dict(first.state_dict())


def test_a_device_gives_the_pixels_of_the_threads_but_for_rounding(
    data: StagedDataset, whole: Pixels
) -> None:
    """What runs on a GPU, here on the CPU."""
    loader = StagedLoader(data, 7, shuffle=True, seed=3, augment=usual(), augment_on_device=True)
    order = epoch_order(SAMPLES, 3, 0).tolist()
    found = torch.cat([images for images, _ in loader]).permute(0, 2, 3, 1).numpy().astype(int)
    for number, image in zip(order, found, strict=True):
        threads = np.frombuffer(whole[number], np.uint8).reshape(24, 24, 3)
        assert np.abs(image - threads).max() <= 6
