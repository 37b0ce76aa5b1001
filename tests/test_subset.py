"""Subsets: nested, seeded, drawn the same way everywhere; and the language of --where."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from making import manifest_of
from stager.errors import UsageError
from stager.reader.samples.manifest import Manifest
from stager.reader.samples.predicate import select
from stager.reader.samples.subset import Subset, draw, parse_classes


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    keys = [f"c{label:02d}/{number}.jpg" for label in range(40) for number in range(label % 7 + 1)]
    sizes = {key: 1000 * (at + 1) for at, key in enumerate(sorted(keys))}
    return manifest_of(tmp_path_factory.mktemp("manifest") / "m", keys, sizes)


@pytest.fixture(scope="module")
def splits(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    keys = ["train/a/1.jpg", "train/b/1.jpg", "train/c/1.jpg", "val/a/2.jpg", "val/b/2.jpg"]
    return manifest_of(tmp_path_factory.mktemp("splits") / "m", keys)


def test_everything_is_the_default(manifest: Manifest) -> None:
    drawn = draw(manifest, Subset())
    assert drawn.numbers.tolist() == list(range(len(manifest)))
    assert drawn.classes == manifest.classes


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**63), few=st.integers(1, 40), more=st.integers(1, 40))
def test_fewer_classes_of_one_seed_are_part_of_more(
    manifest: Manifest, seed: int, few: int, more: int
) -> None:
    few, more = sorted((few, more))
    small, large = (draw(manifest, Subset(classes=count, seed=seed)) for count in (few, more))
    assert len(small.classes) == few
    assert set(small.classes) <= set(large.classes)
    assert set(small.numbers.tolist()) <= set(large.numbers.tolist())
    assert {manifest.classes[label] for label in manifest.labels[small.places]} == set(small.classes)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**63), a=st.floats(0.01, 1), b=st.floats(0.01, 1), per_class=st.integers(1, 8))
def test_a_smaller_part_of_one_seed_is_part_of_a_larger(
    manifest: Manifest, seed: int, a: float, b: float, per_class: int
) -> None:
    small, large = (draw(manifest, Subset(seed=seed, fraction=part)).numbers for part in sorted((a, b)))
    assert set(small.tolist()) <= set(large.tolist())
    counts = np.bincount(manifest.labels[small], minlength=40)
    whole = np.bincount(manifest.labels, minlength=40)
    assert (counts == np.ceil(whole * min(a, b))).all()
    few = draw(manifest, Subset(seed=seed, per_class=per_class)).numbers
    assert (np.bincount(manifest.labels[few], minlength=40) == np.minimum(whole, per_class)).all()


def test_other_seeds_draw_other_classes(manifest: Manifest) -> None:
    draws = {draw(manifest, Subset(classes=10, seed=seed)).classes for seed in range(20)}
    assert len(draws) == 20


def test_every_class_is_as_likely_as_every_other(manifest: Manifest) -> None:
    counts = dict.fromkeys(manifest.classes, 0)
    for seed in range(2000):
        for name in draw(manifest, Subset(classes=4, seed=seed)).classes:
            counts[name] += 1
    assert min(counts.values()) > 120  # 200 expected, 13 the deviation
    assert max(counts.values()) < 280


def test_a_class_that_is_added_moves_no_other_one(tmp_path: Path) -> None:
    before = manifest_of(tmp_path / "1", [f"c{label}/1.jpg" for label in range(20)])
    after = manifest_of(tmp_path / "2", [f"c{label}/1.jpg" for label in range(20)] + ["new/1.jpg"])
    old = set(draw(before, Subset(classes=10, seed=3)).classes)
    new = set(draw(after, Subset(classes=10, seed=3)).classes)
    assert len(old & new) >= 9


def test_the_draw_of_a_seed_never_changes(manifest: Manifest) -> None:
    assert draw(manifest, Subset(classes=5, seed=42)).classes == GOLDEN_CLASSES


GOLDEN_CLASSES = ("c04", "c14", "c15", "c18", "c33")


def test_classes_can_be_named_counted_or_listed_in_a_file(tmp_path: Path) -> None:
    assert parse_classes("100") == 100
    assert parse_classes("100,") == ("100",)
    assert parse_classes("a, b,a") == ("a", "b")
    assert parse_classes(None) is None
    (tmp_path / "list").write_text("# drawn\na\n\nb\n")
    assert parse_classes(f"@{tmp_path / 'list'}") == ("a", "b")
    for wrong in (",", f"@{tmp_path / 'none'}", ""):
        with pytest.raises(UsageError):
            parse_classes(wrong)


@pytest.mark.parametrize(
    ("subset", "says"),
    [
        (Subset(classes=41), "41 classes were asked for, and there are 40"),
        (Subset(classes=("c01", "c99")), "no class 'c99'"),
        (Subset(split="train"), "no split 'train'"),
    ],
)
def test_a_subset_that_cannot_be_drawn_says_why(manifest: Manifest, subset: Subset, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        draw(manifest, subset)
    assert caught.value.hint


@pytest.mark.parametrize("wrong", [{"classes": 0}, {"per_class": 0}, {"fraction": 0.0}, {"fraction": 1.5}])
def test_a_subset_that_makes_no_sense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        Subset(**wrong)  # type: ignore[arg-type]


def test_a_split_has_its_own_samples_and_classes(splits: Manifest) -> None:
    train, val = draw(splits, Subset(split="train")), draw(splits, Subset(split="val"))
    assert (len(train.numbers), len(val.numbers)) == (3, 2)
    assert val.classes == ("a", "b")


def test_several_splits_are_named_with_a_comma(splits: Manifest) -> None:
    both = draw(splits, Subset(split="val,train"))
    apart = [draw(splits, Subset(split=name)).numbers for name in ("train", "val")]
    assert sorted(both.numbers) == sorted([*apart[0], *apart[1]])
    with pytest.raises(UsageError, match="no split 'nope'"):
        draw(splits, Subset(split="train,nope"))


def test_with_the_classes_of_another_split_named_labels_are_those_of_that_split(tmp_path: Path) -> None:
    manifest = manifest_of(tmp_path / "m", ["train/a/1.jpg", "train/b/1.jpg", "train/c/1.jpg", "val/c/1.jpg"])
    train = draw(manifest, Subset(split="train"))
    alone, alike = (draw(manifest, Subset(names, split="val")) for names in (None, train.classes))
    assert (alone.classes, alike.classes) == (("c",), ("a", "b", "c"))
    assert [manifest.key(place) for place in alike.places] == ["val/c/1.jpg"]


def test_a_subset_survives_json() -> None:
    for subset in (Subset(), Subset(("a",), 3, 2, 0.5, "size > 1", "train"), Subset(classes=7)):
        assert Subset.from_json(subset.to_json()) == subset
        assert Subset.from_json({**subset.to_json(), "classes": _listed(subset.classes)}) == subset


def _listed(classes: int | tuple[str, ...] | None) -> object:
    return list(classes) if isinstance(classes, tuple) else classes


@pytest.mark.parametrize(
    ("expression", "count"),
    [
        ("class = c06", 7),
        ("class in (c06, 'c13') and key like '%/0.jpg'", 2),
        ("not class in (c06)", 148),
        ("class not in (c06)", 148),
        ("size <= 3KB", 3),
        ("size > 3_000 and size <= 5000", 2),
        ("label < 2 or label = 6", 10),
        ("(label < 2 or label = 6) and size < 1MB", 10),
        ("key not like 'c0%'", 155 - 34),
        ("split = ''", 155),
        ("version != x", 155),
    ],
)
def test_where_selects_what_it_says(manifest: Manifest, expression: str, count: int) -> None:
    assert int(select(manifest, expression).sum()) == count


@pytest.mark.parametrize(
    "wrong",
    ["", "size", "size >", "size > big", "sise > 3", "size > 3 and", "(size > 3", "size > 3)", "class in ()",
     "label like 'x'", "size not > 3", "size = 99999999999999999999", "'a' = key", "= =", "not",
     "(" * 60 + "size > 1"],
)  # fmt: skip
def test_where_refuses_what_it_does_not_understand(manifest: Manifest, wrong: str) -> None:
    with pytest.raises(UsageError, match="--where") as caught:
        select(manifest, wrong)
    assert "columns:" in caught.value.hint


words = st.sampled_from(
    ["size", "class", "key", "and", "or", "not", "in", "like", "(", ")", ",", "=", "<", "'a'", "3", "5KB"]
)


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.lists(words, max_size=12).map(" ".join), st.text(max_size=30)))
def test_whatever_is_written_is_understood_or_refused(manifest: Manifest, expression: str) -> None:
    try:
        mask = select(manifest, expression)
    except UsageError:
        return
    assert mask.shape == (len(manifest),)
    assert mask.dtype == np.bool_
