"""Volumes of all formats with real processes: from a folder and S3, each file asked for once."""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from countingproxy import counting_proxy
from running import Place
from s3server import S3Server
from sets import manifest_at
from stager.reader.samples.segments import ComputedSegment
from stager_client.numpy import StagedArrays
from stager_client.torch import RandomPatch, StagedDataset, StagedLoader
from volumes import Volume, joined, voxels, write_nifti, write_npy, write_stack, write_tiff

SHAPE = (72, 40, 50)
FORMATS = {
    "stack": "slices/",
    "pages": "pages.tif",
    "tiles": "tiles.tif",
    "nifti": "v.nii",
    "packed": "v.nii.gz",
    "npy": "v.npy",
}
MASK = "mask.nii.gz"


@pytest.fixture(scope="module")
def arrays() -> dict[str, Volume]:
    image, mask = voxels(SHAPE, "uint16"), voxels((36, 20, 25), "uint8", 1)
    mask[16:] = 0
    return {"image": image, "mask": mask}


def write_all(root: Path, arrays: dict[str, Volume]) -> None:
    root.mkdir(parents=True)
    image = arrays["image"]
    write_stack(root / "slices", image, compression="zstd")
    write_tiff(root / "pages.tif", image, compression="lzw", byteorder=">", bigtiff=True)
    write_tiff(root / "tiles.tif", image, tile=(16, 16), compression="deflate", predictor=True)
    write_nifti(root / "v.nii", image, ">")
    write_nifti(root / "v.nii.gz", image)
    write_npy(root / "v.npy", image, is_fortran=True)
    write_nifti(root / MASK, arrays["mask"])


def dataset(name: str, path: str, source: str, more: str = "") -> str:
    more += 'foreground = "mask"\n' if name == "stack" else ""
    return (
        f'[datasets.{name}]\nsource = "{source}"\n{more}layout = "volume"\n'
        f'volumes = {{ image = "{path}", mask = "{MASK}" }}\n[datasets.{name}.recipe]\nkind = "volume"\n'
        f'fields = {{ image = "uint16", mask = "uint8" }}\nbrick = [8, 8, 8]\n'
        "scale = { mask = [2, 2, 2] }\n"
    )


@pytest.fixture(scope="module")
def place(
    tmp_path_factory: pytest.TempPathFactory, s3: S3Server, arrays: dict[str, Volume]
) -> Iterator[Place]:
    """A folder and a bucket with the same volumes, and a service that has both."""
    root = tmp_path_factory.mktemp("formats")
    write_all(root / "source", arrays)
    for path in (root / "source").rglob("*"):
        if path.is_file():
            key = f"formats/{path.relative_to(root / 'source')}"
            s3.client().put_object(Bucket=s3.bucket, Key=key, Body=path.read_bytes())
    bucket = f"s3://{s3.bucket}/formats"
    access = 'endpoint_url = "{proxy}"\n'
    place = Place(root).configure(
        "".join(dataset(name, path, f"{root}/source") for name, path in FORMATS.items())
        + "".join(dataset(f"s3-{name}", path, bucket, access) for name, path in FORMATS.items())
    )
    with pytest.MonkeyPatch.context() as patch:
        for name, value in place.env().items():
            patch.setenv(name, value)
        yield place


def check_voxels(place: Place, name: str, arrays: dict[str, Volume]) -> None:
    """That what a reader gets of all bricks is the volume."""
    bricks = []
    for batch, _ in StagedArrays(name, 50):
        bricks += [{field: batch[field][at] for field in arrays} for at in range(len(batch["image"]))]
    (segment,) = manifest_at(place, name).records.segments
    assert isinstance(segment, ComputedSegment)
    for field, array in arrays.items():
        np.testing.assert_array_equal(joined(segment.rule, bricks, field), array)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", FORMATS)
def test_a_folder_is_staged_by_a_command_and_read_back(
    place: Place, name: str, arrays: dict[str, Volume]
) -> None:
    told = place.json("prefetch", name)
    assert (told["staged"], told["failed"]) == (9 * 5 * 7, 0)
    check_voxels(place, name, arrays)
    assert not list((place.cache / "scratch").iterdir()), "what was unpacked is gone"


def test_patches_with_foreground_are_those_of_the_files(place: Place, arrays: dict[str, Volume]) -> None:
    with place.service():
        cut = RandomPatch((16, 12, 20), foreground="mask")
        for batch, where in StagedLoader(StagedDataset("stack"), 2, seed=1, length=40, cut=cut):
            for image, mask, (_, *begin) in zip(batch["image"], batch["mask"], where.tolist(), strict=True):
                box = tuple(slice(b, b + n) for b, n in zip(begin, (16, 12, 20), strict=True))
                half = tuple(slice(s.start // 2, s.stop // 2) for s in box)
                np.testing.assert_array_equal(image[0].numpy(), arrays["image"][box])
                np.testing.assert_array_equal(mask[0].numpy(), arrays["mask"][half])
                assert mask.any()


def test_of_a_bucket_each_file_is_read_once_for_all_its_bricks(
    place: Place, s3: S3Server, arrays: dict[str, Volume]
) -> None:
    with counting_proxy(("127.0.0.1", int(s3.endpoint_url.rpartition(":")[2]))) as proxy:
        place.config.write_text(place.config.read_text().replace("{proxy}", proxy.endpoint_url))
        with place.service():
            for name in FORMATS:
                check_voxels(place, f"s3-{name}", arrays)
        asked = Counter(key.rpartition("/formats/")[2] for key in proxy.objects())
    slices = {key: number for key, number in asked.items() if key.endswith(".tif") and "/" in key}
    assert len(slices) == SHAPE[0]
    assert set(slices.values()) == {2}, "its header at a scan, and once for all bricks"
    assert asked["v.nii.gz"] == 2
    assert len(FORMATS) < asked[MASK] <= 2 * len(FORMATS), (
        "data sets of one source may share what is unpacked"
    )
    listed = [line for line in proxy.requests if "list-type=" in line]
    assert len(listed) <= 6 * len(FORMATS), "what a volume is, and nothing beside it"


def test_files_of_two_sources_are_not_mixed_up_though_all_that_is_told_of_them_is_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = ""
    for number in range(2):
        folder = tmp_path / f"source-{number}"
        folder.mkdir()
        write_nifti(folder / "v.nii.gz", np.full((16, 16, 16), number, np.uint8))
        data = (folder / "v.nii.gz").read_bytes()
        (folder / "v.nii.gz").write_bytes(data.ljust(200, b"\0"))
        os.utime(folder / "v.nii.gz", ns=(10**18, 10**18))
        tables += (
            f'[datasets.v{number}]\nsource = "{folder}"\nlayout = "volume"\nvolumes = {{ v = "v.nii.gz" }}\n'
            f'[datasets.v{number}.recipe]\nkind = "volume"\nfields = {{ v = "uint8" }}\n'
        )
    place = Place(tmp_path).configure(tables)
    for name, value in place.env().items():
        monkeypatch.setenv(name, value)
    with place.service():
        for number in range(2):
            assert place.json("prefetch", f"v{number}")["staged"] == 1
            ((batch, _),) = StagedArrays(f"v{number}", 1)
            assert (batch[0, :16, :16, :16] == number).all()


def test_large_pages_are_read_once_for_all_shards_and_no_scratch_stays(
    tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = np.zeros((34, 2100, 2000), np.uint8)  # 32 pages are 134 MB: more than a shard has
    array[:, ::9, ::11] = voxels((34, 234, 182))
    write_stack(tmp_path / "slices", array, compression="zstd", rowsperstrip=2100)
    for path in (tmp_path / "slices").iterdir():
        s3.client().put_object(Bucket=s3.bucket, Key=f"large/slices/{path.name}", Body=path.read_bytes())
    with counting_proxy(("127.0.0.1", int(s3.endpoint_url.rpartition(":")[2]))) as proxy:
        place = Place(tmp_path).configure(
            f'[datasets.large]\nsource = "s3://{s3.bucket}/large"\nendpoint_url = "{proxy.endpoint_url}"\n'
            'layout = "volume"\nvolumes = { image = "slices" }\n[datasets.large.recipe]\nkind = "volume"\n'
            'fields = { image = "uint8" }\n'
        )
        for name, value in place.env().items():
            monkeypatch.setenv(name, value)
        with place.service():
            cut = RandomPatch((20, 300, 200))
            for batch, where in StagedLoader(StagedDataset("large"), 2, seed=1, length=24, cut=cut):
                for image, (_, *begin) in zip(batch, where.tolist(), strict=True):
                    box = tuple(slice(b, b + n) for b, n in zip(begin, (20, 300, 200), strict=True))
                    np.testing.assert_array_equal(image[0].numpy(), array[box])
            told = place.json("prefetch", "large")
            assert told["failed"] == 0
            assert told["staged"] + told["already"] == 2 * 66 * 63
        asked = Counter(path for path in proxy.objects() if path.endswith(".tif"))
    assert len(asked) == 34
    assert set(asked.values()) <= {2, 3}, "headers at one or two scans, and each page once"
    assert not list((place.cache / "scratch").iterdir())
