"""Parquet as a layout: footers and row groups by range, and a file that is unlike the others told alone."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layout_contract import PackedContract, listed
from making import jpeg
from parquets import NAMES, parquet_of, photos
from stager.errors import SampleError, UsageError
from stager.interfaces import Entry, Layout, LeftOut
from stager.layouts import check_layout, open_layout, open_opener
from stager.recipes import open_recipe

IMAGES: Mapping[str, Any] = {"kind": "image"}


def layout(recipe: Mapping[str, Any] = IMAGES, left_out: LeftOut | None = None, **options: str) -> Layout:
    opened = open_recipe(recipe)
    found = open_layout(
        "parquet", check_layout("parquet", options), opened, left_out or LeftOut(opened.takes)
    )
    assert not found.is_computed
    return found


def found_in(
    objects: Mapping[str, bytes], recipe: Mapping[str, Any] = IMAGES, **options: str
) -> tuple[list[Entry], str]:
    left_out = LeftOut(open_recipe(recipe).takes)
    entries = list(layout(recipe, left_out, **options).entries(listed(objects)))
    return entries, left_out.line()


def taken(entry: Entry, objects: Mapping[str, bytes]) -> list[bytes]:
    """What the recipe is given of a sample, from its own parts alone."""
    opener = open_opener("parquet", check_layout("parquet", {}))
    assert opener is not None
    opened = [
        opener.open(number, memoryview(objects[part.info.key])[part.start : part.stop])
        for number, part in enumerate(entry.parts)
    ]
    return [bytes(data) for data in opener.take(opened, entry.at)]


class TestParquet(PackedContract):
    objects = {f"train-{at}.parquet": parquet_of(photos(range(at * 10, at * 10 + 7)), 3) for at in range(3)}

    def make(self) -> Layout:
        return layout()

    def changed(self) -> str:
        return "train-1.parquet"


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
@pytest.mark.parametrize("use_dictionary", [True, False])
def test_every_row_gives_its_own_bytes(compression: str, use_dictionary: bool) -> None:
    table = photos(range(25))
    data = parquet_of(table, 10, compression=compression, use_dictionary=use_dictionary)
    objects = {"a.parquet": data}
    entries, line = found_in(objects)
    assert (len(entries), line) == (25, "")
    for number, entry in enumerate(entries):
        assert taken(entry, objects) == [jpeg(number)]
        assert entry.path == ("", NAMES[number % 3])
    assert len({entry.parts for entry in entries}) == 3, "rows of a group share their parts"


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary(4)])
def test_any_column_of_bytes_will_do_and_several_fields_come_from_one_row(kind: pa.DataType) -> None:
    table = pa.table(
        {"a": pa.array([b"one1", b"two2"], kind), "caption": ["ä", "b"], "b": [b"x", b"yy"], "w": [0.5, 2]}
    )
    objects = {"a.parquet": parquet_of(table)}
    recipe = {
        "left": {"kind": "bytes", "path": "a"},
        "right": {"kind": "bytes", "path": "b"},
        "said": {"kind": "text", "path": "caption"},
    }
    made = layout(recipe)
    entries = list(made.entries(listed(objects)))
    assert taken(entries[0], objects) == [b"one1", b"x", "ä".encode()]
    assert [attribute.name for attribute in made.attributes] == ["w"]
    with pytest.raises(UsageError) as raised:
        found_in(objects)
    assert raised.value.hint.endswith("with bytes: a, b")


def test_a_file_with_another_schema_is_left_out_with_one_line_and_the_others_are_there() -> None:
    other = pa.table({"picture": [b"1"], "label": [1]})
    text = pa.table({"image": [1.5], "label": [1]})
    objects = {
        "a.parquet": parquet_of(photos(range(3))),
        "b.parquet": parquet_of(other),
        "c.parquet": parquet_of(text),
        "d.parquet": parquet_of(photos(range(3)))[:-20],
        "e.parquet": parquet_of(photos(range(3)).drop_columns(["fold"])),
        "notes.txt": b"",
    }
    entries, line = found_in(objects, {"kind": "image", "path": "image"})
    assert [entry.key[0] for entry in entries] == ["a"] * 3 + ["e"] * 3
    assert "b.parquet: it has no column image; c.parquet: its column image has no bytes, but double;" in line
    assert "d.parquet: " in line
    assert line.endswith("1 file that is no image: 1 .txt")


def test_a_row_without_bytes_fails_alone_and_one_without_a_label_is_left_out() -> None:
    table = pa.table({"x": [b"1", None, b"3"], "kind": ["a", "b", None]})
    objects = {"a.parquet": parquet_of(table)}
    entries, line = found_in(objects, label="kind")
    assert line == "left out: 1 row of the table without a label"
    assert taken(entries[0], objects) == [b"1"]
    with pytest.raises(SampleError, match="no bytes in this row"):
        taken(entries[1], objects)
    with pytest.raises(UsageError, match="'knid'"):
        found_in(objects, label="knid")


def test_only_the_footer_and_plain_columns_are_read() -> None:
    table = photos(range(3), large=[np.random.default_rng(0).bytes(2_000_000) for _ in range(3)])
    source = listed({"a.parquet": parquet_of(table)})
    assert len(list(layout({"kind": "image", "path": "image"}).entries(source))) == 3
    assert sum(part.size for part in source.read_parts) < 1_000_000


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_cut_or_strange_footer_leaves_one_line_and_no_samples_of_it(data: st.DataObject) -> None:
    raw = parquet_of(photos(range(3)))
    cut = data.draw(st.integers(0, len(raw) - 1))
    entries, line = found_in({"a.parquet": raw[:cut], "b.parquet": raw})
    assert [entry.key[0] for entry in entries] == ["b"] * 3
    assert line.startswith("a.parquet: ")
