"""Volumes that are damaged, or lie: each file's bricks fail, by its name, and memory stays bounded."""

import gzip
import resource
import struct
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile

from running import Place
from stager.errors import NotReady, SampleError, UsageError
from stager.layouts.volume import opener
from volumes import Staging, voxels, write_nifti, write_npy, write_stack, write_tiff

SHAPE = (16, 32, 32)


def staged(root: Path, path: str) -> Staging:
    return Staging(root, {"image": path}, {"image": "uint8"}, (8, 8, 8))


def outcomes(staging: Staging) -> dict[str, str]:
    """Of each brick that cannot be had, why; of those that can, nothing."""
    (rule,) = staging.rules
    found = {}
    for row in range(rule.count):
        try:
            staging.bricks(rule, [row])
        except SampleError as error:
            found[rule.keys(np.asarray([row]))[0]] = f"{error.reason}: {error.message}"
    return found


@pytest.mark.parametrize(("name", "write"), [("v.nii", write_nifti), ("v.npy", write_npy)])
def test_of_a_file_that_was_cut_short_the_bricks_before_the_end_are_staged(
    tmp_path: Path, name: str, write: Callable[[Path, Any], None]
) -> None:
    path = tmp_path / name
    write(path, voxels((64, 128, 128)))
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    failed = outcomes(Staging(tmp_path, {"image": name}, {"image": "uint8"}, (8, 32, 32)))
    assert 0 < len(failed) < 128
    assert all(told.startswith("truncated:") and name in told for told in failed.values())


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda data: data[: len(data) // 2], "truncated"),
        (lambda data: data[:9000] + bytes(64) + data[9064:], "corrupt"),
        (lambda data: data[:-8] + b"\1\2\3\4" + data[-4:], "corrupt"),
        (lambda data: data + b"\0" * 512, ""),
        (lambda data: data[:-4] + b"junk", "corrupt"),
    ],
    ids=["cut short", "damaged", "another checksum", "padded", "another length"],
)
def test_a_damaged_gzip_is_an_error_of_all_its_bricks_and_is_read_once(
    tmp_path: Path, damage: Callable[[bytes], bytes], reason: str
) -> None:
    write_nifti(tmp_path / "v.nii.gz", voxels(SHAPE))
    data = damage((tmp_path / "v.nii.gz").read_bytes())
    (tmp_path / "v.nii.gz").write_bytes(data)
    staging = staged(tmp_path, "v.nii.gz")
    staging.files.reads.clear()
    failed = outcomes(staging)
    assert len(failed) == (32 if reason else 0)
    assert all(told.startswith(f"{reason}: v.nii.gz: ") for told in failed.values())
    assert len(staging.files.reads) == 1


def test_a_gzip_that_has_more_than_its_header_says_is_no_bomb(tmp_path: Path) -> None:
    write_nifti(tmp_path / "v.nii.gz", voxels(SHAPE))
    data = gzip.decompress((tmp_path / "v.nii.gz").read_bytes())
    (tmp_path / "v.nii.gz").write_bytes(gzip.compress(data + bytes(1 << 28)))
    staging = staged(tmp_path, "v.nii.gz")
    failed = outcomes(staging)
    assert len(failed) == 32
    assert all("more than the" in told for told in failed.values())
    assert sum(path.stat().st_size for path in staging.scratch.iterdir()) <= len(data)


def flip(path: Path, at: int, count: int = 40) -> None:
    data = bytearray(path.read_bytes())
    for number in range(at, at + count):
        data[number] ^= 255
    path.write_bytes(data)


def test_a_damaged_tile_is_an_error_of_its_bricks_and_says_its_file(tmp_path: Path) -> None:
    write_tiff(tmp_path / "v.tif", voxels(SHAPE), tile=(16, 16), compression="zstd")
    with tifffile.TiffFile(tmp_path / "v.tif") as file:
        start = file.pages[3].dataoffsets[0]
    flip(tmp_path / "v.tif", start)
    failed = outcomes(staged(tmp_path, "v.tif"))
    assert set(failed) == {f"v.tif#0,{y},{x}" for y in (0, 8) for x in (0, 8)}
    assert all(told.startswith("corrupt: ") for told in failed.values())


def test_a_damaged_slice_is_an_error_of_its_bricks_and_says_which(tmp_path: Path) -> None:
    write_stack(tmp_path / "slices", voxels(SHAPE), compression="deflate")
    with tifffile.TiffFile(tmp_path / "slices/slice-11.tif") as file:
        flip(tmp_path / "slices/slice-11.tif", file.pages[0].dataoffsets[0] + 10)
    failed = outcomes(staged(tmp_path, "slices"))
    assert set(failed) == {f"slices#8,{y},{x}" for y in range(0, 32, 8) for x in range(0, 32, 8)}
    assert all(told.startswith("corrupt: ") for told in failed.values())


def test_a_slice_that_went_after_the_scan_is_missing_for_its_bricks(tmp_path: Path) -> None:
    write_stack(tmp_path / "slices", voxels(SHAPE))
    staging = staged(tmp_path, "slices")
    (tmp_path / "slices/slice-2.tif").unlink()
    write_tiff(tmp_path / "slices/slice-9.tif", voxels((32, 32), seed=3))
    failed = outcomes(staging)
    assert len(failed) == 32
    assert {told.partition(":")[0] for key, told in failed.items() if "#0" in key} == {"missing"}
    assert {told.partition(":")[0] for key, told in failed.items() if "#8" in key} == {"changed"}
    assert all("slice-2.tif" in told or "slice-9.tif" in told for told in failed.values())


def test_a_tiff_of_pages_that_was_cut_short_is_not_a_shorter_one(tmp_path: Path) -> None:
    for about in ({}, {"metadata": None}):
        write_tiff(tmp_path / "v.tif", voxels(SHAPE), compression="zstd", **about)
        data = (tmp_path / "v.tif").read_bytes()
        (tmp_path / "v.tif").write_bytes(data[: len(data) * 2 // 3])
        with pytest.raises(UsageError, match=r"v\.tif is no TIFF that can be read"):
            staged(tmp_path, "v.tif")


def test_slices_that_are_not_alike_are_told_by_name(tmp_path: Path) -> None:
    write_stack(tmp_path / "a", voxels(SHAPE))
    write_tiff(tmp_path / "a/slice-7.tif", voxels((32, 31)))
    with pytest.raises(UsageError, match=r"a/slice-7\.tif is \[32, 31\] of uint8, a/slice-0\.tif \[32, 32\]"):
        staged(tmp_path, "a")
    write_tiff(tmp_path / "a/slice-7.tif", voxels((32, 32), "uint16"))
    with pytest.raises(UsageError, match=r"a/slice-7\.tif is \[32, 32\] of uint16"):
        staged(tmp_path, "a")
    write_tiff(tmp_path / "a/slice-7.tif", voxels((32, 32)), compression="zstd")
    with pytest.raises(UsageError, match=r"a/slice-7\.tif is compressed or cut in another way"):
        staged(tmp_path, "a")
    (tmp_path / "a/slice-7.tif").write_bytes(b"II*\0no tiff")
    with pytest.raises(UsageError, match=r"a/slice-7\.tif is no TIFF that can be read"):
        staged(tmp_path, "a")


@pytest.mark.parametrize("name", ["v.nii", "v.nii.gz", "v.npy", "v.tif"])
@pytest.mark.parametrize(
    "data", [b"", b"x", b"no volume" * 100, b"II*\0\xff\xff\xff\xff", gzip.compress(b"no", mtime=0)]
)
def test_a_file_that_is_something_else_is_told_by_name(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UsageError, match=name) as raised:
        staged(tmp_path, name)
    assert raised.value.hint


def test_a_volume_that_is_not_there_is_told_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    for path in ("v.nii", "v.npy", "v.tif", "slices/*.tif", "slices/"):
        with pytest.raises(UsageError, match="there is no"):
            staged(tmp_path, path)


def patched(path: Path, tag: int, value: int) -> None:
    """A TIFF whose first page says something else."""
    with tifffile.TiffFile(path, mode="r+b") as file:
        file.pages[0].tags[tag].overwrite(value)


@pytest.mark.parametrize(("tag", "name"), [(256, "width"), (257, "length")])
@pytest.mark.parametrize("more", [{}, {"compression": "zstd"}, {"compression": "zstd", "tile": (16, 16)}])
def test_a_tiff_that_says_it_is_huge_takes_no_memory(
    tmp_path: Path, tag: int, name: str, more: dict[str, Any]
) -> None:
    write_tiff(tmp_path / "v.tif", voxels(SHAPE), metadata=None, **more)
    patched(tmp_path / "v.tif", tag, 4_000_000_000)
    with pytest.raises(UsageError, match=r"v\.tif"):
        staged(tmp_path, "v.tif")


def test_headers_that_say_what_cannot_be_are_told(tmp_path: Path) -> None:
    write_nifti(tmp_path / "v.nii", voxels(SHAPE))
    data = bytearray((tmp_path / "v.nii").read_bytes())
    lies = [((3, 0, 4, 4), 352.0), ((7, *[32767] * 7), 352.0), ((3, 4, 4, 4), 0.0), ((3, -4, 4, 4), 352.0)]
    for shape, offset in (*lies, ((3, 400, 400, 400), 352.0)):
        data[40:56] = struct.pack("<8h", *(*shape, *[1] * 8)[:8])
        data[108:112] = struct.pack("<f", offset)
        (tmp_path / "v.nii").write_bytes(data)
        with pytest.raises(UsageError, match=r"v\.nii"):
            staged(tmp_path, "v.nii")


def test_tags_that_claim_gigabytes_are_refused(tmp_path: Path) -> None:
    write_tiff(tmp_path / "v.tif", voxels(SHAPE), metadata=None, compression="zstd", rowsperstrip=4)
    data = bytearray((tmp_path / "v.tif").read_bytes())
    at = max(data.find(struct.pack("<HH", 273, kind)) for kind in (3, 4))  # where strips are
    data[at + 4 : at + 8] = struct.pack("<I", 0x3FFFFFFF)
    (tmp_path / "v.tif").write_bytes(data)
    with pytest.raises((UsageError, SampleError)):
        staged(tmp_path, "v.tif")


def test_a_jpeg_in_a_tile_that_says_it_is_huge_takes_no_memory(tmp_path: Path) -> None:
    write_tiff(tmp_path / "v.tif", voxels(SHAPE), compression="jpeg", tile=(16, 16))
    data = (tmp_path / "v.tif").read_bytes()
    sized = b"\xff\xc0\0\x0b\x08\0\x10\0\x10"
    assert data.count(sized) == 64
    (tmp_path / "v.tif").write_bytes(data.replace(sized, sized[:5] + b"\xff\x00\xff\x00"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    failed = outcomes(staged(tmp_path, "v.tif"))
    assert len(failed) == 32
    assert all("65280 x 65280" in told for told in failed.values())
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10


def test_a_package_that_is_missing_is_told_with_the_way_to_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tiff(tmp_path / "v.tif", voxels(SHAPE), compression="lzw")
    staging = staged(tmp_path, "v.tif")
    write_nifti(tmp_path / "v.nii", voxels(SHAPE))
    for package in ("imagecodecs", "nibabel"):
        monkeypatch.setitem(sys.modules, package, None)
    for name in ("v.tif", "v.nii"):
        with pytest.raises(NotReady) as raised:
            staged(tmp_path, name)
        assert raised.value.hint == "pip install 'stager[volume]'"
    opener._decoder.cache_clear()
    with pytest.raises(SampleError, match="not installed") as failed:
        staging.bricks(staging.rules[0], [0])
    assert failed.value.reason == "unprepared"


DAMAGED: dict[str, Callable[[Path], None]] = {
    "v.nii": lambda path: write_nifti(path, voxels(SHAPE)),
    "v.nii.gz": lambda path: write_nifti(path, voxels(SHAPE)),
    "v.npy": lambda path: write_npy(path, voxels(SHAPE)),
    "raw.tif": lambda path: write_tiff(path, voxels(SHAPE)),
    "strips.tif": lambda path: write_tiff(path, voxels(SHAPE), compression="lzw", rowsperstrip=5),
    "tiles.tif": lambda path: write_tiff(
        path, voxels(SHAPE), compression="jpeg", tile=(16, 16), bigtiff=True
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_whatever_the_bytes_are_the_error_is_one_of_ours(tmp_path: Path, name: str) -> None:
    DAMAGED[name](tmp_path / name)
    whole = (tmp_path / name).read_bytes()
    random = np.random.default_rng(zlib.crc32(name.encode()))
    with_bricks = 0
    for _ in range(150):
        data = bytearray(whole)
        for at in random.integers(0, random.choice([64, 400, len(data)]), random.integers(1, 6)):
            data[min(int(at), len(data) - 1)] = random.choice(
                [0, 1, 4, 127, 128, 255, int(random.integers(256))]
            )
        (tmp_path / name).write_bytes(
            data[: int(random.integers(1, len(data)))] if random.random() < 0.1 else data
        )
        try:
            staging = staged(tmp_path, name)
        except (UsageError, SampleError):
            continue
        (rule,) = staging.rules
        for row in {0, rule.count // 2, rule.count - 1}:
            try:
                staging.bricks(rule, [row])
                with_bricks += 1
            except SampleError:
                pass
    assert with_bricks, "not all damage matters"


def test_what_is_read_more_than_once_if_it_does_not_fit_is_an_error_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    write_nifti(tmp_path / "source/v.nii.gz", np.zeros((200, 200, 200), "uint8"))
    place = Place(tmp_path).configure(
        f'[datasets.v]\nsource = "{tmp_path}/source"\nlayout = "volume"\nvolumes = {{ image = "v.nii.gz" }}\n'
        '[datasets.v.recipe]\nkind = "volume"\nfields = { image = "uint8" }\n',
        capacity="6MB",
    )
    done = place.run("prefetch", "v", "--fraction", "0.01")
    assert done.returncode == 1
    assert "so much is v.nii.gz while it is unpacked" in done.stderr + done.stdout


def test_a_damaged_gzip_is_told_by_name_with_real_processes(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    write_nifti(tmp_path / "source/v.nii.gz", voxels((40, 40, 40)))
    data = (tmp_path / "source/v.nii.gz").read_bytes()
    (tmp_path / "source/v.nii.gz").write_bytes(data[: len(data) // 2])
    place = Place(tmp_path).configure(
        f'[datasets.v]\nsource = "{tmp_path}/source"\nlayout = "volume"\nvolumes = {{ image = "v.nii.gz" }}\n'
        '[datasets.v.recipe]\nkind = "volume"\nfields = { image = "uint8" }\n',
    )
    told = place.json("prefetch", "v", code=3)
    assert (told["staged"], told["failed"]) == (0, 8)
    shown = place.run("why", "v", "v.nii.gz#0,0,0")
    assert "v.nii.gz: it ends after" in shown.stdout + shown.stderr
