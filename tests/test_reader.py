"""A reader alone with the files: rows go while it copies them, bits flip, samples fail."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from running import Place
from stager.cache.cache import Cache
from stager.cache.dataset import Dataset, Failure
from stager.catalog.rows import ShardRow
from stager.config import load_config
from stager.errors import UsageError, WaitTimeout
from stager.reader.cuts.crop import RandomCrop
from stager.reader.cuts.cut import Draws, NoSuchPart, Rows, Sides
from stager.reader.cuts.pieces import Pieces
from stager.reader.samples.subset import Subset
from stager.reader.values import Arrays
from stager_client import samples
from stager_client.batches.loader import BatchLoader
from stager_client.reading.reader import Reader
from stager_client.samples import StagedSamples
from test_cache import KEYS, config_of, scan, stage


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Cache]:
    cache = Cache(config_of(tmp_path))
    yield cache
    cache.close()


def reader_of(dataset: Dataset) -> Reader:
    return Reader(dataset.directory, dataset.record)


def test_a_sample_that_is_evicted_while_it_is_copied_is_missing(cache: Cache) -> None:
    dataset = scan(cache, KEYS)
    stage(cache, dataset, [0, 1, 2])
    reader = reader_of(dataset)

    def take(at: int, arrays: Arrays) -> None:
        if at == 1:
            cache.departures.evict_samples(dataset, np.asarray([1]), "evicted", "for a test")

    assert reader.visit([0, 1, 2], take) == ([1], [])


def test_a_shard_that_goes_before_its_turn_is_missing_and_not_corrupt(cache: Cache) -> None:
    """Whatever goes wrong with a row, the word is asked first: is it still there at all?"""
    dataset = scan(cache, KEYS)
    stage(cache, dataset, [0])
    gone = stage(cache, dataset, [1])
    reader = reader_of(dataset)

    def take(at: int, arrays: Arrays) -> None:
        cache.departures.evict([gone])

    assert reader.visit([0, 1], take) == ([1], [])


class Small(RandomCrop):
    """A cut that says of one row that it is too small."""

    too_small: tuple[int, Callable[[], object]]

    def __init__(self, row: int, meanwhile: Callable[[], object]) -> None:
        super().__init__(1)
        object.__setattr__(self, "too_small", (row, meanwhile))

    def pieces(self, draws: Draws, rows: Rows, sides: Mapping[str, Sides]) -> dict[str, Pieces]:
        row, meanwhile = self.too_small
        if row in rows.positions:
            meanwhile()
            raise NoSuchPart(rows.positions.tolist().index(row), "it is too small", "")
        return super().pieces(draws, rows, sides)


def test_a_row_that_goes_before_its_part_is_chosen_is_missing_and_no_error(cache: Cache) -> None:
    """A row that was punched has other shapes: what a cut says of them is not the user's mistake."""
    dataset = scan(cache, KEYS)
    stage(cache, dataset, [0, 1, 2])
    reader = reader_of(dataset)
    out = {"image": np.zeros((3, 1, 2, 3), np.uint8)}

    def cut(cut: Small) -> tuple[list[int], list[int]]:
        draws = Draws.of(0, 0, np.arange(3), np.arange(3))
        return reader.cut(np.arange(3), cut, draws, cut.rows(draws), out)

    def evict() -> None:
        cache.departures.evict_samples(dataset, np.asarray([1]), "evicted", "for a test")

    with pytest.raises(UsageError, match="too small"):
        cut(Small(1, lambda: None))
    assert cut(Small(1, evict)) == ([1], [])
    assert (out["image"][0] == 0).all()
    assert (out["image"][2] == 2).all()


def test_what_is_evicted_while_its_piece_is_copied_is_missing(cache: Cache) -> None:
    dataset = scan(cache, KEYS)
    stage(cache, dataset, [0, 1, 2])
    reader = reader_of(dataset)

    class Slow(RandomCrop):
        def pieces(self, draws: Draws, rows: Rows, sides: Mapping[str, Sides]) -> dict[str, Pieces]:
            found = super().pieces(draws, rows, sides)
            cache.departures.evict_samples(dataset, np.asarray([2]), "evicted", "for a test")
            return found

    draws = Draws.of(0, 0, np.arange(3), np.arange(3))
    out = {"image": np.zeros((3, 1, 2, 3), np.uint8)}
    cut = Slow(1)
    assert reader.cut(np.arange(3), cut, draws, cut.rows(draws), out) == ([2], [])
    assert (out["image"][1] == 1).all()


def flip(dataset: Dataset, row: ShardRow, sample: int) -> None:
    path = dataset.path_of(row)
    data = bytearray(path.read_bytes())
    data[data.find(bytes([sample] * 12)) + 5] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("way", ["visit", "fill"])
def test_a_bit_that_has_flipped_is_found_at_the_first_touch(cache: Cache, way: str) -> None:
    dataset = scan(cache, KEYS)
    flip(dataset, stage(cache, dataset, [3, 4, 5]), 4)
    reader = reader_of(dataset)
    batch = {"image": np.zeros((3, 2, 2, 3), np.uint8)}
    if way == "visit":
        found = reader.visit([3, 4, 5], lambda at, arrays: None)
    else:
        found = reader.fill(np.asarray([3, 4, 5]), batch)
    assert found == ([], [1])


def test_a_sample_that_is_staged_anew_is_checked_anew(cache: Cache) -> None:
    dataset = scan(cache, KEYS)
    first = stage(cache, dataset, [3, 4])
    reader = reader_of(dataset)
    batch = {"image": np.zeros((2, 2, 2, 3), np.uint8)}
    assert reader.fill(np.asarray([3, 4]), batch) == ([], [])
    cache.departures.evict([first])
    flip(dataset, stage(cache, dataset, [3, 4]), 4)
    assert reader.fill(np.asarray([3, 4]), batch) == ([], [1])


def test_a_miss_ends_at_its_deadline_by_the_clock_and_not_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that goes on by a second at each look, and no service."""
    place = Place(tmp_path).configure("")
    monkeypatch.setenv("STAGER_CONFIG", str(place.config))
    cache = Cache(load_config(place.config))
    scan(cache, KEYS)
    data = StagedSamples("data", Subset(), None, 20.0, skip_failed=False)
    looks = itertools.count()
    clock = SimpleNamespace(monotonic=lambda: float(next(looks)), sleep=time.sleep)
    monkeypatch.setattr(samples, "time", clock)
    with pytest.raises(WaitTimeout, match="not staged"):
        data.visit([0], lambda at, arrays: None, threading.Event())
    assert 20 <= next(looks) <= 24
    cache.close()


def test_a_state_does_not_fit_a_run_in_which_another_sample_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are as many, and they are not the same: some would be read twice, and others never."""
    place = Place(tmp_path).configure("")
    monkeypatch.setenv("STAGER_CONFIG", str(place.config))
    cache = Cache(load_config(place.config))
    dataset = scan(cache, KEYS)
    stage(cache, dataset, [0, 1, 2, 3, 6, 7, 8, 9, 10, 11])
    loaders = []
    for failed in (4, 4, 5):
        dataset.index.clear(np.asarray([4, 5]))
        cache.record_failures(dataset, [Failure(failed, "corrupt", "bad")])
        data = StagedSamples("data", Subset(), None, 1.0, skip_failed=True)
        assert len(data) == 11
        loaders.append(BatchLoader(data, 4, shuffle=True))
    before, same, other = loaders
    same.load_state_dict(before.state_dict())
    with pytest.raises(UsageError, match="the state was saved for other data"):
        other.load_state_dict(before.state_dict())
    cache.close()
