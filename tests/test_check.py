"""`check`: bits that flip in a row after a process has read it once."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("torch")

from making import image_folder
from running import Place
from sets import flip_a_bit, shard_files, staged, table
from stager.errors import UsageError
from stager_client.numpy import StagedArrays
from stager_client.torch import StagedDataset, StagedLoader

COUNT = 24
NAMES = ("single", "batches", "arrays", "jpeg")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    place = Place(tmp_path_factory.mktemp("check"))
    image_folder(place.root / "source", 4, COUNT // 4)
    recipes = dict.fromkeys(NAMES, "crop = 32") | {"jpeg": 'crop = 32\nencode = "jpeg"'}
    place.configure("".join(table(name, place.root / "source", recipe) for name, recipe in recipes.items()))
    with place.service(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("STAGER_CONFIG", str(place.config))
        for name in NAMES:
            assert place.json("prefetch", name)["staged"] == COUNT
        yield place


def read(data: StagedDataset | StagedArrays | StagedLoader) -> list[npt.NDArray[np.uint8]]:
    """All samples, in the data set's order, as HWC."""
    if isinstance(data, StagedArrays):
        return [image.copy() for images, _ in data for image in images]
    if isinstance(data, StagedLoader):
        return [image.permute(1, 2, 0).numpy().copy() for images, _ in data for image in images]
    return [image.permute(1, 2, 0).numpy() for image, _ in data.__getitems__(range(COUNT))]


def opened(name: str, check: str) -> StagedDataset | StagedArrays | StagedLoader:
    if name == "arrays":
        return StagedArrays(name, 5, check=check)
    data = StagedDataset(name, check=check)
    return data if name == "single" else StagedLoader(data, 5)


@pytest.mark.parametrize("name", NAMES)
def test_a_bit_that_flips_after_the_first_read_is_seen_and_healed_if_every_read_is_checked(
    served: Place, name: str
) -> None:
    first, always = opened(name, "first"), opened(name, "always")
    right = read(always)
    assert all(np.array_equal(*pair) for pair in zip(read(first), right, strict=True))
    flip_a_stored_bit(served, name)
    if name != "jpeg":  # what a decoder makes of a flipped bit is its own affair
        wrong = [np.array_equal(*pair) for pair in zip(read(first), right, strict=True)].count(False)
        assert wrong == 1  # the default does not look again: this is what it costs
    for _ in range(2):
        assert all(np.array_equal(*pair) for pair in zip(read(always), right, strict=True))
    assert len(staged(served, name)) == COUNT  # each as its checksum says


def flip_a_stored_bit(place: Place, name: str) -> None:
    (path,) = shard_files(place, name)
    flip_a_bit(path)


@pytest.mark.parametrize("check", ["", "never", True])
def test_what_cannot_be_meant_by_check_is_refused(served: Place, check: object) -> None:
    with pytest.raises(UsageError, match="check is"):
        StagedDataset("single", check=check)  # type: ignore[arg-type]
