"""Tables in every format give the same samples: CSV, JSON lines, Parquet, Hugging Face's, COCO and VOC."""

import io
import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from layout_contract import LayoutContract, listed
from stager.errors import UsageError
from stager.interfaces import Entry, Layout, LeftOut
from stager.layouts import check_layout, open_layout
from stager.recipes import open_recipe

Objects = Mapping[str, bytes]
ROWS: list[dict[str, Any]] = [
    {"file": "a/007.jpg", "phase": "early", "fold": 0, "age": 30, "good": True, "note": "x"},
    {"file": "a/008.jpg", "phase": "late", "fold": 1, "age": 41.5, "good": False, "note": None},
    {"file": "b/009.jpg", "phase": "early", "fold": 2, "age": None, "good": True, "note": "12"},
]
PICTURES = {row["file"]: b"x" * at for at, row in enumerate(ROWS, 1)}
CORNERS = ("xmin", "ymin", "xmax", "ymax")


def parquet(rows: list[dict[str, Any]]) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), file)
    return file.getvalue()


def jsonl(rows: list[dict[str, Any]]) -> bytes:
    return "\n".join(json.dumps(row) for row in rows).encode() + b"\n\n"


def csv(rows: list[dict[str, Any]]) -> bytes:
    lines = [",".join(rows[0])]
    lines += [",".join("" if value is None else str(value) for value in row.values()) for row in rows]
    return "\n".join(lines).encode()


TABLES = {
    "rows.csv": csv(ROWS),
    "rows.jsonl": jsonl(ROWS),
    "rows.json": json.dumps(ROWS).encode(),
    "rows.parquet": parquet(ROWS),
}

COCO = {
    "images": [
        {"id": 7, "file_name": "p/1.jpg", "width": 64, "height": 48},
        {"id": 3, "file_name": "p/2.jpg", "width": 64, "height": 48},
        {"id": 5, "file_name": "p/3.jpg", "width": 64, "height": 48},
    ],
    "categories": [{"id": 1, "name": "cat"}, {"id": 9, "name": "dog"}],
    "annotations": [
        {"id": 50, "image_id": 3, "category_id": 9, "bbox": [1, 2, 10.5, 20], "iscrowd": 0},
        {"id": 51, "image_id": 7, "category_id": 1, "bbox": [0, 0, 5, 6], "iscrowd": 1},
        {"id": 52, "image_id": 3, "category_id": 1, "bbox": [4, 4, 4, 4], "segmentation": [[1, 2]]},
    ],
}
HUGGING_FACE = [
    {"file_name": "1.jpg", "objects": {"bbox": [[0, 0, 5, 6]], "category": ["cat"]}},
    {"file_name": "2.jpg", "objects": {"bbox": [[1, 2, 10.5, 20], [4, 4, 4, 4]], "category": ["dog", "cat"]}},
    {"file_name": "3.jpg", "objects": {"bbox": [], "category": []}},
]


def voc(name: str, *boxes: tuple[str, float, float, float, float]) -> bytes:
    things = "".join(
        f"<object><name>{category}</name><difficult>0</difficult><bndbox>"
        + "".join(f"<{corner}>{side:g}</{corner}>" for corner, side in zip(CORNERS, box, strict=True))
        + "</bndbox></object>"
        for category, *box in boxes
    )
    size = "<size><width>64</width><height>48</height><depth>3</depth></size>"
    return f"<annotation><filename>{name}</filename>{size}{things}</annotation>".encode()


BOXED: dict[str, tuple[Objects, dict[str, str], str]] = {
    "coco": ({"all.json": json.dumps(COCO).encode()}, {"table": "all.json"}, "{file_name}"),
    "voc": (
        {
            "xml/1.xml": voc("1.jpg", ("cat", 1, 1, 5, 6)),
            "xml/2.xml": voc("2.jpg", ("dog", 2, 3, 11.5, 22), ("cat", 5, 5, 8, 8)),
            "xml/3.xml": voc("3.jpg"),
        },
        {"table": "xml/*.xml"},
        "p/{filename}",
    ),
    "hugging face": ({"p/metadata.jsonl": jsonl(HUGGING_FACE)}, {}, "{file_name}"),
}


def opened(options: Mapping[str, str], recipe: Mapping[str, Any], left_out: LeftOut | None = None) -> Layout:
    layout = open_layout("table", check_layout("table", options), open_recipe(recipe), left_out or LeftOut())
    assert not layout.is_computed
    return layout


def read(
    objects: Objects, options: Mapping[str, str], path: str = "", left_out: LeftOut | None = None
) -> tuple[list[Entry], list[dict[str, Any]]]:
    """The samples, and the attributes of each by name."""
    layout = opened(options, {"path": path} if path else {}, left_out)
    entries = list(layout.entries(listed(objects)))
    names = [attribute.name for attribute in layout.attributes]
    return entries, [dict(zip(names, entry.values, strict=True)) for entry in entries]


class TestJsonLines(LayoutContract):
    objects = {"rows.jsonl": TABLES["rows.jsonl"], **PICTURES}

    def make(self) -> Layout:
        return opened({"table": "rows.jsonl", "label": "phase"}, {})

    def changed(self) -> str:
        return "a/008.jpg"


class TestBoxes(LayoutContract):
    objects = {
        **BOXED["coco"][0],
        **{f"p/{at}.jpg": b"x" * at for at in (1, 2)},
    }

    def make(self) -> Layout:
        return opened({"table": "all.json", "label": "category", "per": "box"}, {"path": "{file_name}"})

    def changed(self) -> str:
        return "p/2.jpg"


@pytest.mark.parametrize("name", TABLES)
def test_all_formats_give_the_same_samples_with_the_same_types(name: str) -> None:
    entries, attributes = read({name: TABLES[name], **PICTURES}, {"table": name, "label": "phase"})
    assert [entry.key for entry in entries] == [row["file"] for row in ROWS]
    assert [entry.path[1] for entry in entries] == [row["phase"] for row in ROWS]
    left = ("file",)
    assert attributes == [{name: row[name] for name in row if name not in left} for row in ROWS]
    assert [type(row["age"]) for row in attributes] == [float, float, type(None)]


@pytest.mark.parametrize("kind", BOXED)
def test_boxes_of_all_formats_are_corners_counted_from_zero(kind: str) -> None:
    tables, options, path = BOXED[kind]
    objects = {**tables, **{f"p/{at}.jpg": b"x" for at in (1, 2, 3)}}
    entries, attributes = read(objects, {**options, "per": "box", "label": "category"}, path)
    assert [(entry.key, entry.path[1]) for entry in entries] == [
        ("p/1.jpg", "cat"),
        ("p/2.jpg", "dog"),
        ("p/2.jpg#1", "cat"),
    ]
    corners = [[row[corner] for corner in CORNERS] for row in attributes]
    assert corners == [[0, 0, 5, 6], [1, 2, 11.5, 22], [4, 4, 8, 8]]
    assert [entry.table_row.rsplit(", ", 1)[1] for entry in entries] == ["box 0", "box 0", "box 1"]


@pytest.mark.parametrize("kind", BOXED)
def test_without_per_each_picture_is_a_sample_that_knows_how_many_boxes_it_has(kind: str) -> None:
    tables, options, path = BOXED[kind]
    objects = {**tables, **{f"p/{at}.jpg": b"x" for at in (1, 2, 3)}}
    entries, attributes = read(objects, options, path)
    assert [entry.key for entry in entries] == ["p/1.jpg", "p/2.jpg", "p/3.jpg"]
    assert [row["objects"] for row in attributes] == [1, 2, 0]


def test_metadata_is_found_by_itself_in_each_split_with_paths_beside_it() -> None:
    objects = {
        "train/metadata.csv": b"file_name,mask_file_name,age\n1.jpg,m/1.png,3\n",
        "test/metadata.csv": b"file_name,mask_file_name\n1.jpg,m/2.png\n",
        **{f"{split}/1.jpg": b"x" for split in ("train", "test")},
        **{"train/m/1.png": b"x", "test/m/2.png": b"x"},
    }
    layout = opened({}, {"image": {"kind": "image"}, "mask": {"kind": "image"}})
    entries = list(layout.entries(listed(objects)))
    assert [[part.info.key for part in entry.parts] for entry in entries] == [
        ["test/1.jpg", "test/m/2.png"],
        ["train/1.jpg", "train/m/1.png"],
    ]
    assert [(entry.path[0], entry.values, entry.table_row) for entry in entries] == [
        ("test", (None,), "test/metadata.csv line 2"),
        ("train", (3,), "train/metadata.csv line 2"),
    ]


def test_a_path_may_say_how_a_number_is_written() -> None:
    objects = {"t.jsonl": b'{"id": 7}\n', "000007.jpg": b"x"}
    (entry,), _ = read(objects, {"table": "t.jsonl"}, "{id:06d}.jpg")
    assert entry.key == "000007.jpg"
    with pytest.raises(UsageError, match="cannot be told as '06d'"):
        read({"t.csv": b"id\nseven\n"}, {"table": "t.csv"}, "{id:06d}.jpg")


def test_keys_that_come_twice_and_rows_without_an_object_are_told_with_their_lines() -> None:
    left_out = LeftOut()
    table = b"id,file\nx,1.jpg\ny,2.jpg\nx,1.jpg\nz,3.jpg\n"
    entries, _ = read({"t.csv": table, "1.jpg": b"1"}, {"table": "t.csv", "key": "id"}, left_out=left_out)
    assert [entry.key for entry in entries] == ["x", "x#1"]
    assert left_out.line() == (
        "line 4 has the key 'x' of line 2, and is called 'x#1'; left out: 2 rows of the table whose objects"
        " are not there (first: line 3: 2.jpg)"
    )


def test_a_voc_file_that_cannot_be_read_is_left_out_alone() -> None:
    bomb = b'<!DOCTYPE x [<!ENTITY a "aa">]><annotation>&a;</annotation>'
    objects = {**BOXED["voc"][0], "xml/2.xml": b"<annotation>", "xml/4.xml": bomb}
    left_out = LeftOut()
    pictures = {f"p/{at}.jpg": b"x" for at in (1, 2, 3)}
    entries, _ = read({**objects, **pictures}, {"table": "xml/*.xml"}, "p/{filename}", left_out)
    assert [entry.key for entry in entries] == ["p/1.jpg", "p/3.jpg"]
    assert "2 files of the table that cannot be read (first: xml/2.xml: " in left_out.line()


@pytest.mark.parametrize(
    ("name", "data", "options", "said"),
    [
        ("t.jsonl", b'{"file": "a"}\n[1]\n', {}, "t.jsonl: line 2 is no JSON object"),
        ("t.jsonl", b'{"file": "a"}\n{"fil', {}, "t.jsonl: line 2 is no JSON object"),
        ("t.jsonl", b"", {}, "has no rows"),
        ("t.json", b"{", {}, "cannot be read as JSON"),
        ("t.json", b"3", {}, "is no table"),
        ("t.json", b'{"images": [{}]}', {}, "is no COCO file: KeyError 'id'"),
        ("t.parquet", b"PAR1", {}, "cannot be read as Parquet"),
        ("t.txt", b"file\na\n", {}, "t.txt is no table"),
        ("t.csv", b"file\na\n", {"per": "box"}, "has several boxes a row"),
        ("t.jsonl", b'{"file": "a", "objects": [1]}\n', {}, "line 1: its objects are no list of things"),
        ("t.csv", b"file,age\na,3\n", {"label": "phase"}, "the table has no column 'phase' \\(label\\)"),
    ],
)
def test_a_table_that_makes_no_sense_is_one_clear_line(
    name: str, data: bytes, options: dict[str, str], said: str
) -> None:
    with pytest.raises(UsageError, match=said) as raised:
        read({name: data, "a": b"x"}, {"table": name, **options})
    assert raised.value.hint


def test_odd_values_are_kept_or_left_out_and_never_an_error() -> None:
    table = jsonl(
        [
            {"file": "a", "many": 1 << 70, "mixed": 1, "of": [1], "text": "\ud800"},
            {"file": "a", "many": 2, "mixed": "x", "of": None, "text": "é"},
        ]
    )
    left_out = LeftOut()
    entries, attributes = read({"t.jsonl": table, "a": b"x"}, {"table": "t.jsonl"}, left_out=left_out)
    assert attributes == [
        {"many": float(1 << 70), "mixed": "1", "text": "?"},
        {"many": 2.0, "mixed": "x", "text": "é"},
    ]
    assert left_out.line() == "left out: 1 column of lists (of)"
    assert len(entries) == 2
