"""Layouts and manifests: order, labels, digest, and what stays the same between two scans."""

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from making import manifest_of
from stager.errors import CacheError
from stager.layouts import LAYOUTS
from stager.manifest import SCHEMA, Manifest, join, write_manifest
from stager.model import ObjectInfo, sample_tag


def test_samples_are_sorted_by_class_and_name_as_imagefolder_does(tmp_path: Path) -> None:
    # '-' sorts before '/': by key alone, a-b would come before a.
    manifest = manifest_of(tmp_path / "m", ["a/2.jpg", "a/1.jpg", "a-b/1.jpg", "b/x/deep.png"])
    assert [manifest.key(number) for number in range(4)] == [
        "a/1.jpg",
        "a/2.jpg",
        "a-b/1.jpg",
        "b/x/deep.png",
    ]
    assert manifest.classes == ("a", "a-b", "b")
    assert manifest.labels.tolist() == [0, 0, 1, 2]
    assert manifest.splits == ("",)


def test_what_is_no_image_by_name_or_in_no_folder_is_left_out(tmp_path: Path) -> None:
    manifest = manifest_of(tmp_path / "m", ["a/1.JPEG", "a/notes.txt", "readme.md", "top.jpg"])
    assert [manifest.key(number) for number in range(len(manifest))] == ["a/1.JPEG"]


def test_train_and_val_above_the_classes_are_splits(tmp_path: Path) -> None:
    manifest = manifest_of(tmp_path / "m", ["train/a/1.jpg", "train/b/1.jpg", "val/a/2.jpg"])
    assert manifest.splits == ("train", "val")
    assert manifest.classes == ("a", "b")
    assert manifest.labels.tolist() == [0, 1, 0]
    assert manifest.split_of.tolist() == [0, 0, 1]


@pytest.mark.parametrize("keys", [["train/1.jpg", "train/2.jpg"], ["train/a/1.jpg", "car/a/1.jpg"]])
def test_a_class_that_is_called_train_is_no_split(tmp_path: Path, keys: list[str]) -> None:
    manifest = manifest_of(tmp_path / "m", keys)
    assert manifest.splits == ("",)
    assert "train" in manifest.classes


def test_the_digest_is_of_the_content_alone(tmp_path: Path) -> None:
    one = manifest_of(tmp_path / "1", ["a/1.jpg", "b/2.jpg"])
    same = manifest_of(tmp_path / "2", ["b/2.jpg", "a/1.jpg"])
    other_key = manifest_of(tmp_path / "3", ["a/1.jpg", "b/3.jpg"])
    other_size = manifest_of(tmp_path / "4", ["a/1.jpg", "b/2.jpg"], {"a/1.jpg": 7})
    assert one.digest == same.digest
    assert len({one.digest, other_key.digest, other_size.digest}) == 3


def test_the_digest_of_a_manifest_never_changes_by_accident(tmp_path: Path) -> None:
    assert manifest_of(tmp_path / "m", ["a/1.jpg", "b/2.jpg"]).digest == GOLDEN_DIGEST


GOLDEN_DIGEST = "db44dcf29de7a0f56aa5ac1752dd1d19"


def test_a_manifest_of_nothing_can_be_written_and_read(tmp_path: Path) -> None:
    manifest = manifest_of(tmp_path / "m", [])
    assert len(manifest) == 0
    assert manifest.find("a/1.jpg") is None
    assert manifest.classes == ()


def test_keys_of_any_bytes_come_back_as_they_were(tmp_path: Path) -> None:
    keys = ["a/\udcff\udc80.jpg", "a/new\nline.jpg", "a/nul\0.jpg", "a/é.jpg", "ü/ .jpg"]
    manifest = manifest_of(tmp_path / "m", keys)
    assert {manifest.key(number) for number in range(len(manifest))} == set(keys)
    for number in range(len(manifest)):
        assert manifest.find(manifest.key(number)) == number
        assert int(manifest.tags[number]) == sample_tag(
            manifest.key(number), manifest.infos([number])[0].version
        )


def test_unchanged_samples_are_found_again_in_a_later_scan(tmp_path: Path) -> None:
    old = manifest_of(tmp_path / "1", ["a/1.jpg", "a/2.jpg", "b/1.jpg"])
    new = manifest_of(tmp_path / "2", ["a/0.jpg", "a/2.jpg", "b/1.jpg"])
    assert old.numbers_in(new).tolist() == [-1, 1, 2]
    assert new.numbers_in(old).tolist() == [-1, 1, 2]
    empty = manifest_of(tmp_path / "3", [])
    assert old.numbers_in(empty).tolist() == [-1, -1, -1]
    assert empty.numbers_in(old).tolist() == []


def test_a_changed_version_is_another_sample(tmp_path: Path) -> None:
    for version in ("v1", "v2"):
        write_manifest(tmp_path / version, LAYOUTS["folder"], [ObjectInfo("a/1.jpg", 1, version)])
    old, new = Manifest.open(tmp_path / "v1"), Manifest.open(tmp_path / "v2")
    assert old.numbers_in(new).tolist() == [-1]


def test_a_damaged_manifest_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    manifest_of(tmp_path / "m", ["a/1.jpg"])
    (tmp_path / "m").write_bytes((tmp_path / "m").read_bytes()[:200])
    with pytest.raises(CacheError, match="cannot be read"):
        Manifest.open(tmp_path / "m")


def test_a_reader_of_today_opens_a_manifest_with_columns_of_tomorrow(tmp_path: Path) -> None:
    manifest_of(tmp_path / "m", ["a/1.jpg", "b/1.jpg"])
    table = pa.ipc.open_file(str(tmp_path / "m")).read_all()
    table = table.append_column("box", pa.array([[1, 2], [3, 4]]))
    with pa.OSFile(str(tmp_path / "n"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    assert Manifest.open(tmp_path / "n").key(1) == "b/1.jpg"
    assert table.schema.names[: len(SCHEMA.names)] == SCHEMA.names


def test_a_long_listing_is_not_held_as_python_values(tmp_path: Path) -> None:
    count = 300_000

    def objects() -> Iterator[ObjectInfo]:
        for number in range(count):
            yield ObjectInfo(f"class{number % 1000:04d}/{number:09d}.jpg", 100, f"{number:032x}")

    tracemalloc.start()
    write_manifest(tmp_path / "m", LAYOUTS["folder"], objects())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(Manifest.open(tmp_path / "m")) == count
    assert peak < 200 * count  # a million keys: under 200 MB of Python values


names = st.text(st.characters(exclude_characters="/\0", exclude_categories=("Cs",)), min_size=1, max_size=6)


@settings(max_examples=50, deadline=None)
@given(st.sets(st.tuples(names, names), max_size=30))
def test_every_object_is_found_with_its_class(
    tmp_path_factory: pytest.TempPathFactory, pairs: set[tuple[str, str]]
) -> None:
    keys = {f"{folder}/{name}.jpg" for folder, name in pairs}
    manifest = manifest_of(tmp_path_factory.mktemp("m") / "m", keys)
    assert len(manifest) == len(keys)
    for key in keys:
        number = manifest.find(key)
        assert number is not None
        assert manifest.classes[manifest.labels[number]] == key.split("/")[0]
    labels = manifest.labels.tolist()
    assert labels == sorted(labels)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(0, 30), unique=True, max_size=20),
    st.lists(st.integers(0, 30), unique=True, max_size=20),
    st.lists(st.integers(40, 50), unique=True, max_size=5),
    st.lists(st.integers(60, 70), unique=True, max_size=5),
)
def test_samples_are_found_again_wherever_a_scan_has_moved_them(
    ours: list[int], others: list[int], head: list[int], tail: list[int]
) -> None:
    old, new = [*head, *ours, *tail], [*head, *others, *tail]
    found = join(np.asarray(old, dtype=np.uint64), np.asarray(new, dtype=np.uint64))
    assert found.tolist() == [new.index(tag) if tag in new else -1 for tag in old]
