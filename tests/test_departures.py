"""Rows are given back in one order: words, catalog, blocks and file. At no time a word points to a hole."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stager import recipes
from stager.cache import cache as cache_module
from stager.cache.cache import Cache
from stager.cache.dataset import Dataset
from stager.cache.gone import departures
from stager.cache.gone import unlinked as departed
from stager.cache.start import startup
from stager.cache.verify import check_books, drop_bad_shards
from stager.dispatch.memory_shards import Transients
from stager.eviction.evictor import Evictor
from stager.reader.index import IndexReader, Words, is_resident, shard_of
from stager.reader.record import DatasetSpec
from stager.reader.values import SourceSpec
from stager.recipes import check_recipe
from stager.sessions.session import Sessions
from stager.shards import holes
from test_cache import KEYS, SPEC, build, config_of, scan, stage

LARGE = replace(
    SPEC, recipe=check_recipe({"kind": "image", "resize": 64, "crop": 64})
)  # rows of three blocks
ROW_BYTES = 64 * 64 * 3


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Cache]:
    cache = Cache(config_of(tmp_path))
    if not cache.can_punch:
        pytest.skip("this file system cannot give back a part of a file")
    yield cache
    cache.close()


def mapped(dataset: Dataset) -> Words:
    """The index as a reader has it that opened it now."""
    return IndexReader(dataset.index.path, dataset.record.lineage, dataset.record.recipe).words


def at_each_punch(monkeypatch: pytest.MonkeyPatch, look: Callable[[], Any]) -> list[Any]:
    """What `look` says right before blocks are given back, each time."""
    seen: list[Any] = []

    def punch(path: Path, places: Any) -> bool:
        seen.append(look())
        return holes.punch(path, places)

    for module in (departures, departed):
        monkeypatch.setattr(module, "punch", punch)
    return seen


def test_a_row_is_punched_when_no_word_points_to_it_any_more_and_the_catalog_calls_it_dead(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = scan(cache, KEYS, LARGE)
    row, words = stage(cache, dataset, list(range(8))), mapped(dataset)
    seen = at_each_punch(monkeypatch, lambda: (words.copy(), cache.catalog.shard(row.number).dead_rows))
    assert cache.departures.evict_samples(dataset, np.asarray([2, 3, 4]), "evicted", "for a test")
    ((then, dead),) = seen
    assert not then[[2, 3, 4]].any()
    assert is_resident(then[[0, 1, 5, 6, 7]]).all()
    assert dead == [2, 3, 4]


def test_a_shard_is_punched_and_unlinked_when_neither_a_word_nor_the_catalog_has_it_any_more(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = scan(cache, KEYS, LARGE)
    row, words = stage(cache, dataset, [1, 2]), mapped(dataset)
    path = dataset.path_of(row)
    seen = at_each_punch(
        monkeypatch, lambda: (words.any(), cache.catalog.find_shard(row.number), path.exists())
    )
    cache.departures.evict([row])
    assert seen == [(False, None, True)]
    assert not path.exists()


def test_a_sample_of_two_shards_stays_resident_when_one_of_them_goes(tmp_path: Path) -> None:
    """As in a catalog that a build before made anew from the files: both have it."""
    cache = Cache(config_of(tmp_path))
    dataset = scan(cache, KEYS)
    stage(cache, dataset, [1, 2])
    both = stage(cache, dataset, [2, 3])
    both.samples[:] = [2, 3]
    cache.catalog.put_samples([both])
    cache.close()
    cache = Cache(config_of(tmp_path))
    dataset = cache.datasets["data"]
    kept, gone = cache.catalog.shards()
    assert (kept.samples.tolist(), gone.samples.tolist()) == ([1, 2], [2, 3])
    cache.departures.evict([gone])
    assert dataset.resident().tolist() == [1, 2]
    assert shard_of(dataset.index.words[[1, 2]]).tolist() == [kept.number] * 2
    assert check_books(cache, set()) == []
    cache.close()


def test_a_catalog_made_anew_has_each_sample_once_so_what_is_evicted_then_stays_away(tmp_path: Path) -> None:
    """Nobody can tell which of two rows was dead: simulate.py, seeds 13973 and 16885."""
    cache = Cache(config_of(tmp_path))
    dataset = scan(cache, KEYS)
    stage(cache, dataset, [1, 2])
    stage(cache, dataset, [2, 3])
    for _ in range(2):
        cache.close()
        (cache.directory / "catalog.db").unlink()
        cache = Cache(config_of(tmp_path))
        assert [row.samples.tolist() for row in cache.catalog.shards()] == [[1, 2], [-1, 3]]
    dataset = cache.datasets["data"]
    assert dataset.resident().tolist() == [1, 2, 3]
    cache.departures.evict_samples(dataset, np.asarray([2]), "evicted", "")
    assert check_books(cache, set()) == []
    cache.close()
    cache = Cache(config_of(tmp_path))
    assert cache.datasets["data"].resident().tolist() == [1, 3]
    cache.close()


def test_what_is_evicted_is_not_there_after_a_restart_either(tmp_path: Path) -> None:
    cache = Cache(config_of(tmp_path))
    dataset = scan(cache, KEYS, LARGE)
    stage(cache, dataset, list(range(8)))
    cache.departures.evict_samples(dataset, np.asarray([2, 3, 4]), "evicted", "for a test")
    cache.close()
    again = Cache(config_of(tmp_path))
    assert again.datasets["data"].resident().tolist() == [0, 1, 5, 6, 7]
    again.close()


def test_readers_are_told_when_shards_have_gone_so_that_they_let_go_of_them(cache: Cache) -> None:
    dataset = scan(cache, KEYS)
    rows = [stage(cache, dataset, [sample]) for sample in range(3)]
    reader = IndexReader(dataset.index.path, dataset.record.lineage, dataset.record.recipe)
    acts: list[Callable[[], object]] = [
        lambda: cache.departures.evict(rows[:1]),
        lambda: cache.departures.evict_samples(dataset, np.asarray([1]), "evicted", "for a test"),
        lambda: cache.departures.take_back(dataset, rows[2]),
    ]
    for told, act in enumerate(acts):
        assert reader.evictions == told
        act()
    assert reader.evictions == 3
    assert not reader.words.any()


def test_rows_that_no_version_has_go_unless_they_are_pinned_or_somebody_reads_their_version(
    cache: Cache,
) -> None:
    dataset = scan(cache, KEYS)
    first = dataset.record.manifest
    pinned = stage(cache, dataset, [0, 1])
    stage(cache, dataset, list(range(2, 12)))
    cache.catalog.pin_shards([pinned.number], True)
    scan(cache, dict.fromkeys(KEYS, "v2"))
    cache.departures.give_back_stale({"data": {first}}, ())
    assert dataset.resident().tolist() == list(range(12))
    cache.departures.give_back_stale({"data": {dataset.record.manifest}}, ())
    assert dataset.resident().tolist() == [0, 1]


def test_what_is_pinned_does_not_make_room_for_what_a_reader_needs(cache: Cache) -> None:
    dataset = scan(cache, KEYS, LARGE)
    pinned, free = stage(cache, dataset, [0, 1, 2, 3]), stage(cache, dataset, [4, 5, 6, 7])
    cache.catalog.pin_shards([pinned.number], True)
    nothing = lambda dataset, samples: np.zeros(len(samples), dtype=np.bool_)  # noqa: E731
    evictor = Evictor(cache, Sessions(cache.clock), lambda dataset: float(ROW_BYTES), nothing)
    coming = np.asarray([8, 9, 10, 11])
    evictor.make_room(dataset, coming, coming, 0.0)
    assert is_resident(dataset.index.words[pinned.samples]).all()
    assert not is_resident(dataset.index.words[free.samples]).all()  # it did look for room


def test_a_start_has_its_indexes_in_line_before_it_removes_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = Cache(config_of(tmp_path))
    dataset = scan(cache, KEYS)
    kept = stage(cache, dataset, [1, 2])
    lost = build(cache, dataset, [3, 4])
    cache.publish(dataset, lost)  # the crash comes before it is in the catalog
    words, path = mapped(dataset), dataset.path_of(lost)
    cache.close()
    seen: list[tuple[list[int], bool]] = []

    def look(*arguments: Any) -> None:
        seen.append((np.flatnonzero(words).tolist(), path.exists()))
        startup.remove_strays(*arguments)

    monkeypatch.setattr(cache_module, "remove_strays", look)
    Cache(config_of(tmp_path)).close()
    assert seen == [([1, 2], True)]
    assert not path.exists()
    assert shard_of(words[[1, 2]]).tolist() == [kept.number] * 2


def test_a_start_clears_an_index_that_nobody_has_before_it_removes_what_that_points_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = Cache(config_of(tmp_path))
    dataset = scan(cache, KEYS)
    row = stage(cache, dataset, [1, 2])
    words, path = mapped(dataset), dataset.path_of(row)
    cache.catalog.forget_dataset(dataset.id)  # the crash comes before its index is retired
    cache.close()
    unlink, there = Path.unlink, []

    def look(target: Path, missing_ok: bool = False) -> None:
        if target == path:
            there.append(bool(words.any()))
        unlink(target, missing_ok)

    monkeypatch.setattr(Path, "unlink", look)
    Cache(config_of(tmp_path)).close()
    assert there == [False]


def by_hand(cache: Cache, dataset: Dataset) -> None:
    cache.departures.evict(cache.catalog.shards())


def by_budget(cache: Cache, dataset: Dataset) -> None:
    nothing = lambda dataset, samples: np.zeros(len(samples), dtype=np.bool_)  # noqa: E731
    evictor = Evictor(cache, Sessions(cache.clock), lambda dataset: float(ROW_BYTES), nothing)
    coming = np.arange(6, 12)
    evictor.make_room(dataset, coming, coming, 0.0)


def by_repair(cache: Cache, dataset: Dataset) -> None:
    (row,) = cache.catalog.shards()
    with dataset.path_of(row).open("r+b") as file:
        file.write(b"not a shard")
    assert drop_bad_shards(cache, dataset, np.asarray([4]))


def by_a_scan(cache: Cache, dataset: Dataset) -> None:
    scan(cache, dict.fromkeys(KEYS, "v2"), LARGE)
    cache.departures.give_back_stale({}, ())


def from_memory(cache: Cache, dataset: Dataset) -> None:
    (row,) = cache.catalog.shards()
    cache.catalog.remove_shards([row.number])
    cache.departures.take_from_memory(dataset, row)


@pytest.mark.parametrize("leave", [by_hand, by_budget, by_repair, by_a_scan, from_memory])
def test_whoever_must_know_hears_of_samples_that_are_gone_whichever_way_they_go(
    cache: Cache, leave: Callable[[Cache, Dataset], None]
) -> None:
    dataset = scan(cache, KEYS, LARGE)
    stage(cache, dataset, [1, 2, 4])
    heard: list[tuple[Dataset, list[int]]] = []
    cache.departures.heard_by.append(lambda dataset, samples: heard.append((dataset, samples.tolist())))
    leave(cache, dataset)
    assert not is_resident(dataset.index.words).any()
    assert sorted(number for _, samples in heard for number in samples) == [1, 2, 4]
    assert all(known is dataset for known, _ in heard)


@pytest.mark.parametrize("change", ["its version", "its kind"])
def test_a_recipe_that_is_not_ours_any_more_is_forgotten_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """As after an upgrade that gives other samples, or back to a version that does not know its kind."""
    cache = Cache(config_of(tmp_path))
    stage(cache, scan(cache, KEYS), [0, 1])
    array = check_recipe({"kind": "array", "dtype": "uint8", "shape": [4, 4, 3]})
    scan(cache, KEYS, DatasetSpec("other", SourceSpec("/elsewhere"), "folder", array))
    cache.close()
    if change == "its version":
        monkeypatch.setattr("stager.recipes.array.VERSION", "array/2")
    else:
        monkeypatch.delitem(recipes.KINDS, "array")
    cache = Cache(config_of(tmp_path))
    assert list(cache.datasets) == ["data"]
    assert cache.datasets["data"].resident().tolist() == [0, 1]
    assert not list(cache.directory.glob("catalog.broken-*"))
    cache.close()


def test_a_shard_in_memory_that_a_reader_calls_corrupt_goes_if_it_is_and_stays_if_not(cache: Cache) -> None:
    dataset = scan(cache, KEYS)
    transients = Transients(cache, Sessions(cache.clock))
    paths = []
    for samples in ([1, 2], [3, 4]):
        row = build(cache, dataset, samples)
        transients.take(row.bytes, dataset, row.samples).charge(row.bytes)
        paths.append(transients.path_of(row.number, row.format))
        shutil.move(dataset.path_of(row), paths[-1])
        transients.publish(dataset, row)
    raw = bytearray(paths[0].read_bytes())
    raw[len(raw) // 2] ^= 1
    paths[0].write_bytes(raw)
    transients.drop_bad(dataset, np.asarray([1, 3, 5]))
    assert is_resident(dataset.index.words[[1, 2, 3, 4]]).tolist() == [False, False, True, True]
    assert [path.exists() for path in paths] == [False, True]
    assert transients.used_bytes == paths[1].stat().st_size
    transients.close()
