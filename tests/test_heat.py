"""How hot samples are: by their reads and their class's, with ageing, and over restarts."""

import logging
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stager.heat.heat
from making import image_folder, manifest_of
from running import Place
from sets import table
from stager.heat.file import heat_path, read_heat, write_heat
from stager.heat.guess import CLASS_MOST, Guess, class_means
from stager.heat.heat import COLD, HALF_LIFE_S, Heat, Warm
from stager.heat.hottest import Likely, hottest_within
from stager.owner.heat.heats import KEEP_EVERY_S
from stager.reader.samples.by_number import ByNumber

READ = """
import sys
from stager_client.torch import StagedDataset
data = StagedDataset("cats", timeout_s=60, classes=["class000"])
for _ in range(3):
    data.__getitems__(range(len(data)))
data.flush()
"""


def test_reads_beyond_those_kept_one_by_one_count_in_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stager.heat.heat, "READS_KEPT", 100)
    rng, few, all_kept = np.random.default_rng(0), Heat(), Heat()
    for at in range(40):
        samples = rng.integers(0, 50, 20)
        few.add(samples, 1000.0 * at)
        monkeypatch.setattr(stager.heat.heat, "READS_KEPT", 10**6)
        all_kept.add(samples, 1000.0 * at)
        monkeypatch.setattr(stager.heat.heat, "READS_KEPT", 100)
    assert len(few.trace()) <= 100 < len(all_kept.trace())
    one, two = few.warm(40_000.0), all_kept.warm(40_000.0)
    assert one.samples.tolist() == two.samples.tolist()
    assert one.heat == pytest.approx(two.heat)


def test_what_was_read_long_ago_is_cold() -> None:
    heat = Heat()
    heat.add(np.asarray([1, 2, 2, 2, 2]), 0.0)
    half_lives = np.log2(1 / COLD) + 0.5
    assert heat.warm(half_lives * HALF_LIFE_S).samples.tolist() == [2]


def test_heat_follows_samples_to_other_numbers() -> None:
    heat = Heat()
    heat.add(np.asarray([0, 1, 1, 2, 2, 2]), 100.0)
    moved = heat.renumbered(np.asarray([5, -1, 3]), 100.0)
    assert moved.warm(100.0).samples.tolist() == [3, 5]
    assert moved.warm(100.0).heat.tolist() == [3.0, 1.0]
    assert moved.changes != heat.changes, "it is to be kept on the disk"


# By class


def test_a_sample_not_read_yet_is_as_likely_as_its_class(tmp_path: Path) -> None:
    manifest = manifest_of(tmp_path / "m", [f"{name}/{at}.jpg" for name in "ab" for at in range(50)])
    rng, heat = np.random.default_rng(0), Heat()
    heat.add(rng.integers(0, 50, 100), 0.0)  # of the first class
    heat.add(rng.integers(50, 100, 10), 0.0)
    own = heat.of_all(0.0)
    guess = Guess(own, manifest)
    cold = np.asarray([at for at in range(100) if own[np.asarray([at])][0] == 0])
    first, second = cold[cold < 50], cold[cold >= 50]
    assert guess[first].min() > 5 * guess[second].max() > 0


def test_of_a_class_of_which_always_the_same_few_are_read_only_these_are_hot(tmp_path: Path) -> None:
    manifest = manifest_of(tmp_path / "m", [f"a/{at:03d}.jpg" for at in range(100)])
    heat = Heat()
    for _ in range(10):
        heat.add(np.arange(5), 0.0)
    guess = Guess(heat.of_all(0.0), manifest)[np.arange(100)]
    assert guess[:5].min() > 20 * guess[5:].max()


def test_a_sample_that_has_gone_from_the_source_has_its_own_heat_and_no_class(tmp_path: Path) -> None:
    manifest = manifest_of(tmp_path / "m", ["a/0.jpg", "a/1.jpg"])
    heat = Heat()
    heat.add(np.asarray([0, 0, 7]), 0.0)
    assert Guess(heat.of_all(0.0), manifest)[np.asarray([7, 8])].tolist() == [1.0, 0.0]


@given(st.lists(st.lists(st.floats(0, 100), min_size=1, max_size=8), min_size=1, max_size=5))
def test_a_guess_lies_between_a_sample_and_its_class(heats: list[list[float]]) -> None:
    sizes = np.asarray([len(part) for part in heats])
    labels, heat = np.repeat(np.arange(len(heats)), sizes), np.concatenate(heats)
    means, weights = class_means(heat, labels, sizes)
    assert means == pytest.approx([np.mean(part) for part in heats])
    assert np.all((weights >= 0) & (weights <= CLASS_MOST))


# Which are hottest


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 9), max_size=6), st.floats(1, 5)), max_size=4),
    st.floats(0, 60),
)
def test_the_hottest_of_all_data_sets_are_chosen_within_the_budget(
    sets: list[tuple[list[int], float]], budget: float
) -> None:
    likely = [Likely(np.arange(len(heat)), np.asarray(heat, dtype=float), size) for heat, size in sets]
    chosen = hottest_within(likely, budget)
    taken = sum(len(samples) * part.row_bytes for samples, part in zip(chosen, likely, strict=True))
    assert taken <= budget + 1e-6
    inside = [part.heat[samples] for samples, part in zip(chosen, likely, strict=True)]
    outside = [np.delete(part.heat, samples) for samples, part in zip(chosen, likely, strict=True)]
    coldest = min((float(heat.min()) for heat in inside if len(heat)), default=np.inf)
    hottest = max((float(heat.max()) for heat in outside if len(heat)), default=-np.inf)
    assert coldest >= hottest
    assert all(np.all(np.diff(heat) <= 0) for heat in inside), "the hottest first"
    if hottest > -np.inf:  # the next one would not fit
        sizes = [part.row_bytes for part, heat in zip(likely, outside, strict=True) if hottest in heat]
        assert taken + max(sizes) > budget - 1e-6


# On the disk


WARM = Warm(123.5, np.asarray([2, 7, 9]), np.asarray([0.5, 2.0, 30.0]))


def test_what_was_kept_comes_back_and_has_cooled(tmp_path: Path) -> None:
    path = heat_path(tmp_path, "r" * 32)
    write_heat(path, tmp_path, "list", WARM)
    assert list(tmp_path.iterdir()) == [path]
    heat = Heat(read_heat(path, "list", 10))
    assert heat.warm(123.5).heat == pytest.approx(WARM.heat)
    assert heat.warm(123.5 + HALF_LIFE_S).heat == pytest.approx(WARM.heat / 2)
    heat.forget(np.asarray([7]))
    assert heat.warm(123.5).samples.tolist() == [2, 9]


@pytest.mark.parametrize("harm", ["flip", "cut", "empty", "other list", "shorter list"])
def test_a_file_that_cannot_be_read_is_a_loss_that_is_told(
    tmp_path: Path, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = heat_path(tmp_path, "r" * 32)
    write_heat(path, tmp_path, "list", WARM)
    data = path.read_bytes()
    if harm == "flip":
        path.write_bytes(data[:90] + bytes([data[90] ^ 4]) + data[91:])
    elif harm in ("cut", "empty"):
        path.write_bytes(data[: len(data) // 2 if harm == "cut" else 0])
    with caplog.at_level(logging.WARNING, "stager"):
        lineage, count = "other" if harm == "other list" else "list", 9 if harm == "shorter list" else 10
        assert not len(read_heat(path, lineage, count).samples)
    assert "heat lost" in caplog.text


def test_a_service_that_is_killed_forgets_no_more_than_the_last_minutes_and_a_stop_nothing(
    tmp_path: Path,
) -> None:
    image_folder(tmp_path / "cats", 2, 4)
    place = Place(tmp_path).configure(table("cats", tmp_path / "cats"))
    place.json("prefetch", "cats")
    with place.service():
        assert place.python(READ).returncode == 0
        told = place.json("heat", "cats")
        assert [(row["class"], row["share"]) for row in told["classes"]] == [("class000", 1.0)]
        assert told["reads"] == pytest.approx(12, rel=0.01)
        assert (told["warm"], told["resident_share"], len(told["samples"])) == (4, 1.0, 4)
    with place.service():  # a stop has kept it
        assert place.json("heat", "cats")["reads"] == pytest.approx(12, rel=0.01)
        said = place.run("heat", "cats").stdout
        assert "4 samples are warm" in said
        assert "class000" in said
    (path,) = (place.cache / "datasets/cats").glob("heat-*")
    path.write_bytes(path.read_bytes()[:50])
    with place.service():  # a damaged file is no failed start
        assert place.json("heat", "cats")["warm"] == 0
        assert "heat lost, it begins anew" in place.log()
    assert KEEP_EVERY_S <= 300
    assert place.leftovers() == []


def test_a_value_that_was_set_is_found_by_its_number() -> None:
    values = ByNumber(np.float64)
    values[np.asarray([3, 5000])] = 1.5
    assert values.used().tolist() == [3, 5000]
