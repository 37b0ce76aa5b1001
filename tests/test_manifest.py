"""Layouts and manifests: order, labels, digest, and what stays the same between two scans."""

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from making import Listed, folder_layout, manifest_of, scanned
from stager.errors import CacheError
from stager.reader.samples.changes import join
from stager.reader.samples.manifest import PLACE, Manifest
from stager.reader.samples.sample_list import SampleList
from stager.reader.samples.sealed import read_sealed, write_sealed
from stager.reader.samples.segments import ListedSegment, read_segment
from stager.reader.values import ObjectInfo, sample_tag
from stager.scan.scan import Known, Scan, write_manifest


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
            manifest.key(number), manifest.records.infos([number])[0].version
        )


def test_unchanged_samples_keep_their_numbers_in_a_later_scan(tmp_path: Path) -> None:
    old = manifest_of(tmp_path / "1", ["a/1.jpg", "a/2.jpg", "b/1.jpg"])
    infos = [old.records.infos([number])[0] for number in (1, 2)]
    new = scanned(tmp_path / "2", [ObjectInfo("a/0.jpg", 1, "v"), *infos], Known(old.records, old))
    assert [new.key(place) for place in range(3)] == ["a/0.jpg", "a/2.jpg", "b/1.jpg"]
    assert new.numbers.tolist() == [3, 1, 2]
    assert len(new.records) == 4
    back = scanned(tmp_path / "3", old.records.infos([0, 1, 2]), Known(new.records, new))
    assert back.numbers.tolist() == [0, 1, 2]  # what comes back is what it was
    assert back.digest == old.digest
    assert not Scan(tmp_path / "3").segments


def test_a_changed_version_is_another_sample(tmp_path: Path) -> None:
    old = scanned(tmp_path / "v1", [ObjectInfo("a/1.jpg", 1, "v1"), ObjectInfo("a/2.jpg", 1, "v1")])
    now = [ObjectInfo("a/1.jpg", 1, "v2"), ObjectInfo("a/2.jpg", 1, "v1")]
    new = scanned(tmp_path / "v2", now, Known(old.records, old))
    assert new.numbers.tolist() == [2, 1]
    joins = Scan(tmp_path / "v2").read_joins()
    assert joins.replaced.tolist() == [[0], [2], [1]]
    assert (joins.count, len(joins.moved)) == (2, 0)


def test_two_samples_of_one_tag_are_told_apart_by_key_and_version(tmp_path: Path) -> None:
    old = scanned(tmp_path / "1", [ObjectInfo("a/1.jpg", 1, "v1")])
    table = read_sealed(Scan(tmp_path / "1").segments[0])
    twin = table.set_column(
        table.schema.get_field_index("key"), "key", pa.array([b"a/2.jpg"], pa.large_binary())
    )
    write_sealed(tmp_path / "twin", twin)  # another key under the same tag
    records = SampleList("0" * 32, (), ()).plus("twin", read_segment(tmp_path / "twin"))
    new = scanned(tmp_path / "2", [ObjectInfo("a/1.jpg", 1, "v1")], Known(records))
    assert new.numbers.tolist() == [1]
    assert new.tags.tolist() == old.tags.tolist()


def test_a_list_that_is_made_anew_says_where_each_sample_has_moved(tmp_path: Path) -> None:
    old = scanned(tmp_path / "1", [ObjectInfo(f"a/{number}.jpg", 1, "v1") for number in range(5)])
    now = [ObjectInfo("a/3.jpg", 1, "v1"), ObjectInfo("a/4.jpg", 1, "v2"), ObjectInfo("a/5.jpg", 1, "v1")]
    new = scanned(tmp_path / "2", now, Known(old.records, old, relist=True))
    assert new.numbers.tolist() == [0, 1, 2]
    assert Scan(tmp_path / "2").read_joins().moved.tolist() == [-1, -1, -1, 0, -1]
    assert [info.key for info in new.records.infos([0, 1, 2])] == ["a/3.jpg", "a/4.jpg", "a/5.jpg"]


def test_every_flipped_bit_of_a_manifest_and_its_records_is_an_error_that_says_what_to_do(
    tmp_path: Path,
) -> None:
    """pyarrow ends the process over some of them: none may reach it."""
    manifest = manifest_of(tmp_path / "m", ["a/1.jpg", "b/2.jpg"])
    for path in (tmp_path / "m", *Scan(tmp_path / "m").segments):
        good = path.read_bytes()
        for at in range(0, len(good) * 8, 13):
            bad = bytearray(good)
            bad[at // 8] ^= 1 << at % 8
            path.write_bytes(bad)
            with pytest.raises(CacheError, match="damaged") as caught:
                Manifest.open(path, manifest.records)
            assert "stager prefetch" in caught.value.hint
        for size in range(0, len(good), 101):
            path.write_bytes(good[:size])
            with pytest.raises(CacheError):
                read_sealed(path)
        path.write_bytes(good)
        read_sealed(path)


def test_a_reader_of_today_opens_a_manifest_with_columns_of_tomorrow(tmp_path: Path) -> None:
    manifest = manifest_of(tmp_path / "m", ["a/1.jpg", "b/1.jpg"])
    table = read_sealed(tmp_path / "m").append_column("box", pa.array([[1, 2], [3, 4]]))
    write_sealed(tmp_path / "n", table)
    assert Manifest.open(tmp_path / "n", manifest.records).key(1) == "b/1.jpg"
    assert table.schema.names[: len(PLACE.names)] == PLACE.names


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 40), max_size=60), st.lists(st.integers(1, 12), min_size=1, max_size=5))
def test_records_in_segments_answer_as_one_list(wanted: list[int], lengths: list[int]) -> None:
    records, keys = SampleList("0" * 32, (), ()), []
    for number, length in enumerate(lengths):
        here = [f"k{number}-{at}" for at in range(length)]
        keys += here
        columns = [
            pa.array([key.encode() for key in here], pa.large_binary()),
            pa.array(range(length), pa.int64()),
            pa.array([f"v{key}" for key in here], pa.large_string()),
            *(pa.array([hash(key) % 2**64 for key in here], pa.uint64()) for _ in range(2)),
        ]
        records = records.plus(
            f"{number}",
            ListedSegment(pa.record_batch(columns, names=["key", "size", "version", "key_hash", "tag"])),
        )
    numbers = np.asarray([number % len(keys) for number in wanted], dtype=np.int64)
    assert [info.key for info in records.infos(numbers)] == [keys[number] for number in numbers]
    assert records.column("version", numbers).to_pylist() == [f"v{keys[number]}" for number in numbers]
    assert records.values("tag", numbers).tolist() == [hash(keys[number]) % 2**64 for number in numbers]
    assert [records.key(int(number)) for number in numbers] == [keys[number] for number in numbers]


def test_a_long_listing_is_not_held_as_python_values(tmp_path: Path) -> None:
    count = 300_000

    def objects() -> Iterator[ObjectInfo]:
        for number in range(count):
            yield ObjectInfo(f"class{number % 1000:04d}/{number:09d}.jpg", 100, f"{number:032x}")

    tracemalloc.start()
    write_manifest(tmp_path / "m", folder_layout(), Listed(objects()))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(read_sealed(tmp_path / "m")) == count
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
