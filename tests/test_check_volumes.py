"""stager check: it knows volumes of all formats, shows them, and writes a config that stages them."""

import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from running import Place
from stager.check.config import config_for
from stager.check.place import look_at
from stager.config import parse_config
from stager.reader.values import SourceSpec
from test_volume_levels import write_levels
from volumes import Volume, voxels, write_nifti, write_npy, write_stack, write_tiff, write_zarr

SHAPE = (48, 40, 36)
WRITERS: dict[str, Callable[[Path, Volume], None]] = {
    "v2.zarr": lambda path, array: write_zarr(path, array, (16, 16, 16), zarr_format=2),
    "v3.zarr": lambda path, array: write_zarr(path, array, (16, 16, 16), shards=(32, 32, 32)),
    "group.zarr/0": lambda path, array: write_zarr(path, array, (16, 16, 16)),
    "slices": lambda path, array: write_stack(path, array, compression="zstd"),
    "pages.tif": lambda path, array: write_tiff(path, array, compression="lzw"),
    "scan.nii": write_nifti,
    "scan.nii.gz": write_nifti,
    "scan.npy": write_npy,
}


@pytest.mark.parametrize("name", WRITERS)
def test_it_finds_a_volume_and_its_config_stages_it(tmp_path: Path, name: str) -> None:
    path = tmp_path / "source" / name
    path.parent.mkdir(parents=True)
    WRITERS[name](path, voxels(SHAPE, "uint16"))
    spec = SourceSpec(str(tmp_path / "source"))
    finding = look_at(spec)
    best = finding.fits
    assert best is not None
    assert (best.layout, best.kind) == ("volume", "volume")
    assert best.recipe["fields"] == {"scan": "uint16"}
    assert best.options == {"volumes": {"scan": name}}
    assert len(best.samples) == best.good > 0
    assert "uint16, 48 x 40 x 36" in best.about[0]
    config = config_for("found", spec, best)
    assert parse_config(tomllib.loads(config), tmp_path).datasets["found"].layout == "volume"
    if name in ("slices", "v2.zarr"):
        place = Place(tmp_path).configure(config)
        told = place.json("prefetch", "found")
        assert (told["staged"], told["failed"]) == (best.found, 0)


def test_a_volume_and_its_mask_are_two_fields_of_one(tmp_path: Path) -> None:
    write_zarr(tmp_path / "scan.zarr", voxels(SHAPE, "uint16"), (16, 16, 16))
    write_nifti(tmp_path / "mask.nii.gz", voxels(SHAPE))
    best = look_at(SourceSpec(str(tmp_path))).fits
    assert best is not None
    assert best.options == {"volumes": {"scan": "scan.zarr", "mask": "mask.nii.gz"}}
    assert best.recipe["fields"] == {"scan": "uint16", "mask": "uint8"}
    assert best.good == len(best.samples) == 8


def test_several_volumes_of_a_kind_are_one_data_set(tmp_path: Path) -> None:
    for number in range(3):
        write_nifti(tmp_path / f"patient-{number}.nii.gz", voxels((20 + number, 30, 40), "int16"))
    best = look_at(SourceSpec(str(tmp_path))).fits
    assert best is not None
    assert best.options == {"volumes": [{"scan": f"patient-{number}.nii.gz"} for number in range(3)]}
    assert best.good == len(best.samples)
    config = config_for("found", SourceSpec(str(tmp_path)), best)
    assert parse_config(tomllib.loads(config), tmp_path).datasets


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_the_levels_of_an_image_are_shown(tmp_path: Path, zarr_format: int) -> None:
    write_levels(tmp_path, zarr_format)
    best = look_at(SourceSpec(str(tmp_path))).fits
    assert best is not None
    assert best.options == {"volumes": {"scan": "v.zarr"}}
    assert "v.zarr: levels s0 2um, s1 4um, s2 8um" in best.about
    place = Place(tmp_path / "place")
    place.root.mkdir()
    place.configure("")
    shown = place.run("check", str(tmp_path))
    assert shown.returncode == 0, shown.stderr
    assert "s1 4um" in shown.stdout
    assert "layout volume volumes v.zarr" in shown.stdout


def test_pictures_and_samples_are_no_volumes(tmp_path: Path) -> None:
    for name in "abc":  # classes of pictures
        write_stack(tmp_path / "pictures" / name, voxels((12, 20, 20)))
    best = look_at(SourceSpec(str(tmp_path / "pictures"))).fits
    assert best is not None
    assert best.layout == "folder"
    (tmp_path / "arrays/a").mkdir(parents=True)
    for number in range(12):
        np.save(tmp_path / f"arrays/a/{number}.npy", voxels((4, 5, 6)))
    best = look_at(SourceSpec(str(tmp_path / "arrays"))).fits
    assert best is not None
    assert best.kind == "array"
