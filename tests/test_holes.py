"""Single samples are evicted: their space comes back, their neighbours stay, and no reader sees a hole."""

import os
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from making import image_folder
from running import Place
from shard_cases import header_for, make_row
from stager.cache.cache import Cache
from stager.cache.dataset import Dataset
from stager.cache.verify import check_books, problem_of
from stager.config import load_config
from stager.errors import ShardCorrupt
from stager.reader.shards import open_shard
from stager.reader.values import Arrays, Field
from stager.shards import FORMATS, verify_shard
from stager.shards.holes import BLOCK_BYTES, can_punch, holes_of, punch, size_of
from stager_client.batches.buffers import BufferPool
from stager_client.reading.reader import Reader

FIELD = Field("image", "uint8", (96, 96, 3), "raw")
VARIABLE = Field("image", "uint8", (None, None, 3), "raw")


def disk_bytes(path: Path) -> int:
    return path.stat().st_blocks * 512


@pytest.mark.parametrize("field", [FIELD, VARIABLE], ids=["fixed", "variable"])
@pytest.mark.parametrize("name", FORMATS)
def test_dead_rows_give_their_blocks_back_and_the_others_stay(
    tmp_path: Path, name: str, field: Field
) -> None:
    assert can_punch(tmp_path)
    assert list(tmp_path.iterdir()) == []
    path = tmp_path / f"shard{FORMATS[name].suffix}"
    rng = np.random.default_rng(0)
    images = [rng.integers(1, 256, (96, 96, 3), dtype=np.uint8) for _ in range(20)]
    rows = [make_row((field,), f"{at}", "v", {"image": image}) for at, image in enumerate(images)]
    FORMATS[name].write(path, header_for((field,)), rows)
    with path.open("rb") as file:
        os.fsync(file.fileno())
    before, size = disk_bytes(path), path.stat().st_size
    dead = [0, 3, 4, 5, 11, 19]
    shard = open_shard(path)
    holes = holes_of(shard, dead)
    assert punch(path, holes)
    assert punch(path, holes)  # once more does no harm
    assert path.stat().st_size == size
    extents = 2 * BLOCK_BYTES  # what the file system itself may need to remember the holes
    assert 0 <= size_of(holes) - (before - disk_bytes(path)) <= extents
    assert size_of(holes) >= len(dead) * (images[0].nbytes - 2 * BLOCK_BYTES)
    assert verify_shard(path, set(dead)) == []
    assert verify_shard(path) == dead
    for at in set(range(20)) - set(dead):
        assert np.array_equal(shard.row(at)["image"], images[at])  # one who opened it before sees them, too


def staged(tmp_path: Path, crop: int = 96) -> tuple[Place, Cache, Dataset]:
    """Thirty images of 96 px in one shard or a few, and the owner of their cache."""
    image_folder(tmp_path / "source", 3, 10)
    place = Place(tmp_path).configure(
        f'[datasets.data]\nsource = "{tmp_path}/source"\n[datasets.data.recipe]\n'
        f'kind = "image"\nresize = {crop}\ncrop = {crop}\n'
    )
    assert place.json("prefetch")["staged"] == 30
    cache = Cache(load_config(place.config))
    return place, cache, cache.datasets["data"]


def test_the_books_stay_right_over_restarts_and_without_a_catalog(tmp_path: Path) -> None:
    place, cache, dataset = staged(tmp_path)
    before = cache.budget.used_bytes
    victims = np.asarray([0, 1, 2, 7, 20])
    freed = cache.departures.evict_samples(dataset, victims, "evicted", "for a test")
    assert freed >= 5 * (96 * 96 * 3 - 2 * BLOCK_BYTES)
    assert cache.budget.used_bytes == before - freed
    left = sorted(set(range(30)) - set(victims.tolist()))
    assert dataset.resident().tolist() == left
    assert dataset.departure_log.of(7) is not None
    for shard in cache.catalog.shards():
        assert problem_of(dataset.path_of(shard), shard.dead_rows) == ""
    used = cache.budget.used_bytes
    for lost in (False, True):
        cache.close()
        if lost:
            (place.cache / "catalog.db").unlink()
        cache = Cache(load_config(place.config))
        dataset = cache.datasets["data"]
        assert dataset.resident().tolist() == left
        assert cache.budget.used_bytes == used
        assert check_books(cache, set()) == []
    cache.departures.evict_samples(dataset, np.asarray(left), "evicted", "for a test")
    assert cache.catalog.shards() == []
    assert cache.budget.used_bytes == 0
    cache.close()
    assert place.leftovers() == []


def test_verify_is_content_with_evicted_rows_and_stages_nothing_again(tmp_path: Path) -> None:
    place, cache, dataset = staged(tmp_path)
    cache.departures.evict_samples(dataset, np.asarray([3, 4]), "evicted", "for a test")
    cache.close()
    assert place.json("verify", "--repair")["bad"] == []
    with place.service():
        assert place.json("verify", "--repair")["bad"] == []
        assert place.json("status")["datasets"][0]["resident"] == 28


@pytest.mark.parametrize("way", ["visit", "fill"])
def test_no_reader_sees_a_hole_while_rows_are_evicted_under_it(
    tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stager.reader.shards.file.OPEN_MAX", 1)  # and files are closed under it, too
    _, cache, dataset = staged(tmp_path)
    reader = Reader(dataset.directory, dataset.record)
    numbers = list(range(30))
    got: dict[int, npt.NDArray[np.uint8]] = {}
    pool = BufferPool((30, 96, 96, 3), np.uint8)

    def take(at: int, arrays: Arrays) -> None:
        got[at] = arrays["image"].copy()

    def look() -> tuple[list[int], list[int]]:
        if way == "visit":
            return reader.visit(numbers, take)
        rows = pool.take()
        told = reader.fill(np.asarray(numbers), {"image": rows})
        got.update(enumerate(rows.copy()))
        return told

    assert look() == ([], [])
    right = dict(got)
    kept = tmp_path / "kept"
    shutil.copytree(dataset.directory / "shards", kept)
    rows = cache.catalog.shards()
    stop = threading.Event()
    seen: list[int] = []
    wrong: list[int] = []

    def read() -> None:
        while not stop.is_set():
            missing, corrupt = look()
            here = set(numbers) - set(missing) - set(corrupt)
            wrong.extend(at for at in here if not np.array_equal(got[at], right[at]))
            seen.append(len(missing))

    thread = threading.Thread(target=read)
    thread.start()
    victims = np.arange(0, 30, 2)
    ends = time.monotonic() + 2
    while time.monotonic() < ends or len(set(seen)) < 2:
        cache.departures.evict_samples(dataset, victims, "evicted", "for a test")
        for row in rows:  # they are staged again, in shards of new numbers
            number, path = cache.next_shard(dataset, row.format)
            shutil.copyfile(kept / dataset.path_of(row).name, path)
            again = replace(
                row, number=number, samples=np.where(np.isin(row.samples, victims), row.samples, -1)
            )
            cache.publish(dataset, again)
            cache.budget.take(again.bytes).charge(again.bytes)
            cache.catalog.add_shard(again)
    stop.set()
    thread.join()
    assert wrong == []
    assert len(set(seen)) > 1  # it did look while some were gone
    cache.departures.evict_samples(dataset, np.arange(30), "evicted", "for a test")
    assert look()[0] == numbers
    links = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    assert not [link for link in links if link.endswith("(deleted)") and str(tmp_path) in link]
    cache.close()


@pytest.mark.parametrize("how", ["fill", "visit"])
def test_a_reader_lets_go_of_what_is_evicted_however_it_read_and_however_it_reads_on(
    tmp_path: Path, how: str
) -> None:
    _, cache, dataset = staged(tmp_path, crop=192)  # in files that are large enough to be mapped
    reader = Reader(dataset.directory, dataset.record)
    batch = {"image": np.zeros((30, 192, 192, 3), np.uint8)}
    for _ in range(2):
        assert reader.fill(np.arange(30), batch) == ([], [])
    cache.departures.evict_samples(dataset, np.arange(30), "evicted", "for a test")
    everything = list(range(30))
    if how == "fill":
        assert reader.fill(np.arange(30), batch) == (everything, [])
    else:
        assert reader.visit(everything, lambda at, arrays: None) == (everything, [])
    held = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    held += Path("/proc/self/maps").read_text().splitlines()
    assert not [name for name in held if name.endswith("(deleted)") and str(tmp_path) in name]
    cache.close()


def test_a_row_that_was_punched_reads_as_corrupt_by_its_checksum(tmp_path: Path) -> None:
    _, cache, dataset = staged(tmp_path)
    (shard, *_) = cache.catalog.shards()
    path = dataset.path_of(shard)
    assert punch(path, holes_of(open_shard(path), [0]))
    reader = Reader(dataset.directory, dataset.record)
    missing, corrupt = reader.visit([int(shard.samples[0])], lambda at, arrays: None)
    assert (missing, corrupt) == ([], [0])
    with pytest.raises(ShardCorrupt):
        reader._sample(int(shard.samples[0]), reader._shards[shard.number], 0, np.uint64(1), None, None)
    cache.close()
