"""Patches with real processes: each chunk is asked for once, however many read; and where not all fits."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from countingproxy import CountingProxy, counting_proxy
from running import Place
from s3server import S3Server
from stager.errors import UsageError
from stager.recipes import check_recipe, open_recipe
from stager_client.batches import assembly
from stager_client.cuts import RandomPatch
from stager_client.numpy import StagedArrays
from volumes import Volume, voxels, write_zarr

SHAPE, CHUNK, BRICK, SIZE = (64, 64, 48), 16, 8, (10, 12, 12)
CHUNKS = 4 * 4 * 3
CUT = RandomPatch(SIZE)


@pytest.fixture(scope="module")
def volume() -> Volume:
    return voxels(SHAPE)


@pytest.fixture
def proxy(s3: S3Server, volume: Volume, tmp_path: Path) -> Iterator[CountingProxy]:
    """In front of a bucket that has the volume."""
    write_zarr(tmp_path / "made", volume, (CHUNK,) * 3)
    for path in (tmp_path / "made").rglob("*"):
        if path.is_file():
            key = f"served/v.zarr/{path.relative_to(tmp_path / 'made')}"
            s3.client().put_object(Bucket=s3.bucket, Key=key, Body=path.read_bytes())
    with counting_proxy(("127.0.0.1", int(s3.endpoint_url.rpartition(":")[2]))) as proxy:
        yield proxy


def served(root: Path, s3: S3Server, proxy: CountingProxy, **limits: str) -> Place:
    return Place(root).configure(
        f'[datasets.scroll]\nsource = "s3://{s3.bucket}/served"\nendpoint_url = "{proxy.endpoint_url}"\n'
        'layout = "volume"\nvolumes = { image = "v.zarr" }\n'
        '[datasets.scroll.recipe]\nkind = "volume"\nfields = { image = "uint8" }\n'
        f"brick = [{BRICK}, {BRICK}, {BRICK}]\n",
        **limits,
    )


def chunks_asked(proxy: CountingProxy) -> Counter[str]:
    return Counter(path.partition("/c/")[2] for path in proxy.objects() if "/c/" in path)


def touched(wheres: list[list[int]]) -> set[str]:
    found = set()
    for _, *corner in wheres:
        first = [at // CHUNK for at in corner]
        last = [(at + side - 1) // CHUNK for at, side in zip(corner, SIZE, strict=True)]
        for at in np.ndindex(*(b - a + 1 for a, b in zip(first, last, strict=True))):
            found.add("/".join(str(a + n) for a, n in zip(first, at, strict=True)))
    return found


def read(loader: Any, volume: Volume) -> list[list[int]]:
    """Where the patches of an epoch are, each compared with the volume."""
    places = []
    for batch, where in loader:
        for patch, at in zip(batch, where.tolist(), strict=True):
            box = tuple(slice(a, a + side) for a, side in zip(at[1:], SIZE, strict=True))
            np.testing.assert_array_equal(patch[0], volume[box])
            places.append(at)
    return places


def side_by_side(reads: list[Callable[[], Any]]) -> list[Any]:
    """What each gives, all of them under way at once."""
    found: list[Any] = [None] * len(reads)

    def run(number: int) -> None:
        found[number] = reads[number]()

    threads = [threading.Thread(target=run, args=[number]) for number in range(len(reads))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert None not in found, "one of them raised"
    return found


def test_ranks_ask_once_for_each_chunk_that_their_patches_touch(
    tmp_path: Path, s3: S3Server, proxy: CountingProxy, volume: Volume, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = served(tmp_path, s3, proxy)
    for name, value in place.env().items():
        monkeypatch.setenv(name, value)

    def rank(number: int) -> list[list[int]]:
        options: dict[str, Any] = {"seed": 3, "cut": CUT, "length": 24, "rank": number, "world_size": 4}
        return read(StagedArrays("scroll", 1, **options), volume)

    with place.service():
        places = side_by_side([lambda number=number: rank(number) for number in range(4)])  # type: ignore[misc]
    assert chunks_asked(proxy) == Counter(touched([at for of_rank in places for at in of_rank]))


def test_two_trainings_and_a_prefetch_ask_once_for_each_chunk(
    tmp_path: Path, s3: S3Server, proxy: CountingProxy, volume: Volume, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = served(tmp_path, s3, proxy)
    for name, value in place.env().items():
        monkeypatch.setenv(name, value)

    def training(seed: int) -> list[list[int]]:
        return read(StagedArrays("scroll", 1, seed=seed, cut=CUT, length=30), volume)

    with place.service():
        side_by_side([lambda: training(1), lambda: training(2), lambda: place.json("prefetch", "scroll")])
        assert "a sample is image uint8 8x8x8" in place.run("prefetch", "scroll").stdout
        told = place.json("why", "scroll", "v.zarr#8,16,0")
        assert told["resident"] is True
        assert place.run("why", "scroll", "v.zarr#8,16,1").returncode == 2
    asked = chunks_asked(proxy)
    assert len(asked) == CHUNKS
    assert set(asked.values()) == {1}


def test_a_chunk_is_not_asked_for_again_in_later_epochs_nor_by_a_training_that_begins_later(
    tmp_path: Path, s3: S3Server, proxy: CountingProxy, volume: Volume, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = served(tmp_path, s3, proxy)
    for name, value in place.env().items():
        monkeypatch.setenv(name, value)
    with place.service():
        loader = StagedArrays("scroll", 1, seed=1, cut=CUT, length=12)
        seen = [*read(loader, volume), *read(loader, volume)]
        seen += read(StagedArrays("scroll", 1, seed=2, cut=CUT, length=12), volume)
    assert chunks_asked(proxy) == Counter(touched(seen))


def test_where_a_quarter_fits_patches_are_right_and_room_is_kept(
    tmp_path: Path, s3: S3Server, proxy: CountingProxy, volume: Volume, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = CHUNKS * CHUNK**3 // 4 + 65536
    place = served(tmp_path, s3, proxy, capacity=str(room), memory="1MB")
    for name, value in place.env().items():
        monkeypatch.setenv(name, value)
    with place.service():
        loader = StagedArrays("scroll", 2, seed=1, cut=CUT, length=40)
        epochs = [read(loader, volume) for _ in range(3)]
        kept = sum(
            path.stat().st_blocks * 512 for path in place.cache.rglob("shards/*") if not path.is_symlink()
        )
        assert kept <= room
        told = place.json("stats", "scroll")
    assert len({str(epoch) for epoch in epochs}) == 3
    assert told


@pytest.mark.parametrize(
    ("patch", "brick"),
    [
        ([72, 136, 136], (32, 32, 32)),
        ([16, 16, 16], (8, 8, 8)),
        ([1, 512, 512], (1, 128, 128)),
        ([3, 128, 128], (1, 64, 64)),
        ([1], (1,)),
    ],
)
def test_bricks_are_chosen_from_the_size_of_patches(patch: list[int], brick: tuple[int, ...]) -> None:
    spec = check_recipe({"kind": "volume", "fields": {"image": "uint8"}, "patch": patch})
    assert spec["brick"] == brick
    assert check_recipe(spec) == spec, "what was checked is right"
    assert open_recipe(spec).digest == open_recipe({**spec, "patch": []}).digest
    with pytest.raises(UsageError, match="a brick and a patch"):
        check_recipe({**spec, "brick": [3] * len(patch)})
    assert all(side <= max(n // 2, 1) for side, n in zip(brick, patch, strict=True))


def test_small_batches_that_are_cut_together_are_those_that_are_cut_alone(
    tmp_path: Path, s3: S3Server, proxy: CountingProxy, volume: Volume, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = served(tmp_path, s3, proxy)
    monkeypatch.setenv("STAGER_CONFIG", str(place.config))
    assert place.json("prefetch", "scroll")["failed"] == 0

    def epochs(size: int) -> list[tuple[bytes, list[list[int]]]]:
        loader = StagedArrays("scroll", size, cut=CUT, length=75, seed=3)
        together = loader.loader.assembly.together
        assert (together > 1) == (
            size == 2 and assembly.TOGETHER_MAX > 1
        )  # 1,440 bytes alone are not aligned
        kept = [(batch.copy(), where.tolist()) for _ in range(2) for batch, where in loader]
        assert [len(where) for _, where in kept[-2:]] == [size, 75 % size or size]
        return [(batch.tobytes(), where) for batch, where in kept]

    at_once = epochs(2)
    assert len({batch for batch, _ in at_once}) == len(at_once)
    alone = epochs(1)
    monkeypatch.setattr(assembly, "TOGETHER_MAX", 1)
    assert epochs(2) == at_once
    assert [where for _, wheres in at_once for where in wheres] == [
        where for _, wheres in alone for where in wheres
    ]
    read(StagedArrays("scroll", 2, cut=CUT, length=75, seed=3), volume)
