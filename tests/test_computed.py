"""Computed samples: a rule of a few values instead of a record each, and no array of all of them."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from making import Listed
from stager.cache.index_writer import IndexWriter, highest_shard, retire
from stager.errors import CacheError, UsageError
from stager.interfaces import Count, Listing
from stager.reader.index import FAILED, IndexReader, is_resident, pack_words
from stager.reader.samples.by_number import ByNumber
from stager.reader.samples.computed.rules import Generated, Rule, open_rule
from stager.reader.samples.manifest import ComputedManifest, Manifest
from stager.reader.samples.runs import Runs, is_among, positions_of, without
from stager.reader.samples.sample_list import SampleList
from stager.reader.samples.segments import read_segment
from stager.reader.samples.subset import Subset, draw
from stager.reader.values import sample_tag, version_of
from stager.scan.scan import Known, Scan, write_manifest

LINEAGE, RECIPE = "0" * 32, "1" * 32
MANY = 28_000_000
NOTHING = SampleList(LINEAGE, (), ())


class Computed:
    """A layout that has these rules."""

    is_computed = True
    counters: Mapping[str, Count] = MappingProxyType({})

    def __init__(self, *rules: Rule) -> None:
        self._rules = rules

    def rules(self, listing: Listing) -> tuple[Rule, ...]:
        return self._rules


def scanned(path: Path, *rules: Rule, records: SampleList = NOTHING) -> ComputedManifest:
    """The manifest of these rules, after what a list has."""
    write_manifest(path, Computed(*rules), Listed([]), Known(records))
    for segment in Scan(path).segments:
        records = records.plus(segment.name, read_segment(segment))
    manifest = Manifest.open(path, records)
    assert isinstance(manifest, ComputedManifest)
    return manifest


# Runs

RUNS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 20)), max_size=5).map(
    lambda steps: [
        (sum(gap + count for gap, count in steps[:at]) + steps[at][0], steps[at][1])
        for at in range(len(steps))
    ]
)


@settings(deadline=None)
@given(RUNS, st.data())
def test_runs_answer_as_the_array_of_their_numbers(runs: list[tuple[int, int]], data: st.DataObject) -> None:
    lazy = Runs(runs)
    array = np.concatenate([np.zeros(0, np.int64), *(first + np.arange(count) for first, count in runs)])
    assert len(lazy) == len(array)
    np.testing.assert_array_equal(lazy[:], array)
    start, stop = data.draw(st.integers(0, 110)), data.draw(st.integers(0, 110))
    np.testing.assert_array_equal(lazy[start:stop], array[start:stop])
    asked = np.asarray(data.draw(st.lists(st.integers(0, 260), max_size=20)), dtype=np.int64)
    np.testing.assert_array_equal(is_among(asked, lazy), np.isin(asked, array))
    np.testing.assert_array_equal(is_among(asked, array), np.isin(asked, array))
    found = lazy.find(asked)
    np.testing.assert_array_equal(array[found[found >= 0]], asked[found >= 0])
    positions = positions_of(np.unique(asked), lazy)
    np.testing.assert_array_equal(positions, positions_of(np.unique(asked), array))
    np.testing.assert_array_equal(without(lazy, positions)[:], without(array, positions))
    for at in positions.tolist():
        assert lazy[at] == array[at]
    with pytest.raises(IndexError, match="there are"):
        lazy[np.asarray([len(array)])]


@settings(deadline=None)
@given(st.lists(st.tuples(st.lists(st.integers(0, 300), max_size=9), st.integers(1, 9)), max_size=9))
def test_values_by_number_are_zero_until_they_are_set(writes: list[tuple[list[int], int]]) -> None:
    values, model = ByNumber(np.int64), np.zeros(301, np.int64)
    for numbers, value in writes:
        values[np.asarray(numbers, np.int64)] = value
        model[numbers] = value
    np.testing.assert_array_equal(values[np.arange(301)], model)


# Manifests


def test_a_rule_is_a_few_lines_and_a_manifest_of_28_million_opens_without_an_array(tmp_path: Path) -> None:
    manifest = scanned(tmp_path / "m", Generated(MANY, seed=3))
    sizes = [path.stat().st_size for path in (tmp_path / "m", *Scan(tmp_path / "m").segments)]
    assert len(manifest) == MANY
    assert sum(sizes) < 5_000
    assert manifest.key(MANY - 1) == str(MANY - 1)
    assert manifest.find("27999999") == MANY - 1
    assert manifest.find("28000000") is None
    assert manifest.find("007") is None
    drawn = draw(manifest, Subset())
    assert isinstance(drawn.numbers, Runs)
    assert drawn.numbers[MANY - 1] == MANY - 1
    assert manifest.labels_at(drawn.places).strides == (0,)


def test_a_computed_sample_has_the_tag_and_version_of_what_makes_it(tmp_path: Path) -> None:
    records = scanned(tmp_path / "m", Generated(100, seed=3)).records
    (info,) = records.infos([42])
    assert (info.key, info.parts, info.inputs) == ("42", (), (42, 3))
    assert info.version == version_of("42", (), None, (42, 3))
    assert records.tag(42) == sample_tag("42", info.version) == records.values("tag", np.asarray([42]))[0]
    assert records.finder()("42", info.version) == 42
    assert records.finder()("42", "another") == -1
    np.testing.assert_array_equal(records.mates(np.asarray([5, 3])), [3, 5])
    assert records.cost(Runs([(0, 100)])) == (0, 0)
    assert records.column("key", [7]).to_pylist() == [b"7"]


def test_more_samples_of_a_rule_keep_the_numbers_of_those_that_were(tmp_path: Path) -> None:
    first = scanned(tmp_path / "1", Generated(100))
    more = scanned(tmp_path / "2", Generated(250), records=first.records)
    np.testing.assert_array_equal(more.numbers[:], np.arange(250))
    assert first.digest != more.digest
    other = scanned(tmp_path / "3", Generated(80, seed=1), records=more.records)
    np.testing.assert_array_equal(other.numbers[:], 250 + np.arange(80))
    assert not other.has(np.arange(250)).any()
    fewer = scanned(tmp_path / "4", Generated(60), records=other.records)
    np.testing.assert_array_equal(fewer.numbers[:], np.arange(60))
    assert not Scan(tmp_path / "4").segments
    again = scanned(tmp_path / "5", Generated(250), records=fewer.records)
    assert (again.digest, again.numbers.runs) == (more.digest, more.numbers.runs)
    assert again.key(170) == "170"


def test_several_rules_are_one_manifest(tmp_path: Path) -> None:
    manifest = scanned(tmp_path / "m", Generated(10, seed=1), Generated(20, seed=2))
    assert len(manifest) == 30
    assert manifest.records.infos([12])[0].inputs == (2, 2)
    np.testing.assert_array_equal(manifest.places_of(np.asarray([0, 29, 30])), [0, 29, -1])
    assert manifest.class_sizes().tolist() == [30]


def test_a_rule_of_another_version_is_a_clear_error() -> None:
    with pytest.raises(CacheError, match="by the rule 'dreamt'"):
        open_rule({"kind": "dreamt", "count": 3})
    assert open_rule(Generated(3, 4).to_json()) == Generated(3, 4)


@given(st.integers(1, 4000), st.integers(0, 99), st.floats(0.001, 1), st.floats(0.001, 1))
@settings(deadline=None, max_examples=40)
def test_draws_of_computed_samples_are_nested_and_of_the_right_size(
    tmp_path_factory: pytest.TempPathFactory, count: int, seed: int, one: float, two: float
) -> None:
    manifest = scanned(tmp_path_factory.mktemp("draw") / "m", Generated(count))
    small, large = (
        draw(manifest, Subset(fraction=part, seed=seed)).numbers[:] for part in sorted((one, two))
    )
    assert len(large) == int(np.ceil(count * max(one, two)))
    assert set(small.tolist()) <= set(large.tolist())
    np.testing.assert_array_equal(np.sort(large), large)


def test_a_predicate_over_computed_samples_is_refused_with_a_way_out(tmp_path: Path) -> None:
    manifest = scanned(tmp_path / "m", Generated(10))
    with pytest.raises(UsageError, match="no columns to choose by") as raised:
        draw(manifest, Subset(where="size > 3"))
    assert "--fraction" in raised.value.hint
    with pytest.raises(UsageError, match="no split"):
        draw(manifest, Subset(split="val"))
    with pytest.raises(UsageError, match="no class"):
        draw(manifest, Subset(classes=("cat",)))


# The index of many


def blocks_of(path: Path) -> int:
    return path.stat().st_blocks * 512


def test_an_index_of_28_million_takes_blocks_only_for_what_is_staged(tmp_path: Path) -> None:
    path = tmp_path / "index"
    index = IndexWriter.open(path, MANY, LINEAGE, RECIPE, tmp_path, is_sparse=True)
    numbers = np.asarray([5, 600, 20_000_000, MANY - 1])
    index.make_room(numbers)
    index.publish(numbers[:3], pack_words(7, np.arange(3), "arrow"))
    index.publish(numbers[3:], np.asarray([FAILED]))
    assert blocks_of(path) < 200_000
    np.testing.assert_array_equal(index.used(), numbers)
    reader = IndexReader(path, LINEAGE, RECIPE)
    assert is_resident(reader.words[numbers]).tolist() == [True, True, True, False]
    np.testing.assert_array_equal(reader.failed(), numbers[3:])
    assert highest_shard(path) == 7
    again = IndexWriter.open(path, MANY, LINEAGE, RECIPE, tmp_path, is_sparse=True)
    again.replace_all(np.asarray([5, 9]), pack_words(8, np.arange(2), "arrow"))
    np.testing.assert_array_equal(again.used(), [5, 9])
    assert not reader.words[20_000_000]
    retire(path)
    assert reader.is_retired
    assert not reader.words[[5, 9]].any()
    assert not path.exists()
