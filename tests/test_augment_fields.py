"""Augmentation of several fields: an image, a depth map and a mask are cropped and flipped alike."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from fielded import stage_by_hand
from running import Place
from stager.errors import UsageError
from stager.reader.values import Arrays, Field
from stager_client.augment import (
    Augment,
    CentreCrop,
    ColourJitter,
    HorizontalFlip,
    RandomCrop,
    RandomResizedCrop,
)
from stager_client.numpy import StagedArrays
from stager_client.torch import StagedDataset, StagedLoader

SIDE, COUNT = 60, 12
PHOTO = Field("photo", "uint8", (SIDE, SIDE, 3), axes="HWC")
DEPTH = Field("depth", "uint16", (SIDE, SIDE, 1), axes="HWC")
HEIGHT = Field("height", "float32", (SIDE, SIDE, 1), axes="HWC")
MASK = Field("mask", "uint8", (SIDE, SIDE, 1), axes="HWC")
SMALL = Field("small", "uint8", (9, 9, 1), axes="HWC")
ROUGH = Field("rough", "uint8", (None, None, 1), axes="HWC")
CHANGES: dict[str, list[Augment]] = {
    "crop": [RandomCrop(40), HorizontalFlip()],
    "resized": [RandomResizedCrop(33, scale=(0.3, 1.0)), HorizontalFlip()],
}


def sample() -> Arrays:
    """Every pixel says where it is: the photo by two colours, the depth by a number, the mask by a class."""
    y, x = np.mgrid[:SIDE, :SIDE]
    return {
        "photo": np.stack([4 * x, 4 * y, 0 * x], axis=2).astype(np.uint8),
        "depth": (1000 * y + x)[:, :, None].astype(np.uint16),
        "height": (4.0 * x)[:, :, None].astype(np.float32),
        "mask": (200 * ((x // 7 + y // 7) % 2))[:, :, None].astype(np.uint8),
        "small": np.zeros((9, 9, 1), np.uint8),
    }


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    place = Place(tmp_path_factory.mktemp("fields")).configure("")
    fields = [PHOTO, DEPTH, HEIGHT, MASK, SMALL]
    stage_by_hand(place, "views", fields, [sample()] * COUNT)
    rough = [
        {"photo": sample()["photo"], "rough": np.zeros((SIDE, SIDE - at // 11, 1), np.uint8)}
        for at in range(COUNT)
    ]
    stage_by_hand(place, "rough", [PHOTO, ROUGH], rough)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STAGER_CONFIG", str(place.config))
        yield place


def options(kind: str, *names: str) -> dict[str, Any]:
    columns = list(names or ("photo", "depth", "height", "mask"))
    return {"augment": CHANGES[kind], "columns": columns, "shuffle": True, "seed": 4}


def check(values: dict[str, Any], kind: str) -> None:
    """Where each pixel came from, by each field."""
    x, y = values["depth"][..., 0] % 1000, values["depth"][..., 0] // 1000
    np.testing.assert_array_equal(values["mask"][..., 0], 200 * ((x // 7 + y // 7) % 2))
    off = 0 if kind == "crop" else 4  # between two pixels of the photo, next to one of the depth
    assert np.abs(values["photo"][..., 0].astype(int) - 4 * x).max() <= off
    assert np.abs(values["photo"][..., 1].astype(int) - 4 * y).max() <= off
    assert np.abs(values["height"][..., 0] - values["photo"][..., 0]).max() <= 0.75


@pytest.mark.parametrize("kind", CHANGES)
def test_all_fields_are_cropped_and_flipped_alike(place: Place, kind: str) -> None:
    corners = set()
    for values, _ in StagedArrays("views", 4, **options(kind)):
        check(values, kind)
        corners |= {(int(row[0, 0, 0]), int(row[0, -1, 0])) for row in values["depth"]}
    assert len(corners) == COUNT, "each sample has a crop of its own"


@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.parametrize("on_device", [False, True])
def test_torch_has_the_same_crops_also_on_the_device(place: Place, kind: str, on_device: bool) -> None:
    loader = StagedLoader(StagedDataset("views"), 4, augment_on_device=on_device, **options(kind))
    for (values, _), (arrays, _) in zip(loader, StagedArrays("views", 4, **options(kind)), strict=True):
        found = {name: column.permute(0, 2, 3, 1).numpy() for name, column in values.items()}
        check(found, kind)
        for name in ("depth", "mask"):
            # Of two pixels that are equally near, torch may take the other one: a column, or a row.
            assert (found[name] != arrays[name]).mean() <= (0.05 if on_device else 0)


def test_colours_change_in_the_image_alone(place: Place) -> None:
    jitter = {"augment": [ColourJitter(brightness=(0.5, 0.5))], "columns": ["photo", "mask"]}
    values, _ = next(iter(StagedArrays("views", 4, **jitter)))
    np.testing.assert_array_equal(values["mask"][0], sample()["mask"])
    assert int(values["photo"].max()) == round(4 * (SIDE - 1) / 2)
    with pytest.raises(UsageError, match="no colours"):
        StagedArrays("views", 4, augment=[ColourJitter(0.5)], columns=["mask"])


def test_only_the_fields_that_are_named_change(place: Place) -> None:
    values, _ = next(
        iter(StagedArrays("views", 4, augment_fields=["photo"], **options("crop", "photo", "mask")))
    )
    assert values["photo"].shape == (4, 40, 40, 3)
    np.testing.assert_array_equal(values["mask"][0], sample()["mask"])
    with pytest.raises(UsageError, match="no field 'phto'"):
        StagedArrays("views", 4, augment_fields=["phto"], **options("crop"))


def test_fields_of_other_sizes_are_refused_with_a_way_out(place: Place) -> None:
    with pytest.raises(UsageError, match="differ in size") as raised:
        StagedArrays("views", 4, **options("crop", "photo", "small"))
    assert "augment_fields" in raised.value.hint
    with pytest.raises(UsageError, match="cannot be augmented alike"):
        list(StagedArrays("rough", 4, augment=[CentreCrop(20)]))
