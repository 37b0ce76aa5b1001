"""Rows that are not in the page cache: the kernel is told of them first, and what is read is the same."""

import ctypes
import mmap
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from running import Place
from sets import shard_files
from stager_client.cuts import GridPatch, RandomCrop
from stager_client.numpy import StagedArrays
from stager_client.reading import disk
from stager_client.reading.disk import ReadAhead
from volumes import voxels, write_zarr

COUNT, SIDE = 90, 40
CONFIG = """
[datasets.rows]
source = "{root}/rows"
[datasets.rows.recipe]
kind = "array"
dtype = "uint8"
shape = [40, 40]
[datasets.bricks]
source = "{root}"
layout = "volume"
volumes = {{ image = "scan.zarr" }}
[datasets.bricks.recipe]
kind = "volume"
fields = {{ image = "uint8" }}
brick = [8, 8, 8]
"""
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "whole rows": ("rows", {"shuffle": True}),
    "bricks": ("bricks", {"shuffle": True}),
    "patches": ("bricks", {"cut": GridPatch((9, 20, 11), borders="pad")}),
    "parts of rows": ("rows", {"cut": RandomCrop((7, 9))}),
}
Told = list[tuple[int, int, int]]  # descriptor, first byte, how many


pytestmark = pytest.mark.usefixtures("with_and_without_c")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    root = tmp_path_factory.mktemp("disk")
    (root / "rows" / "one").mkdir(parents=True)
    for number in range(COUNT):
        np.save(root / "rows" / "one" / f"{number:03}.npy", voxels((SIDE, SIDE), seed=number))
    write_zarr(root / "scan.zarr", voxels((24, 40, 33)), (16, 16, 16))
    place = Place(root).configure(CONFIG.format(root=root))
    for name in ("rows", "bricks"):
        assert place.json("prefetch", name)["failed"] == 0
    with pytest.MonkeyPatch.context() as patch:
        for name, value in place.env().items():
            patch.setenv(name, value)
        yield place


def drop(path: Path) -> None:
    """Out of the page cache, as after a reboot."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def epochs(way: str) -> list[npt.NDArray[Any]]:
    """Two of them: rows that are checked, and rows that were."""
    name, options = WAYS[way]
    data = StagedArrays(name, 16, **options)
    data.loader.samples.reader._fits_memory = False  # as of data that are larger
    return [np.concatenate([batch for batch, _ in data]) for _ in range(2)]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    """What the kernel is told, which it is all the same."""
    found: Told = []
    hint = ReadAhead.hint

    def noted(self: ReadAhead, descriptors: Any, starts: Any, sizes: Any) -> None:
        found.extend(zip(map(int, descriptors), starts.tolist(), sizes.tolist(), strict=True))
        hint(self, descriptors, starts, sizes)

    monkeypatch.setattr(ReadAhead, "hint", noted)
    return found


@pytest.mark.parametrize("way", WAYS)
def test_a_hint_never_changes_a_byte(
    place: Place, way: str, monkeypatch: pytest.MonkeyPatch, told: Told
) -> None:
    monkeypatch.setattr(disk, "QUIET", 0)
    expected = epochs(way)
    assert not told
    monkeypatch.setattr(disk, "QUIET", 1 << 30)
    for path in shard_files(place, WAYS[way][0]):
        drop(path)
    for found, right in zip(epochs(way), expected, strict=True):
        np.testing.assert_array_equal(found, right)
    assert told


def test_of_each_batch_all_is_told_that_it_reads_and_no_more(
    place: Place, monkeypatch: pytest.MonkeyPatch, told: Told
) -> None:
    monkeypatch.setattr(disk, "QUIET", 1 << 30)
    epochs("whole rows")
    assert {size for _, _, size in told} == {SIDE * SIDE}
    assert len(told) == 2 * COUNT
    assert len({(start, file) for file, start, _ in told}) == COUNT


def test_of_a_patch_only_those_bytes_of_a_brick_are_told_that_it_takes(
    place: Place, monkeypatch: pytest.MonkeyPatch, told: Told
) -> None:
    data = StagedArrays("bricks", 1, cut=GridPatch((8, 8, 3)))
    for _ in data:
        pass
    monkeypatch.setattr(disk, "QUIET", 1 << 30)
    del told[:]
    first, *_ = data
    assert first[0].shape == (1, 1, 8, 8, 3)
    assert told[0][2] == 8 * 8 * 8 - 5  # from the first voxel of the patch in the brick to the last


def test_a_file_that_was_dropped_is_in_memory_soon_after_the_hint(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 8192)  # 2 MiB: of a longer one than a step, all of it
    drop(path)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE) as mapped:
        if all(resident(mapped)):
            assert not os.environ.get("CI"), f"{tmp_path} keeps its files in memory"
            pytest.skip("a file here is always in memory")
        ReadAhead().hint([file.fileno()], np.array([0]), np.array([2 << 20]))
        deadline = time.monotonic() + 60
        while not all(resident(mapped)) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert all(resident(mapped))


def resident(mapped: mmap.mmap) -> list[bool]:
    """Of each page, whether the page cache has it."""
    pages = -(-len(mapped) // mmap.PAGESIZE)
    found = (ctypes.c_ubyte * pages)()
    first = ctypes.c_char.from_buffer(mapped)
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        address = ctypes.c_void_p(ctypes.addressof(first))
        assert libc.mincore(address, ctypes.c_size_t(len(mapped)), found) == 0
    finally:
        del first
    return [bool(page & 1) for page in found]


def test_hints_end_when_nothing_comes_from_the_disk(place: Place) -> None:
    data = StagedArrays("rows", 1)
    data.loader.samples.reader._fits_memory = False
    ahead = data.loader.samples.reader._ahead
    assert ahead.is_on  # nobody knows yet
    for _ in range(3):
        for _ in data:
            pass
    assert not ahead.is_on


def test_a_file_that_is_gone_or_shorter_is_no_matter_of_the_hint(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    with (tmp_path / "file").open("rb") as file:
        ReadAhead().hint([file.fileno(), 987_654], np.array([1 << 40, 0]), np.array([5, 5]))
        assert file.read() == b"12345"
