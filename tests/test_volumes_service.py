"""Volumes with real processes: from a folder and S3, each chunk asked for once, every voxel the source's."""

import re
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

from countingproxy import counting_proxy
from running import Place
from s3server import S3Server
from sets import manifest_at
from stager.reader.samples.segments import ComputedSegment
from stager_client.numpy import StagedArrays
from volumes import Volume, joined, voxels, write_zarr

SHAPE = (72, 40, 50)
RECIPE = 'kind = "volume"\nfields = { image = "uint16", mask = "uint8" }\nbrick = [8, 8, 8]\n'
VOLUMES = 'layout = "volume"\nvolumes = { image = "scan.zarr/0", mask = "mask.zarr" }\n'


@pytest.fixture(scope="module")
def arrays() -> dict[str, Volume]:
    image, mask = voxels(SHAPE, "uint16"), voxels(SHAPE, "uint8", 1)
    mask[32:] = 0  # chunks that are not written
    return {"image": image, "mask": mask}


@pytest.fixture(scope="module")
def place(
    tmp_path_factory: pytest.TempPathFactory, s3: S3Server, arrays: dict[str, Volume]
) -> Iterator[Place]:
    """A folder and a bucket with the same volumes, and a service that has both."""
    root = tmp_path_factory.mktemp("volumes")
    write_zarr(root / "source/scan.zarr/0", arrays["image"], (16, 16, 16), zarr_format=2)
    write_zarr(root / "source/mask.zarr", arrays["mask"], (8, 8, 8), shards=(16, 16, 16))
    for path in (root / "source").rglob("*"):
        if path.is_file():
            key = f"scroll/{path.relative_to(root / 'source')}"
            s3.client().put_object(Bucket=s3.bucket, Key=key, Body=path.read_bytes())
    place = Place(root).configure(
        f'[datasets.folder]\nsource = "{root}/source"\n{VOLUMES}[datasets.folder.recipe]\n{RECIPE}'
        f'[datasets.bucket]\nsource = "s3://{s3.bucket}/scroll"\nendpoint_url = "{{proxy}}"\n{VOLUMES}'
        f"[datasets.bucket.recipe]\n{RECIPE}"
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


def test_a_folder_is_staged_by_a_command_and_read_back(place: Place, arrays: dict[str, Volume]) -> None:
    told = place.json("prefetch", "folder")
    assert (told["staged"], told["failed"]) == (9 * 5 * 7, 0)
    check_voxels(place, "folder", arrays)


def test_of_a_bucket_each_chunk_is_asked_for_once_and_nothing_is_listed(
    place: Place, s3: S3Server, arrays: dict[str, Volume]
) -> None:
    with counting_proxy(("127.0.0.1", int(s3.endpoint_url.rpartition(":")[2]))) as proxy:
        place.config.write_text(place.config.read_text().replace("{proxy}", proxy.endpoint_url))
        with place.service():
            check_voxels(place, "bucket", arrays)
        asked = Counter(proxy.objects())
    assert not [line for line in proxy.requests if "list-type=" in line]
    written = [
        path.relative_to(place.root / "source").as_posix() for path in (place.root / "source").rglob("*")
    ]
    root = f"/{s3.bucket}/scroll"
    images = [f"{root}/{key}" for key in written if re.fullmatch(r"scan.*/[0-9]+[.][0-9.]+", key)]
    assert len(images) == 5 * 3 * 4
    assert [asked[key] for key in images] == [1] * len(images)
    shards = {key: number for key, number in asked.items() if "/c/" in key}
    assert len(shards) == 5 * 3 * 4, "those that are not there, too"
    there = np.zeros((5, 3, 4), int)
    for at in np.ndindex(9, 5, 7):  # the chunks in them
        part = arrays["mask"][tuple(slice(8 * n, 8 * n + 8) for n in at)]
        there[at[0] // 2, at[1] // 2, at[2] // 2] += part.any()
    expected = {
        f"/{s3.bucket}/scroll/mask.zarr/c/{z}/{y}/{x}": there[z, y, x] + 1 for z, y, x in np.ndindex(5, 3, 4)
    }
    assert shards == expected, "each chunk once, and each index"
    assert asked.total() - len(images) - sum(shards.values()) < 12, "metadata"
