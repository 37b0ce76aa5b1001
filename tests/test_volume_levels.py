"""Levels of OME-NGFF by the size of their voxels, in 0.4 and 0.5."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from stager.errors import UsageError
from stager.layouts import check_layout
from volumes import Staging, joined, voxels, write_zarr


def write_levels(
    root: Path, zarr_format: int, unit: str | None = "micrometer", first: float = 2.0, whole: Any = None
) -> list[Any]:
    """Three levels, each of voxels twice as large."""
    levels = [voxels((16 >> at, 16 >> at, 16 >> at), seed=at) for at in range(3)]
    datasets = []
    for at, array in enumerate(levels):
        write_zarr(root / f"v.zarr/s{at}", array, (4, 4, 4), zarr_format=zarr_format)
        scale = {"type": "scale", "scale": [first * 2**at] * 3}
        datasets.append({"path": f"s{at}", "coordinateTransformations": [scale]})
    axes = [{"name": name, "type": "space", **({"unit": unit} if unit else {})} for name in "zyx"]
    multiscale = {
        "axes": axes,
        "datasets": datasets,
        **({"coordinateTransformations": whole} if whole else {}),
    }
    version = {"version": "0.4" if zarr_format == 2 else "0.5"}
    about: dict[str, Any] = {"multiscales": [{**multiscale, **version}]}
    group = about if zarr_format == 2 else {"ome": about}
    zarr.open_group(str(root / "v.zarr"), mode="a", zarr_format=zarr_format).attrs.update(group)
    return levels


def staged(root: Path, level: int | str) -> Any:
    staging = Staging(root, {"image": "v.zarr"}, {"image": "uint8"}, (2, 2, 2), level=level)
    (rule,) = staging.rules
    return joined(rule, staging.bricks(rule, range(rule.count)), "image")


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize(
    ("level", "number"),
    [("2um", 0), ("4 um", 1), ("8µm", 2), ("0.004mm", 1), ("3500nm", 1), ("9um", 2), ("1.5um", 0)],
)
def test_the_level_is_the_one_whose_voxels_are_nearest(
    tmp_path: Path, zarr_format: int, level: str, number: int
) -> None:
    levels = write_levels(tmp_path, zarr_format)
    np.testing.assert_array_equal(staged(tmp_path, level), levels[number])


def test_a_scale_of_the_whole_image_counts(tmp_path: Path) -> None:
    levels = write_levels(tmp_path, 3, first=1.0, whole=[{"type": "scale", "scale": [0.5] * 3}])
    np.testing.assert_array_equal(staged(tmp_path, "1um"), levels[1])


def test_without_units_sizes_have_none(tmp_path: Path) -> None:
    levels = write_levels(tmp_path, 3, unit=None)
    np.testing.assert_array_equal(staged(tmp_path, "4"), levels[1])
    with pytest.raises(UsageError, match="its axes have no unit") as raised:
        staged(tmp_path, "4um")
    assert "s0 2, s1 4, s2 8" in raised.value.hint


def test_a_size_that_no_level_has_is_told_with_those_there_are(tmp_path: Path) -> None:
    write_levels(tmp_path, 2)
    for level in ("40um", "0.5um", "8nm"):
        with pytest.raises(UsageError, match=f"no level whose voxels are about {level}") as raised:
            staged(tmp_path, level)
        assert "s0 2um, s1 4um, s2 8um" in raised.value.hint
    with pytest.raises(UsageError, match="a unit"):
        staged(tmp_path, "4")


def test_an_image_that_says_no_sizes_goes_by_numbers(tmp_path: Path) -> None:
    write_zarr(tmp_path / "v.zarr/s0", voxels((4, 4, 4)), (4, 4, 4))
    group = zarr.open_group(str(tmp_path / "v.zarr"), mode="a", zarr_format=3)
    for multiscale in (
        {},
        {"axes": [{"name": "z"}]},
        {"axes": [{"name": "z", "type": "space", "unit": "parsec"}]},
    ):
        group.attrs.update({"ome": {"multiscales": [{**multiscale, "datasets": [{"path": "s0"}]}]}})
        with pytest.raises(UsageError, match="no level goes by '8um'") as raised:
            staged(tmp_path, "8um")
        assert "number" in raised.value.hint


@pytest.mark.parametrize("level", [-1, True, 1.5, "um", "8parsec", "0um", "", None, "8um "])
def test_a_level_that_is_none_is_told(level: Any) -> None:
    with pytest.raises(UsageError, match="level is"):
        check_layout("volume", {"volumes": {"image": "v.zarr"}, "level": level})
