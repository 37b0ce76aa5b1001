"""Volumes that are no Zarr: TIFF, NIfTI and .npy. Voxels are those of the file, and nothing is read twice."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import tifffile
from hypothesis import given, settings
from hypothesis import strategies as st

from stager.errors import UsageError
from stager.layouts import open_opener
from stager.reader.samples.computed.bricks import Bricks
from stager.reader.samples.computed.rules import open_rule
from stager.reader.samples.runs import Runs
from stager.reader.samples.sample_list import SampleList
from stager.reader.samples.segments import ComputedSegment
from stager.shards import FORMATS as SHARD_FORMATS
from stager.worker.build import build_shard
from stager.worker.pools import Pools
from volumes import (
    Staging,
    Volume,
    joined,
    voxels,
    write_nifti,
    write_npy,
    write_stack,
    write_tiff,
    write_zarr,
)

DTYPES = ["uint8", "int8", "uint16", "int16", "uint32", "int32", "float32", "float64"]
COMPRESSED = [None, "lzw", "deflate", "zstd", "packbits", "lzma"]


def whole(staging: Staging, field: str = "image", number: int = 0) -> Volume:
    rule = staging.rules[number]
    assert open_rule(json.loads(json.dumps(rule.to_json()))) == rule
    return joined(rule, staging.bricks(rule, range(rule.count)), field)


def staged(root: Path, path: str, dtype: str, brick: Sequence[int], **recipe: Any) -> Staging:
    return Staging(root, {"image": path}, {"image": dtype}, brick, **recipe)


shapes = st.tuples(st.integers(1, 12), st.integers(2, 40), st.integers(2, 40)).map(list)
bricks = st.lists(st.sampled_from([1, 2, 4, 8, 16]), min_size=3, max_size=3)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=4),
    st.data(),
    st.sampled_from([*DTYPES, "bool", "float16", "int64", "uint64"]),
    st.sampled_from("<>"),
    st.booleans(),
)
def test_npy_files_have_the_voxels_that_numpy_reads(
    tmp_path_factory: pytest.TempPathFactory,
    shape: list[int],
    data: st.DataObject,
    dtype: str,
    order: str,
    is_fortran: bool,
) -> None:
    root = tmp_path_factory.mktemp("v")
    brick = [data.draw(st.sampled_from([1, 2, 4, 8])) for _ in shape]
    write_npy(root / "v.npy", voxels(shape, dtype), order, is_fortran)
    staging = staged(root, "v.npy", dtype, brick)
    found = whole(staging)
    np.testing.assert_array_equal(found, np.load(root / "v.npy"))
    assert found.dtype == np.dtype(dtype)
    assert sum(size for _, size in staging.files.reads) <= 2 * (root / "v.npy").stat().st_size


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=4),
    st.data(),
    st.sampled_from(DTYPES),
    st.sampled_from("<>"),
    st.sampled_from([".nii", ".nii.gz"]),
)
def test_nifti_files_have_the_voxels_that_nibabel_reads(
    tmp_path_factory: pytest.TempPathFactory,
    shape: list[int],
    data: st.DataObject,
    dtype: str,
    order: str,
    ending: str,
) -> None:
    root = tmp_path_factory.mktemp("v")
    brick = [data.draw(st.sampled_from([1, 2, 4, 8])) for _ in shape]
    write_nifti(root / f"v{ending}", voxels(shape, dtype), order)
    found = whole(staged(root, f"v{ending}", dtype, brick))
    np.testing.assert_array_equal(found, np.asarray(nibabel.load(root / f"v{ending}").dataobj))
    assert found.dtype == np.dtype(dtype)


@pytest.mark.parametrize("kind", [nibabel.Nifti1Image, nibabel.Nifti2Image])
@pytest.mark.parametrize("ending", [".nii", ".nii.gz"])
def test_what_nibabel_writes_is_read(tmp_path: Path, kind: Any, ending: str) -> None:
    array = voxels((20, 17, 24), "int16")
    nibabel.save(kind(array, np.eye(4)), tmp_path / f"v{ending}")
    np.testing.assert_array_equal(whole(staged(tmp_path, f"v{ending}", "int16", (4, 4, 4))), array)


@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32"])
def test_a_nifti_with_a_scale_has_its_stored_voxels_or_what_they_mean(tmp_path: Path, dtype: str) -> None:
    array = voxels((9, 8, 7), dtype)
    write_nifti(tmp_path / "v.nii.gz", array, slope=0.37, inter=-12.5)
    meant = nibabel.load(tmp_path / "v.nii.gz").get_fdata().astype(np.float32)
    scaled = staged(tmp_path, "v.nii.gz", "float32", (4, 4, 4))
    np.testing.assert_array_equal(whole(scaled), meant)
    assert not scaled.left_out.line()
    if dtype != "float32":
        stored = staged(tmp_path, "v.nii.gz", dtype, (4, 4, 4))
        np.testing.assert_array_equal(whole(stored), array)
        assert "0.37 times that plus -12.5" in stored.left_out.line()
        with pytest.raises(UsageError, match=f"is {dtype}, the recipe says float64"):
            staged(tmp_path, "v.nii.gz", "float64", (4, 4, 4))


@st.composite
def tiffs(draw: st.DrawFn) -> dict[str, Any]:
    """How a TIFF is written."""
    about: dict[str, Any] = {
        "compression": draw(st.sampled_from(COMPRESSED)),
        "byteorder": draw(st.sampled_from("<>")),
    }
    cut = draw(st.sampled_from(["", "tile", "rowsperstrip"]))
    if cut == "tile":
        about["tile"] = (draw(st.sampled_from([16, 32])), draw(st.sampled_from([16, 32])))
    elif cut == "rowsperstrip":
        about["rowsperstrip"] = draw(st.integers(1, 40))
    return about


def fitting(about: dict[str, Any], dtype: str) -> dict[str, Any]:
    """With a predictor, where there can be one."""
    can = about["compression"] in ("lzw", "deflate", "zstd") and not dtype.startswith("float")
    return {**about, "predictor": True} if can else about


@settings(deadline=None, max_examples=60)
@given(shapes, bricks, st.sampled_from([*DTYPES, "float16"]), tiffs(), st.booleans(), st.booleans())
def test_pages_of_a_tiff_have_the_voxels_that_tifffile_reads(
    tmp_path_factory: pytest.TempPathFactory,
    shape: list[int],
    brick: list[int],
    dtype: str,
    about: dict[str, Any],
    is_big: bool,
    has_metadata: bool,
) -> None:
    root = tmp_path_factory.mktemp("v")
    array = voxels(shape, dtype)
    more = {} if has_metadata else {"metadata": None}
    write_tiff(root / "v.tif", array, bigtiff=is_big, **fitting(about, dtype), **more)
    staging = staged(root, "v.tif", dtype, brick)
    np.testing.assert_array_equal(whole(staging), array)
    np.testing.assert_array_equal(whole(staging), tifffile.imread(root / "v.tif").reshape(shape))


@settings(deadline=None, max_examples=40)
@given(shapes, bricks, st.sampled_from([*DTYPES, "float16"]), tiffs())
def test_a_folder_of_slices_has_them_by_the_numbers_in_their_names(
    tmp_path_factory: pytest.TempPathFactory,
    shape: list[int],
    brick: list[int],
    dtype: str,
    about: dict[str, Any],
) -> None:
    root = tmp_path_factory.mktemp("v")
    array = voxels(shape, dtype)
    write_stack(root / "slices", array, **fitting(about, dtype))
    (root / "slices/readme.txt").write_text("no slice")
    staging = staged(root, "slices/", dtype, brick)
    staging.files.reads.clear()
    np.testing.assert_array_equal(whole(staging), array)
    assert set(Counter(key for key, _ in staging.files.reads)) == {
        f"slices/slice-{number}.tif" for number in range(shape[0])
    }
    np.testing.assert_array_equal(whole(staged(root, "slices/*.tif", dtype, brick)), array)


@pytest.mark.parametrize("more", [{"imagej": True}, {"ome": True}, {"imagej": True, "compression": "zlib"}])
def test_what_imagej_and_ome_write_is_read(tmp_path: Path, more: dict[str, Any]) -> None:
    array = voxels((12, 30, 40), "uint16")
    tifffile.imwrite(tmp_path / "v.tif", array, metadata={"axes": "ZYX"}, **more)
    np.testing.assert_array_equal(whole(staged(tmp_path, "v.tif", "uint16", (4, 8, 8))), array)


def test_channels_of_an_ome_tiff_are_a_side(tmp_path: Path) -> None:
    array = voxels((3, 6, 20, 24), "uint8")
    tifffile.imwrite(tmp_path / "v.ome.tif", array, metadata={"axes": "CZYX"}, ome=True, compression="zstd")
    np.testing.assert_array_equal(whole(staged(tmp_path, "v.ome.tif", "uint8", (1, 4, 8, 8))), array)


def test_jpeg_in_a_tiff_is_decoded_as_tifffile_does(tmp_path: Path) -> None:
    smooth = (np.add.outer(np.arange(40), np.add.outer(np.arange(50), np.arange(70))) % 256).astype("uint8")
    for name, more in {"tiles": {"tile": (32, 32)}, "strips": {"rowsperstrip": 16}}.items():
        write_tiff(tmp_path / f"{name}.tif", smooth, compression="jpeg", **more)
        found = whole(staged(tmp_path, f"{name}.tif", "uint8", (8, 16, 16)))
        np.testing.assert_array_equal(found, tifffile.imread(tmp_path / f"{name}.tif"))


def write_any(root: Path, name: str, array: Volume) -> str:
    """A volume of a format, and its path."""
    if name == "zarr":
        write_zarr(root / "image.zarr", array, (8, 8, 8))
        return "image.zarr"
    if name == "stack":
        write_stack(root / "slices", array, compression="zstd", tile=(16, 16))
        return "slices"
    path = f"image.{name}"
    writers: dict[str, Callable[[Path, Volume], None]] = {"npy": write_npy, "tif": write_tiff}
    writers.get(name, write_nifti)(root / path, array)
    return path


FORMATS = ["zarr", "stack", "npy", "tif", "nii", "nii.gz"]


@pytest.mark.parametrize("mask_format", FORMATS)
@pytest.mark.parametrize("image_format", FORMATS)
def test_an_image_and_its_mask_may_have_any_formats(
    tmp_path: Path, image_format: str, mask_format: str
) -> None:
    image, mask = voxels((20, 18, 24), "uint16"), voxels((10, 9, 12), "uint8")
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    volumes = {
        "image": "a/" + write_any(tmp_path / "a", image_format, image),
        "mask": "b/" + write_any(tmp_path / "b", mask_format, mask),
    }
    fields = {"image": "uint16", "mask": "uint8"}
    staging = Staging(tmp_path, volumes, fields, (4, 4, 4), scale={"mask": 2})
    np.testing.assert_array_equal(whole(staging, "image"), image)
    np.testing.assert_array_equal(whole(staging, "mask"), mask)


@pytest.mark.parametrize("name", FORMATS[1:])
def test_a_file_that_has_changed_is_another_version_of_all_bricks(tmp_path: Path, name: str) -> None:
    path = write_any(tmp_path, name, voxels((8, 8, 8), "uint8"))

    def versions() -> set[str]:
        (rule,) = staged(tmp_path, path, "uint8", (4, 4, 4)).rules
        return {info.version for info in rule.infos(np.arange(rule.count))}

    before = versions()
    assert versions() == before
    file = tmp_path / ("slices/slice-3.tif" if name == "stack" else path)
    file.write_bytes(file.read_bytes())
    assert len(before | versions()) == 16


def parts_of(rule: Bricks) -> Counter[str]:
    infos = rule.infos(np.arange(rule.count))
    return Counter(part.info.key for info in infos for part in info.parts)


def test_a_packed_nifti_is_asked_for_once_for_all_its_bricks(tmp_path: Path) -> None:
    array = voxels((64, 48, 40), "uint16")
    write_nifti(tmp_path / "v.nii.gz", array)
    staging = staged(tmp_path, "v.nii.gz", "uint16", (8, 8, 8))
    staging.files.reads.clear()
    (rule,) = staging.rules
    for row in np.random.default_rng(0).permutation(rule.count)[:100]:  # as many tasks
        staging.bricks(rule, [int(row)])
    np.testing.assert_array_equal(whole(staging), array)
    assert staging.files.reads == [("v.nii.gz", (tmp_path / "v.nii.gz").stat().st_size)]


@pytest.mark.parametrize("about", [{"compression": "zlib"}, {"compression": "zstd", "rowsperstrip": 100}])
def test_pages_that_are_large_are_decoded_once_for_all_their_bricks(tmp_path: Path, about: Any) -> None:
    array = np.zeros((5, 3000, 2600), "uint16")
    array[:, ::7, ::5] = voxels((5, 429, 520), "uint16")
    write_stack(tmp_path / "slices", array, **about)
    staging = staged(tmp_path, "slices", "uint16", (32, 32, 32))
    (rule,) = staging.rules
    staging.files.parts.clear()
    rows = np.random.default_rng(0).permutation(rule.count)[:60]
    made = [staging.bricks(rule, [int(row)])[0]["image"] for row in rows]
    for row, place in zip(made, rule.grid.places(rows), strict=True):
        begin = place * 32
        box = array[tuple(slice(int(b), int(b) + 32) for b in begin)]
        np.testing.assert_array_equal(row[tuple(map(slice, box.shape))], box)
    assert set(staging.files.parts.values()) == {1}
    assert len(staging.files.parts) == 5
    assert len(rule.unpacked(rows)) == 5


def test_a_large_chunk_of_zarr_is_decoded_once_for_all_its_bricks(tmp_path: Path) -> None:
    array = np.zeros((300, 512, 300), "uint16")
    array[::3, ::5, ::7] = voxels((100, 103, 43), "uint16")
    write_zarr(tmp_path / "v.zarr", array, (256, 512, 512), fill_value=7)
    staging = staged(tmp_path, "v.zarr", "uint16", (32, 32, 32))
    (rule,) = staging.rules
    staging.files.parts.clear()
    rows = np.random.default_rng(0).permutation(rule.count)[:80]
    for row, place in zip(rows, rule.grid.places(rows), strict=True):
        made = staging.bricks(rule, [int(row)])[0]["image"]
        box = array[tuple(slice(int(b), int(b) + 32) for b in place * 32)]
        np.testing.assert_array_equal(made[tuple(map(slice, box.shape))], box)
    assert set(staging.files.parts.values()) == {1}
    assert set(parts_of(rule)) == {"v.zarr/c/0/0/0", "v.zarr/c/1/0/0"}
    assert rule.cost(rule.count)[0] == 2
    assert len(rule.mates(np.asarray([0]))) == 8 * 16 * 10, "bricks of one chunk are one group"


def test_a_brick_of_many_large_parts_is_made_with_less_memory_than_they_have(tmp_path: Path) -> None:
    array = voxels((40, 64, 64))
    write_stack(tmp_path / "slices", array, compression="zstd")
    staging = staged(tmp_path, "slices", "uint8", (32, 32, 32))
    (rule,) = staging.rules
    records = SampleList("", ("one",), [ComputedSegment(rule, Runs([(0, rule.count)]))])
    about = "manifest", records, list(range(rule.count)), Pools(2, bytes_max=10_000), lambda done: None
    path = tmp_path / "shard.arrow"
    opener = open_opener("volume", {})
    built = build_shard(path, SHARD_FORMATS["arrow"], "v", staging.source, staging.recipe, opener, *about)
    assert sorted(built.samples) == list(range(rule.count))
    assert built.read_bytes == sum(file.stat().st_size for file in (tmp_path / "slices").iterdir()) - 40 * 256
