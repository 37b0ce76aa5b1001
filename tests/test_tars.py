"""Tars as a layout: headers alone, read by range, and whatever is wrong with one told of that one."""

import io
import json
import tarfile
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layout_contract import PackedContract, listed
from stager.errors import UsageError
from stager.interfaces import Entry, Layout, LeftOut
from stager.layouts import check_layout, open_layout
from stager.layouts.packed.ranged import READ_BYTES_MAX, READ_BYTES_MIN, next_read
from stager.recipes import open_recipe
from tars import sample, shard, tar_of

IMAGES: Mapping[str, Any] = {"kind": "image"}
BIG = b"\0" * 3_000_000


def layout(recipe: Mapping[str, Any] = IMAGES, left_out: LeftOut | None = None, **options: str) -> Layout:
    opened = open_recipe(recipe)
    found = open_layout("tar", check_layout("tar", options), opened, left_out or LeftOut(opened.takes))
    assert not found.is_computed
    return found


def found_in(objects: Mapping[str, bytes], **options: str) -> tuple[list[Entry], str]:
    left_out = LeftOut(open_recipe(IMAGES).takes)
    entries = list(layout(left_out=left_out, **options).entries(listed(objects)))
    return entries, left_out.line()


class TestTars(PackedContract):
    objects = {f"train/{at}.tar": shard(at * 10, 4) for at in range(3)}

    def make(self) -> Layout:
        return layout()

    def changed(self) -> str:
        return "train/1.tar"


def test_a_sample_has_the_bytes_label_split_and_attributes_of_its_members() -> None:
    data = tar_of(sample(7, name="dog", box=[1, 2], size=3, weight=0.5))
    objects = {"set-train-000.tar": data}
    made = layout()
    (entry,) = made.entries(listed(objects))
    (part,) = entry.parts
    assert data[part.start : part.stop] == sample(7)[0][1]
    assert entry.key == "set-train-000.tar/000007"
    assert made.label([entry.path])[entry.path] == ("train", "1")
    told = dict(zip([name for name, _ in made.attributes], entry.values, strict=True))
    assert told == {"fold": 3, "name": "dog", "weight": 0.5, "cls": 1, "number": 7}, (
        "size means something else"
    )


def test_several_fields_take_members_by_their_endings() -> None:
    data = tar_of([("a/x.jpg", b"one"), ("a/x.depth.png", b"two"), ("b/y.jpg", b"three")])
    recipe = {
        "depth": {"kind": "bytes", "path": "depth.png"},
        "photo": {"kind": "bytes", "path": ".JPG"},
    }
    left_out = LeftOut()
    made = layout(recipe, left_out)
    (entry,) = made.entries(listed({"0.tar": data}))
    assert [data[part.start : part.stop] for part in entry.parts] == [b"two", b"one"]
    assert entry.path == ("", "a")
    assert left_out.line() == "left out: 1 sample that lacks a member"
    with pytest.raises(UsageError, match="does not say what"):
        list(layout({"a": {"kind": "image"}, "b": {"kind": "image"}}).entries(listed({"0.tar": data})))


def test_classes_that_are_numbers_sort_as_numbers() -> None:
    members = [member for n in (2, 10, 1) for member in ((f"{n}.jpg", b"x"), (f"{n}.cls", b"%d" % n))]
    made = layout()
    paths = {entry.path for entry in made.entries(listed({"0.tar": tar_of(members)}))}
    assert sorted(name for _, name in made.label(paths).values()) == ["01", "02", "10"]


def test_a_label_may_come_from_json() -> None:
    entries, _ = found_in({"0.tar": shard(0, 4)}, label="fold")
    assert [entry.path for entry in entries] == [("", str(n)) for n in range(4)]
    with pytest.raises(UsageError, match="'flod'") as raised:
        found_in({"0.tar": shard(0, 4)}, label="flod")
    assert raised.value.hint == "did you mean 'fold'?"


def test_names_that_lead_out_links_and_doubles_are_left_out_and_told() -> None:
    members = [
        ("../up.jpg", b"1"),
        ("/etc/passwd.jpg", b"2"),
        ("a.jpg", b"3"),
        ("a.jpg", b"4"),
        ("LICENSE", b""),
    ]
    entries, line = found_in({"0.tar": tar_of(members, {"b.jpg": "/etc/passwd"}), "notes.txt": b""})
    assert [entry.key for entry in entries] == ["0.tar/a"]
    assert "3 members of tars that are no files, or whose names lead out of them" in line
    assert "1 member of a tar without an ending, 1 member that its tar has twice" in line
    assert line.endswith("1 file that is no image: 1 .txt")


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_every_format_of_tars_and_long_names_are_read(form: int) -> None:
    file = io.BytesIO()
    name = "n" * 80 + "/" + ("ü" * 30 if form != tarfile.USTAR_FORMAT else "u") + ".jpg"
    with tarfile.open(fileobj=file, mode="w", format=form) as tar:
        info = tarfile.TarInfo(name)
        info.size = 5
        tar.addfile(info, io.BytesIO(b"12345"))
    (entry,), line = found_in({"0.tar": file.getvalue()})
    (part,) = entry.parts
    assert (entry.key, line) == ("0.tar/" + name.removesuffix(".jpg"), "")
    assert file.getvalue()[part.start : part.stop] == b"12345"


def test_a_tar_that_is_cut_or_damaged_keeps_what_came_before_and_others_lose_nothing() -> None:
    whole = tar_of([("a.jpg", b"a" * 600), ("b.jpg", b"b" * 600)])
    second = whole.index(b"b.jpg")
    cases = {
        "within-data": (whole[: second + 700], ["a", "b"], "it ends within b.jpg"),  # b fails: truncated
        "within-header": (whole[: second + 100], ["a"], f"byte {second}: "),
        "no-header": (whole[:second] + b"x" * 512 + whole[second + 512 :], ["a"], f"byte {second}: "),
        "no-tar": (b"x" * 2000, [], "byte 0: "),
        "empty": (b"", [], "byte 0: "),
    }
    for name, (data, samples, told) in cases.items():
        entries, line = found_in({"good.tar": whole, f"{name}.tar": data})
        of_one = [entry.key.split("/")[1] for entry in entries if entry.key.startswith(name)]
        assert of_one == samples, name
        assert f"{name}.tar: " in line, name
        assert told in line, name
        assert len([entry for entry in entries if entry.key.startswith("good")]) == 2
    entries, _ = found_in({"cut.tar": whole[: second + 700]})
    assert [part.stop <= part.info.size for entry in entries for part in entry.parts if part.stop] == [
        True,
        False,
    ]


def test_json_that_is_none_leaves_its_sample_without_values() -> None:
    members = [("a.jpg", b"1"), ("a.json", b"{"), ("b.jpg", b"2"), ("b.json", json.dumps({"x": 1}).encode())]
    entries, line = found_in({"0.tar": tar_of(members)})
    assert [entry.values for entry in entries] == [(None,), (1,)]
    assert line == "left out: 1 member that should say something in text"


def test_large_members_are_passed_over_and_small_ones_streamed() -> None:
    large = listed({"0.tar": tar_of([(f"{n}.jpg", BIG) for n in range(10)])})
    assert len(list(layout().entries(large))) == 10
    assert sum(part.size for part in large.read_parts) < len(BIG)
    small = listed({"0.tar": tar_of([(f"{n}.jpg", b"x" * 9000) for n in range(1000)])})
    assert len(list(layout().entries(small))) == 1000
    assert len(small.read_parts) < 12


def test_reads_grow_where_headers_lie_close_and_shrink_where_not() -> None:
    size = 64 << 10
    for _ in range(20):
        size = next_read(size, 1000)
    assert size == READ_BYTES_MAX
    for _ in range(20):
        size = next_read(size, 100 << 20)
    assert size == READ_BYTES_MIN
    assert next_read(size, -5) == READ_BYTES_MIN


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_damage_leaves_samples_within_the_tar_or_one_line(data: st.DataObject) -> None:
    raw = bytearray(shard(0, 3))
    for at in data.draw(st.lists(st.integers(0, len(raw) // 512 - 1), max_size=3)):
        raw[at * 512 + data.draw(st.integers(0, 511))] ^= 1 << data.draw(st.integers(0, 7))
    cut = data.draw(st.integers(0, len(raw)))
    entries, line = found_in({"0.tar": bytes(raw[:cut])})
    assert len(entries) == 3 or line
    assert all(0 <= part.start <= part.start + part.size for entry in entries for part in entry.parts)
