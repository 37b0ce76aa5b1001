"""STAGER_NATIVE=0: the same bytes are staged and read without any of our C, and `status` tells."""

import os
from pathlib import Path

import numpy as np
import pytest

from images import are_same
from making import image_folder
from running import Place
from sets import staged, table, wait_for
from stager.recipes.image import native

READ = """
import sys
import numpy as np
from stager.recipes.image import native
from stager_client.numpy import StagedArrays
arrays = StagedArrays("pets", 7)
for _ in range(2):  # checked, and then not
    images = np.concatenate([images for images, _ in arrays])
np.save(sys.argv[1], images)
print(native.describe())
"""
RECIPE = "resize = 64\ncrop = 48"  # most photos take the short way, where there is one
OFF = {"STAGER_NATIVE": "0"}


@pytest.fixture(autouse=True)
def is_compiled() -> None:
    if not native.decodes_jpeg():
        assert not os.environ.get("CI"), "stager/recipes/image/c/jpeg.c was not compiled"
        pytest.skip("stager/recipes/image/c/jpeg.c was not compiled")


def place_for(root: Path, source: Path, **environ: str) -> Place:
    root.mkdir()
    return Place(root, environ).configure(table("pets", source, RECIPE))


def read(place: Place) -> tuple[str, np.ndarray[tuple[int, ...], np.dtype[np.uint8]]]:
    out = place.root / "read.npy"
    done = place.python(READ, str(out))
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), np.load(out)


def test_a_prefetch_and_a_read_without_our_c_give_the_same_bytes(tmp_path: Path) -> None:
    image_folder(tmp_path / "source", 3, 12)
    with_it = place_for(tmp_path / "with", tmp_path / "source")
    without = place_for(tmp_path / "without", tmp_path / "source", **OFF)
    for place in (with_it, without):
        assert place.json("prefetch", "pets")["staged"] == 36
    right, other = staged(with_it, "pets"), staged(without, "pets")
    assert right.keys() == other.keys()
    assert all(are_same(right[key], other[key]) for key in right)
    (way, images), (other_way, other_images) = read(with_it), read(without)
    assert (way.startswith("jpeg+resize ("), other_way) == (True, "off (STAGER_NATIVE=0)")
    assert are_same(images, other_images)
    assert np.array_equal(images, np.stack([right[key] for key in sorted(right)]))


@pytest.mark.parametrize("environ", [{}, OFF], ids=["with it", "without it"])
def test_status_says_which_way_is_used(environ: dict[str, str], tmp_path: Path) -> None:
    image_folder(tmp_path / "source", 1, 4)
    place = place_for(tmp_path / "place", tmp_path / "source", **environ)
    way = "off (STAGER_NATIVE=0)" if environ else native.describe()
    assert place.json("status", code=4)["service"]["native"] == way
    with place.service():
        wait_for(lambda: place.json("status")["service"]["native"] == way)
        assert f"native:  {way}\n" in place.run("status").stdout
