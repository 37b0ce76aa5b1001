"""The cache directory: what is staged survives, what is not leaves nothing, and one owner has it."""

import os
import random
import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from making import Listed, folder_layout
from stager.cache.cache import Cache
from stager.cache.dataset import Dataset, Failure
from stager.cache.verify import check_books
from stager.catalog.catalog import Catalog
from stager.catalog.rows import ListRow, ShardRow
from stager.config import Config
from stager.errors import CacheError, CacheOwned, NoSpace
from stager.reader.amount import Amount
from stager.reader.index import IndexReader, is_failed, is_resident, shard_of
from stager.reader.record import DatasetSpec, manifest_path
from stager.reader.values import Numbers, ObjectInfo, Prepared, ShardHeader, SourceSpec, checksum_of
from stager.recipes import check_recipe
from stager.scan.scan import NOTHING_KNOWN, Known, Scan, write_manifest
from stager.shards import FORMATS

RECIPE = check_recipe({"kind": "image", "resize": 2, "crop": 2})
SPEC = DatasetSpec("data", SourceSpec("/nowhere"), "folder", RECIPE)


def config_of(root: Path) -> Config:
    return Config(None, root / "cache", root / "sock", Amount(bytes=10**9), Amount())


def scan(cache: Cache, versions: dict[str, str], spec: DatasetSpec = SPEC) -> Dataset:
    """Adopt a manifest with these keys and versions."""
    path, known = cache.scratch / "scan", cache.known(spec.name)
    before = Known(known.records, known.manifest) if known else NOTHING_KNOWN
    objects = [ObjectInfo(key, 9, versions[key]) for key in sorted(versions)]
    write_manifest(path, folder_layout(), Listed(objects), before)
    return cache.adopt(spec, Scan(path))[0]


def build(cache: Cache, dataset: Dataset, samples: list[int], shard_format: str = "arrow") -> ShardRow:
    """Write a complete shard of these samples, as a worker would."""
    number, path = cache.next_shard(dataset, shard_format)
    rows = []
    for sample in samples:
        info = dataset.records.infos([sample])[0]
        (image,) = dataset.record.fields
        arrays = {"image": np.full([side or 2 for side in image.shape], sample % 256, np.uint8)}
        tag = dataset.records.tag(sample)
        checksum = checksum_of(tag, dataset.record.recipe, dataset.record.fields, arrays)
        rows.append(Prepared(info.key, info.version, arrays, checksum))
    header = ShardHeader(dataset.name, dataset.record.manifest, dataset.record.recipe, dataset.record.fields)
    FORMATS[shard_format].write(path, header, rows)
    numbers: Numbers = np.asarray(samples, dtype=np.int64)
    return ShardRow(number, dataset.id, shard_format, path.stat().st_size, numbers, False, time.time())


def stage(cache: Cache, dataset: Dataset, samples: list[int], shard_format: str = "arrow") -> ShardRow:
    row = build(cache, dataset, samples, shard_format)
    cache.budget.take(row.bytes).charge(row.bytes)
    row = cache.publish(dataset, row)
    cache.catalog.add_shard(row)
    return row


KEYS = {f"c{number % 4}/{number:02d}.jpg": "v1" for number in range(12)}


def test_what_is_recorded_is_there_after_a_restart_and_nothing_else(tmp_path: Path) -> None:
    cache = Cache(config_of(tmp_path))
    dataset = scan(cache, KEYS)
    kept = stage(cache, dataset, [1, 2, 5])
    lost = build(cache, dataset, [3, 4])
    cache.publish(dataset, lost)  # readers have it, but the crash comes before it is durable
    (cache.scratch / "half-a-shard").write_bytes(b"...")
    assert dataset.resident().tolist() == [1, 2, 3, 4, 5]
    lost_path = dataset.path_of(lost)
    cache.close()
    again = Cache(config_of(tmp_path))
    assert again.datasets["data"].resident().tolist() == [1, 2, 5]
    assert again.budget.used_bytes == kept.bytes
    assert not lost_path.exists()
    assert list(again.scratch.iterdir()) == []
    assert check_books(again, set()) == []
    number, _ = again.next_shard(again.datasets["data"], "arrow")
    assert number > lost.number  # a reader may still map the lost one
    again.close()


def test_a_reader_that_has_the_index_mapped_goes_on_after_a_restart(tmp_path: Path) -> None:
    cache = Cache(config_of(tmp_path))
    words = scan(cache, KEYS).index.words
    stage(cache, cache.datasets["data"], [0])
    cache.close()
    again = Cache(config_of(tmp_path))
    stage(again, again.datasets["data"], [7])
    assert np.flatnonzero(is_resident(words)).tolist() == [0, 7]
    again.close()


@pytest.mark.parametrize("damage", ["unlink", "truncate"])
def test_a_row_without_its_whole_shard_is_dropped_at_the_start(tmp_path: Path, damage: str) -> None:
    cache = Cache(config_of(tmp_path))
    dataset = scan(cache, KEYS)
    stage(cache, dataset, [0, 1])
    bad = stage(cache, dataset, [2, 3])
    cache.close()
    path = dataset.path_of(bad)
    path.unlink() if damage == "unlink" else os.truncate(path, 100)
    again = Cache(config_of(tmp_path))
    assert again.datasets["data"].resident().tolist() == [0, 1]
    assert check_books(again, set()) == []
    again.close()


def test_unchanged_samples_stay_staged_when_the_source_changes(tmp_path: Path) -> None:
    cache = Cache(config_of(tmp_path))
    dataset = scan(cache, KEYS)
    stage(cache, dataset, list(range(12)))
    cache.record_failures(dataset, [])
    changed = {**KEYS, "c0/00.jpg": "v2", "a/new.jpg": "v1"}
    del changed["c1/05.jpg"]
    now = scan(cache, changed)
    missing = now.manifest.numbers[~is_resident(now.index.words[now.manifest.numbers])]
    assert {now.records.key(int(number)) for number in missing} == {"c0/00.jpg", "a/new.jpg"}
    assert now is dataset
    old = {"data": {dataset.record.manifest}}
    cache.departures.give_back_stale(old, ())
    assert len(now.resident()) == 10  # what has gone from the source
    assert [departure.reason for departure in [now.departure_log.of(0)] if departure] == ["source_changed"]
    cache.close()
    again = Cache(config_of(tmp_path))
    assert again.datasets["data"].resident().tolist() == now.resident().tolist()
    assert check_books(again, set()) == []
    assert len(list((tmp_path / "cache/datasets/data").glob("manifest-*"))) == 1
    assert len(list((tmp_path / "cache/datasets/data").glob("index-*"))) == 1
    again.close()


def test_another_recipe_has_its_own_samples_and_the_old_ones_can_be_evicted(tmp_path: Path) -> None:
    cache = Cache(config_of(tmp_path))
    old = stage(cache, scan(cache, KEYS), [0, 1])
    other = DatasetSpec(
        "data", SPEC.source, "folder", check_recipe({"kind": "image", "resize": 3, "crop": 2})
    )
    dataset = scan(cache, KEYS, other)
    assert dataset.resident().tolist() == []
    assert scan(cache, KEYS).resident().tolist() == [0, 1]  # and back again
    assert scan(cache, KEYS, other).resident().tolist() == []
    cache.departures.evict([old])
    first = cache.open[old.dataset]
    cache.departures.give_back_stale({"data": {first.record.manifest}}, ())
    assert len(cache.catalog.datasets()) == 2  # somebody has it open, and may want more of it
    words = IndexReader(first.index.path, first.record.lineage, first.record.recipe)
    cache.departures.give_back_stale({}, ())
    assert len(cache.catalog.datasets()) == 1
    assert words.is_retired
    assert check_books(cache, set()) == []
    cache.close()


def test_an_object_that_is_added_has_its_place_by_every_recipe(tmp_path: Path) -> None:
    cache = Cache(config_of(tmp_path))
    first = scan(cache, KEYS)
    stage(cache, first, [0, 1])
    other = replace(SPEC, recipe=check_recipe({"kind": "image", "resize": 3, "crop": 2}))
    scan(cache, KEYS, other)
    scan(cache, {**KEYS, "c9/new.jpg": "v1"}, other)
    assert first.count == 13  # whoever reads it may ask for the new one, too
    assert scan(cache, {**KEYS, "c9/new.jpg": "v1"}) is first
    stage(cache, first, [12])
    assert first.resident().tolist() == [0, 1, 12]
    cache.close()


def test_a_scan_is_under_its_final_names_before_the_catalog_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_list, seen = Catalog.put_list, []

    def look(catalog: Catalog, row: ListRow) -> None:
        directory = tmp_path / "cache/datasets/data"
        names = [manifest_path(directory, row.manifest, row.lineage), *map(directory.joinpath, row.segments)]
        seen.append([path.exists() for path in names])
        put_list(catalog, row)

    monkeypatch.setattr(Catalog, "put_list", look)
    cache = Cache(config_of(tmp_path))
    scan(cache, KEYS)
    scan(cache, {**KEYS, "c9/new.jpg": "v1"})
    assert seen == [[True] * 2, [True] * 3]
    cache.close()


def test_a_failed_sample_is_remembered_and_one_that_may_heal_is_forgiven(tmp_path: Path) -> None:
    cache = Cache(config_of(tmp_path))
    dataset = scan(cache, KEYS)
    cache.record_failures(dataset, [Failure(1, "corrupt", "bad"), Failure(2, "missing", "gone")])
    cache.close()
    again = Cache(config_of(tmp_path))
    dataset = again.datasets["data"]
    assert np.flatnonzero(is_failed(dataset.index.words)).tolist() == [1, 2]
    again.forgive(dataset, np.arange(12))
    assert np.flatnonzero(is_failed(dataset.index.words)).tolist() == [1]
    assert [(row.sample, row.reason) for row in again.catalog.failures(dataset.id)] == [(1, "corrupt")]
    again.close()


@pytest.mark.parametrize("damage", ["scramble", "truncate", "empty"])
def test_a_catalog_that_cannot_be_read_is_made_anew_from_the_shards(tmp_path: Path, damage: str) -> None:
    cache = Cache(config_of(tmp_path))
    dataset = scan(cache, KEYS)
    stage(cache, dataset, [3, 1])
    stage(cache, dataset, [0, 7], "lmdb")
    rotten = stage(cache, dataset, [8, 9])
    cache.close()
    path = dataset.path_of(rotten)
    data = bytearray(path.read_bytes())
    at = data.find(bytes([8] * 12))
    data[at] ^= 1
    path.write_bytes(data)
    catalog = tmp_path / "cache/catalog.db"
    size = catalog.stat().st_size
    if damage == "scramble":
        catalog.write_bytes(os.urandom(size))
    elif damage == "truncate":
        os.truncate(catalog, size // 3)
    else:
        catalog.write_bytes(b"")
    again = Cache(config_of(tmp_path))
    assert again.datasets["data"].resident().tolist() == [0, 1, 3, 7, 9]  # 8 is bad, its neighbour is not
    assert check_books(again, set()) == []
    assert again.next_shard(again.datasets["data"], "arrow")[0] > rotten.number
    again.close()


def test_a_second_owner_is_told_who_the_first_is_and_changes_nothing(tmp_path: Path) -> None:
    cache = Cache(config_of(tmp_path))
    (cache.scratch / "under-way").write_bytes(b"...")
    code = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[2])\n"
        "from test_cache import Cache, config_of\n"
        "Cache(config_of(Path(sys.argv[1])))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), str(Path(__file__).parent)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert CacheOwned.__name__ in done.stderr
    assert str(os.getpid()) in done.stderr
    assert (cache.scratch / "under-way").exists()
    cache.close()


def test_a_directory_with_other_peoples_files_is_not_taken_for_a_cache(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache/thesis.tex").write_text("...")
    with pytest.raises(CacheError, match="not a stager cache"):
        Cache(config_of(tmp_path))
    assert (tmp_path / "cache/thesis.tex").exists()


def test_a_cache_of_another_version_is_left_alone(tmp_path: Path) -> None:
    Cache(config_of(tmp_path)).close()
    catalog = tmp_path / "cache/catalog.db"
    with closing(sqlite3.connect(catalog)) as newer:
        newer.execute("CREATE TABLE tomorrow (x)")
        newer.execute("PRAGMA user_version = 9")
    before = catalog.read_bytes()
    with pytest.raises(CacheError, match="has version 9, this stager knows"):
        Cache(config_of(tmp_path))
    assert catalog.read_bytes() == before


@pytest.mark.parametrize(
    "marker", [b"", b"stager cache 3\n", b"stAger cache 1\n", b"\xff\xfe", b"stager cache 1"]
)
def test_a_marker_that_a_power_cut_left_empty_or_a_flipped_bit_is_written_anew(
    tmp_path: Path, marker: bytes
) -> None:
    cache = Cache(config_of(tmp_path))
    stage(cache, scan(cache, KEYS), [1, 2])
    cache.close()
    for name in ("made", "memo"):  # what others have put there since
        (tmp_path / "cache" / name).mkdir(exist_ok=True)
    (tmp_path / "cache/CACHE").write_bytes(marker)
    again = Cache(config_of(tmp_path))
    assert again.datasets["data"].resident().tolist() == [1, 2]
    assert (tmp_path / "cache/CACHE").read_bytes() == b"stager cache 1\n"
    again.close()


def test_a_damaged_marker_does_not_make_other_peoples_files_ours(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache/CACHE").write_bytes(b"")
    (tmp_path / "cache/thesis.tex").write_text("...")
    with pytest.raises(CacheError, match="not a stager cache"):
        Cache(config_of(tmp_path))
    assert (tmp_path / "cache/CACHE").read_bytes() == b""


def test_what_is_over_capacity_or_would_eat_the_reserve_is_refused(tmp_path: Path) -> None:
    cache = Cache(config_of(tmp_path))
    taken = cache.budget.take(6 * 10**8)
    with pytest.raises(NoSpace, match="capacity"):
        cache.budget.take(6 * 10**8)
    taken.charge(10)
    assert (cache.budget.used_bytes, cache.budget.reserved_bytes) == (10, 0)
    cache.budget.reserve = Amount(fraction=1.0)
    with pytest.raises(NoSpace, match="reserve"):
        cache.budget.take(1)
    cache.close()


@pytest.mark.parametrize(
    ("recipe", "chosen"),
    [({"crop": 2}, "arrow"), ({"crop": 2, "encode": "jpeg"}, "lmdb"), ({"crop": 0}, "lmdb")],
)
def test_auto_is_arrow_for_rows_of_one_size_and_lmdb_where_they_differ(
    tmp_path: Path, recipe: dict[str, object], chosen: str
) -> None:
    cache = Cache(config_of(tmp_path))
    dataset = scan(cache, KEYS, replace(SPEC, recipe=check_recipe({"kind": "image", "resize": 2, **recipe})))
    assert dataset.choose_format("auto")[0] == chosen
    assert [dataset.choose_format(name)[0] for name in FORMATS] == list(FORMATS)
    cache.close()


class CacheMachine(RuleBasedStateMachine):
    """Any order of staging, crashing, evicting, failing and re-scanning keeps the books straight."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(os.environ["PYTEST_CACHE_MACHINE"]) / f"{time.monotonic_ns()}"
        self.root.mkdir()
        self.cache = Cache(config_of(self.root))
        self.staged: set[tuple[str, str]] = set()  # (key, version) that the catalog should have
        self.versions = dict(KEYS)
        self.shards: list[ShardRow] = []

    @initialize()
    def first_scan(self) -> None:
        self.dataset = scan(self.cache, self.versions)
        self.manifests = [self.dataset.record.manifest]  # those that are kept

    def identity(self, sample: int) -> tuple[str, str]:
        info = self.dataset.records.infos([sample])[0]
        return info.key, info.version

    @rule(start=st.integers(0, 11), count=st.integers(1, 5), shard_format=st.sampled_from(["arrow", "lmdb"]),
          recorded=st.booleans())  # fmt: skip
    def stage(self, start: int, count: int, shard_format: str, recorded: bool) -> None:
        samples = self.dataset.manifest.numbers[start : start + count].tolist()
        if not samples:
            return
        row = build(self.cache, self.dataset, samples, shard_format)
        row = self.cache.publish(self.dataset, row)
        if recorded:
            self.cache.budget.take(row.bytes).charge(row.bytes)
            self.cache.catalog.add_shard(row)
            self.staged |= {self.identity(sample) for sample in samples}
        else:
            self.crash()

    @rule()
    def crash(self) -> None:
        """As after kill -9: whatever was in memory is gone."""
        self.cache.close()
        (self.cache.scratch / "torn").write_bytes(b"?")
        self.cache = Cache(config_of(self.root))
        self.dataset = self.cache.datasets["data"]

    @rule(sample=st.integers(0, 11), version=st.sampled_from(["v1", "v2"]))
    def source_changes(self, sample: int, version: str) -> None:
        key = sorted(KEYS)[sample]
        self.versions[key] = version
        self.scan_again()

    @rule(sample=st.integers(0, 11))
    def source_loses(self, sample: int) -> None:
        if len(self.versions) > 1:
            self.versions.pop(sorted(KEYS)[sample], None)
            self.scan_again()

    def scan_again(self) -> None:
        """What has left the source stays, for whoever reads it; should it come back, it is there."""
        self.dataset = scan(self.cache, self.versions)
        self.manifests.append(self.dataset.record.manifest)

    @rule(leased=st.booleans())
    def give_back(self, leased: bool) -> None:
        """Rows that no version has which counts go: the newest one's stay, and those of one that is read."""
        old = self.manifests[len(self.manifests) // 2]
        kept = [self.dataset.manifest]
        if leased:
            kept.append(self.dataset.version(old))
        self.manifests = [manifest.digest for manifest in kept]
        self.cache.departures.give_back_stale({"data": {old}} if leased else {}, ())
        numbers = {int(number) for manifest in kept for number in manifest.numbers}
        self.staged &= {self.identity(number) for number in numbers}

    @precondition(lambda self: self.cache.catalog.shards())
    @rule(which=st.integers(0, 100))
    def evict(self, which: int) -> None:
        shards = self.cache.catalog.shards()
        self.cache.departures.evict([shards[which % len(shards)]])
        left = self.cache.catalog.shards()
        self.staged = set()
        for row in left:
            self.staged |= {self.identity(int(sample)) for sample in row.samples if sample >= 0}

    @rule(wanted=st.sets(st.integers(0, 11), min_size=1, max_size=4))
    def evict_samples(self, wanted: set[int]) -> None:
        held = np.concatenate([row.samples for row in self.cache.catalog.shards()] or [np.zeros(0, int)])
        samples = [sample for sample in sorted(wanted) if (held == sample).sum() == 1]
        if samples:
            self.cache.departures.evict_samples(
                self.dataset, np.asarray(samples), "evicted", "by the machine"
            )
            self.staged -= {self.identity(sample) for sample in samples}

    @invariant()
    def every_word_points_at_the_right_sample(self) -> None:
        if not hasattr(self, "dataset"):
            return
        words = self.dataset.index.words
        rows = {row.number: row for row in self.cache.catalog.shards()}
        for sample in np.flatnonzero(is_resident(words)).tolist():
            row = rows[int(shard_of(words[sample : sample + 1])[0])]
            shard = FORMATS[row.format].open(self.dataset.path_of(row))
            assert self.identity(sample) in shard.identities()
        assert not is_failed(words).any()

    @invariant()
    def what_the_catalog_has_is_resident_and_nothing_is_left_over(self) -> None:
        if not hasattr(self, "dataset"):
            return
        here = {self.identity(int(number)) for number in self.dataset.resident()}
        assert here == self.staged
        assert check_books(self.cache, set()) == []
        assert self.cache.budget.used_bytes == sum(row.bytes for row in self.cache.catalog.shards())

    def teardown(self) -> None:
        self.cache.close()
        shutil.rmtree(self.root)


@pytest.mark.timeout(300)
def test_any_order_of_events_keeps_the_books_straight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    monkeypatch.setenv("PYTEST_CACHE_MACHINE", str(tmp_path))
    run_state_machine_as_test(
        CacheMachine, settings=settings(max_examples=15, stateful_step_count=20, deadline=None)
    )


def test_a_flipped_bit_in_the_catalog_never_stops_a_start_nor_moves_a_sample(tmp_path: Path) -> None:
    cache = Cache(config_of(tmp_path))
    dataset = scan(cache, KEYS)
    stage(cache, dataset, [3, 1])
    stage(cache, dataset, [0, 7], "lmdb")
    cache.record_failures(dataset, [Failure(5, "corrupt", "bad")])
    cache.catalog.add_job("data", {"spec": SPEC.to_json()})
    cache.close()
    good = (tmp_path / "cache/catalog.db").read_bytes()
    rng = random.Random(16)
    used = [at for at in range(len(good)) if good[at]]  # an empty page has nothing to flip
    rebuilt = 0
    for _ in range(150):
        shutil.copytree(tmp_path / "cache", tmp_path / "flipped/cache")
        bad, at = bytearray(good), rng.choice(used)
        bad[at] ^= 1 << rng.randrange(8)
        (tmp_path / "flipped/cache/catalog.db").write_bytes(bad)
        again = Cache(config_of(tmp_path / "flipped"))
        found = again.datasets["data"]
        assert set(found.resident().tolist()) <= {0, 1, 3, 7}, at
        assert set(np.flatnonzero(is_failed(found.index.words)).tolist()) <= {5}, at
        assert check_books(again, set()) == []
        for row in again.catalog.shards():
            names = FORMATS[row.format].open(found.path_of(row)).identities()
            for sample, (key, version) in zip(row.samples.tolist(), names, strict=True):
                assert sample < 0 or (key, version) == (found.records.key(sample), "v1"), at
        rebuilt += bool(list((tmp_path / "flipped/cache").glob("catalog.broken-*")))
        again.close()
        shutil.rmtree(tmp_path / "flipped")
    assert rebuilt > 30  # the flips did hit something


def test_rows_and_tables_that_sqlite_finds_nothing_wrong_with_are_compared_all_the_same(
    tmp_path: Path,
) -> None:
    cache = Cache(config_of(tmp_path))
    dataset = scan(cache, KEYS)
    stage(cache, dataset, [3, 1])
    number = cache.catalog.add_job("data", {"spec": SPEC.to_json()})
    cache.close()
    damage = [
        "UPDATE shards SET samples = x'0200000001000000'",  # rows that are other samples'
        "UPDATE sqlite_master SET sql = replace(sql, 'result', 'resulu') WHERE name = 'jobs'",
    ]
    for statement in damage:
        with closing(sqlite3.connect(tmp_path / "cache/catalog.db")) as catalog, catalog:
            catalog.execute("PRAGMA writable_schema = ON")
            catalog.execute(statement)
        again = Cache(config_of(tmp_path))
        assert again.datasets["data"].resident().tolist() == [1, 3]
        assert again.catalog.ended_job(number) is None
        again.close()
    assert list((tmp_path / "cache").glob("catalog.broken-*"))


def test_an_index_word_with_a_flipped_bit_is_mended_from_the_catalog(tmp_path: Path) -> None:
    cache = Cache(config_of(tmp_path))
    dataset = scan(cache, KEYS)
    stage(cache, dataset, [3, 1])
    cache.record_failures(dataset, [Failure(5, "corrupt", "bad")])
    good = dataset.index.words.copy()
    for number in (0, 1, 5):
        for bit in range(64):
            dataset.index.words[number] ^= np.uint64(1 << bit)
            assert any("damaged" in problem for problem in check_books(cache, set()))
            cache.mend(dataset, np.asarray([number]))
            assert dataset.index.words.tolist() == good.tolist()
    cache.close()


def test_shard_numbers_are_not_used_twice_after_a_lost_catalog_although_their_files_are_gone(
    tmp_path: Path,
) -> None:
    cache = Cache(config_of(tmp_path))
    dataset = scan(cache, KEYS)
    cache._numbers = iter([90_000_000])
    highest = stage(cache, dataset, [3, 1])
    cache.departures.evict([highest])  # no file and no word names it any more
    cache.close()
    (tmp_path / "cache/catalog.db").unlink()
    again = Cache(config_of(tmp_path))
    assert again.next_shard(again.datasets["data"], "arrow")[0] > 90_000_000
    again.close()


def test_shard_numbers_are_not_used_twice_after_a_lost_catalog_and_an_index_that_has_gone(
    tmp_path: Path,
) -> None:
    cache = Cache(config_of(tmp_path))
    dataset = scan(cache, KEYS)
    cache._numbers = iter([900_000])
    cache.departures.evict([stage(cache, dataset, [3, 1])])
    cache.close()
    (tmp_path / "cache/catalog.db").unlink()
    shutil.rmtree(dataset.directory)
    again = Cache(config_of(tmp_path))
    assert again.next_shard(scan(again, KEYS), "arrow")[0] > 900_000
    again.close()


def test_a_list_that_has_outgrown_what_is_live_is_made_anew_and_staged_samples_follow(tmp_path: Path) -> None:
    cache = Cache(config_of(tmp_path))
    for version in ("v1", "v2", "v3"):
        dataset = scan(cache, dict.fromkeys(KEYS, version))
    row = stage(cache, dataset, dataset.manifest.numbers.tolist())
    cache.record_failures(dataset, [Failure(2, "corrupt", "bad")])
    before = IndexReader(dataset.index.path, dataset.record.lineage, dataset.record.recipe)
    assert dataset.count == 36
    path = cache.scratch / "scan"
    objects = [ObjectInfo(key, 9, "v3") for key in sorted(KEYS)][1:]
    write_manifest(
        path, folder_layout(), Listed(objects), Known(dataset.records, dataset.manifest, relist=True)
    )
    now = cache.adopt(SPEC, Scan(path))[0]
    assert (now.count, now.resident().tolist()) == (11, list(range(11)))
    assert before.is_retired
    assert not before.words.any()
    names = FORMATS["arrow"].open(now.path_of(row)).identities()
    samples = cache.catalog.shard(row.number).samples.tolist()
    assert sorted(samples) == [-1, *range(11)]
    assert [now.records.key(s) for s in samples if s >= 0] == [
        k for (k, _), s in zip(names, samples, strict=True) if s >= 0
    ]
    assert check_books(cache, set()) == []
    cache.close()
    again = Cache(config_of(tmp_path))
    assert again.datasets["data"].resident().tolist() == list(range(11))
    again.close()
