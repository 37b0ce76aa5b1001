"""The recipe `array`, several fields, and the layout `table`, by their contracts."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from images import encode, natural
from layout_contract import LayoutContract, listed
from making import folder_layout
from recipe_contract import Given, RecipeContract
from stager.errors import SampleError, UsageError
from stager.interfaces import Layout, LeftOut
from stager.layouts import check_layout, open_layout, open_opener
from stager.npy import parse_array
from stager.reader.samples.manifest import Manifest
from stager.recipes import check_recipe, open_recipe

ARRAY = {"kind": "array", "dtype": "float32", "shape": [-1, 3]}
TABLE = """file_name,phase,fold,age,good,note
a/1.npy,early,0,30,true,first
a/2.npy,late,1,,false,"second, with a comma"
b/3.npy,early,2,41.5,true,
"""


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


def of(array: Any) -> Given:
    return [memoryview(npy(array))], ()


class TestArrayRecipe(RecipeContract):
    spec = ARRAY
    other = {**ARRAY, "dtype": "float64"}

    def good(self) -> Mapping[str, Given]:
        values = np.arange(12, dtype="<f4").reshape(4, 3)
        return {
            "plain": of(values),
            "big-endian": of(values.astype(">f4")),
            "column by column": of(np.asfortranarray(values)),
            "empty": of(values[:0]),
            "already opened": ([values[1:]], ()),
        }

    def bad(self) -> Mapping[str, Given]:
        values = np.zeros((4, 3), "<f4")
        whole = npy(values)
        return {
            "another dtype": of(values.astype("f8")),
            "another shape": of(values[:, :2]),
            "another number of sides": of(values[0]),
            "cut short": ([memoryview(whole[:-5])], ()),
            "a text": ([memoryview(b"no array")], ()),
            "nothing": ([memoryview(b"")], ()),
            "objects, which would be code": ([memoryview(whole.replace(b"'<f4'", b"'|O' "))], ()),
        }

    def test_values_are_those_of_the_file_bit_by_bit(self) -> None:
        values = np.random.default_rng(1).standard_normal((50, 3)).astype(">f4")
        (made,) = self.recipe().prepare(*of(values)).values()
        np.testing.assert_array_equal(made, values)

    @pytest.mark.parametrize(
        "keys",
        [
            {"dtype": "object"},
            {"dtype": "nope"},
            {"shape": "3"},
            {"shape": [-2]},
            {"batch": "x"},
            {"axes": "HW3"},
        ],
    )
    def test_keys_that_make_no_sense_are_refused(self, keys: dict[str, Any]) -> None:
        with pytest.raises(UsageError) as raised:
            check_recipe({**ARRAY, **keys})
        assert raised.value.hint

    def test_how_samples_are_handed_out_is_not_in_the_digest(self) -> None:
        assert open_recipe({**ARRAY, "batch": "pad", "path": "{x}"}).digest == self.recipe().digest


class TestSeveralFields(RecipeContract):
    spec = {
        "picture": {"kind": "image", "crop": 32, "path": "images/{name}.png"},
        "mask": {"kind": "array", "dtype": "uint8", "shape": [4, 4], "path": "masks/{name}.npy"},
    }
    other = {**spec, "picture": {"kind": "image", "crop": 48, "path": "images/{name}.png"}}

    def good(self) -> Mapping[str, Given]:
        picture = memoryview(encode(natural(40, 50), "PNG"))
        return {"both": ([memoryview(npy(np.full((4, 4), 7, np.uint8))), picture], ())}

    def bad(self) -> Mapping[str, Given]:
        (mask, picture), _ = self.good()["both"]
        return {"one of them": ([memoryview(b""), picture], ()), "the other": ([mask, mask], ())}

    def test_each_field_has_its_path_in_the_order_of_their_names(self) -> None:
        assert self.recipe().needs(["name"]).paths == ("masks/{name}.npy", "images/{name}.png")

    def test_the_order_in_which_fields_are_written_makes_no_other_recipe(self) -> None:
        turned = {name: self.spec[name] for name in reversed(self.spec)}
        assert open_recipe(turned).digest == self.recipe().digest

    @pytest.mark.parametrize("name", ["key", "class", "two words", "1st"])
    def test_names_that_mean_something_else_are_refused(self, name: str) -> None:
        with pytest.raises(UsageError, match="cannot be called"):
            open_recipe({name: ARRAY, "b": ARRAY})


class TestImageRecipe(RecipeContract):
    spec = {"kind": "image", "resize": 64, "crop": 56}
    other = {"kind": "image", "resize": 64, "crop": 48}

    def good(self) -> Mapping[str, Given]:
        kinds = ("JPEG", "PNG", "BMP")
        return {kind: ([memoryview(encode(natural(90, 120), kind))], ()) for kind in kinds}

    def bad(self) -> Mapping[str, Given]:
        jpeg = encode(natural(90, 120), "JPEG")
        cases = {"text": b"no image", "nothing": b"", "cut short": jpeg[: len(jpeg) // 2]}
        return {name: ([memoryview(data)], ()) for name, data in cases.items()}


class TestFolderLayout(LayoutContract):
    objects = {f"{name}/{at}.png": b"x" * at for name in ("cat", "dog") for at in range(1, 4)}

    def make(self) -> Layout:
        return folder_layout()

    def changed(self) -> str:
        return "dog/2.png"


class TestTableLayout(LayoutContract):
    """One object a row, with attributes of every type and missing values."""

    objects = {"rows.csv": TABLE.encode(), "a/1.npy": b"1", "a/2.npy": b"22", "b/3.npy": b"333", "x": b""}
    options = {"table": "rows.csv", "label": "phase"}
    recipe: Mapping[str, Any] = ARRAY

    def make(self) -> Layout:
        self.left_out = LeftOut()
        options = check_layout("table", self.options)
        return open_layout("table", options, open_recipe(self.recipe), self.left_out)

    def changed(self) -> str:
        return "a/2.npy"

    def test_columns_have_the_types_of_their_values(self) -> None:
        layout = self.make()
        list(layout.entries(listed(self.objects)))
        assert [tuple(attribute) for attribute in layout.attributes] == [
            ("phase", "string"),  # the label is an attribute, too
            ("fold", "int64"),
            ("age", "float64"),
            ("good", "bool"),
            ("note", "string"),
        ]

    def test_samples_are_labelled_by_their_column(self, tmp_path: Path) -> None:
        manifest = self.scanned(tmp_path / "m")
        assert manifest.classes == ("early", "late")
        assert [manifest.classes[label] for label in manifest.labels] == ["early", "early", "late"]
        assert manifest.attribute("age", np.arange(3)).to_pylist() == [30.0, 41.5, None]


class TestTableOfSeveralObjects(TestTableLayout):
    """Two objects a row; one of them is shared by two rows."""

    objects = {
        "rows.csv": b"id,left,right,label\nr1,1,a,x\nr2,2,a,y\nr3,3,b,x\n",
        **{f"l/{at}.npy": b"l" * at for at in (1, 2, 3)},
        **{f"r/{name}.npy": b"r" for name in "ab"},
    }
    options = {"table": "rows.csv", "label": "label", "key": "id"}
    recipe = {
        "left": {**ARRAY, "path": "l/{left}.npy"},
        "right": {**ARRAY, "path": "r/{right}.npy"},
    }

    def changed(self) -> str:
        return "r/a.npy"

    def test_columns_have_the_types_of_their_values(self) -> None:
        layout = self.make()
        assert [entry.key for entry in layout.entries(listed(self.objects))] == ["r1", "r2", "r3"]
        assert [attribute.name for attribute in layout.attributes] == ["left", "right"]

    def test_samples_are_labelled_by_their_column(self, tmp_path: Path) -> None:
        assert self.scanned(tmp_path / "m").classes == ("x", "y")


class TestTableOfRowsInOneArray(TestTableLayout):
    """Several samples an object: each is at a place inside of it."""

    objects = {
        "rows.csv": b"file,row,kind\nall.npy,0,x\nall.npy,1,y\nall.npy,2,x\nmore.npy,0,y\n",
        "all.npy": npy(np.arange(18, dtype="<f4").reshape(3, 2, 3)),
        "more.npy": npy(np.zeros((1, 2, 3), "<f4")),
    }
    options = {"table": "rows.csv", "label": "kind", "at": "row"}

    def changed(self) -> str:
        return "more.npy"

    def test_columns_have_the_types_of_their_values(self) -> None:
        entries = self.entries()
        assert [(entry.key, entry.at) for entry in entries] == [
            ("all.npy", 0),
            ("all.npy#1", 1),
            ("all.npy#2", 2),
            ("more.npy", 0),
        ]

    def test_samples_are_labelled_by_their_column(self, tmp_path: Path) -> None:
        assert self.scanned(tmp_path / "m").classes == ("x", "y")

    def test_a_row_is_taken_from_an_array_that_is_opened_once(self) -> None:
        opener = open_opener("table", check_layout("table", self.options))
        assert opener is not None
        opened = opener.open(0, memoryview(self.objects["all.npy"]))
        (row,) = opener.take([opened], 1)
        np.testing.assert_array_equal(np.asarray(row), np.arange(6, 12).reshape(2, 3))
        for at in (3, -1, "x", 1.5, None):
            with pytest.raises(SampleError):
                opener.take([opened], at)
        with pytest.raises(SampleError):
            opener.open(0, memoryview(b"no array"))


def table_of(text: str, **options: str) -> Layout:
    checked = check_layout("table", {"table": "t.csv", **options})
    layout = open_layout("table", checked, open_recipe(ARRAY), LeftOut())
    list(layout.entries(listed({"t.csv": text.encode(), "a.npy": b"1"})))
    return layout


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("file\na.npy\n", {"label": "fase"}, "no column 'fase'"),
        ("file,file\na.npy,b\n", {}, "two columns have one name"),
        ("file,x\na.npy\n", {}, "line 2"),
        ("file\na.npy,1\n", {}, "line 2"),
        ("other\na.npy\n", {}, "which column"),
        ('file\n"a.npy\n', {}, "cannot be read as CSV"),
    ],
)
def test_a_table_that_makes_no_sense_is_told_with_a_hint(
    text: str, options: dict[str, str], said: str
) -> None:
    with pytest.raises(UsageError, match=said) as raised:
        table_of(text, **options)
    assert raised.value.hint


def test_a_table_that_is_not_there_is_told() -> None:
    layout = open_layout("table", check_layout("table", {"table": "t.csv"}), open_recipe(ARRAY), LeftOut())
    with pytest.raises(UsageError, match="no table") as raised:
        list(layout.entries(listed({"u.csv": b""})))
    assert "u.csv" in raised.value.hint


def test_rows_whose_object_or_label_is_missing_are_left_out_with_a_count() -> None:
    left_out = LeftOut()
    options = check_layout("table", {"table": "t.csv", "label": "kind"})
    layout = open_layout("table", options, open_recipe(ARRAY), left_out)
    text = b"file,kind,size\na.npy,x,1\nb.npy,x,2\na.npy,,3\n"
    entries = list(layout.entries(listed({"t.csv": text, "a.npy": b"1"})))
    assert [entry.key for entry in entries] == ["a.npy"]
    assert "1 row of the table whose object is not there" in left_out.line()
    assert "1 row of the table without a label" in left_out.line()
    assert "1 column that has the name of something else" in left_out.line()


def test_manifests_without_parts_and_attributes_are_what_they_were(tmp_path: Path) -> None:
    """Their digest too: what is staged by the version before stays."""
    contract = TestFolderLayout()
    manifest: Manifest = contract.scanned(tmp_path / "m")
    assert manifest.records.is_plain
    assert manifest.attributes == ()
    assert manifest.digest == "a326d9947c765a1283e517d0246c2a1d"


def test_a_name_that_comes_again_takes_no_name_that_there_is() -> None:
    options = check_layout("table", {"table": "t.csv"})
    layout = open_layout("table", options, open_recipe(ARRAY), LeftOut())
    objects = {"t.csv": b"file\na.npy\na.npy#1\na.npy\n", "a.npy": b"1", "a.npy#1": b"2"}
    keys = [entry.key for entry in layout.entries(listed(objects))]
    assert keys == ["a.npy", "a.npy#1", "a.npy#2"]


def npz(compressed: bool = False, **arrays: Any) -> memoryview:
    file = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(file, **arrays)
    return memoryview(file.getvalue())


class TestNpz(RecipeContract):
    spec: Mapping[str, Any] = {"kind": "array", "dtype": "float32", "shape": [-1, 2], "member": "pose"}
    other: Mapping[str, Any] = {**spec, "member": "mask"}

    def good(self) -> Mapping[str, Given]:
        pose, mask = np.arange(6, dtype="f4").reshape(3, 2), np.zeros(2, "u1")
        return {
            "stored": ([npz(pose=pose, mask=mask)], ()),
            "deflated": ([npz(compressed=True, pose=pose, mask=mask)], ()),
        }

    def bad(self) -> Mapping[str, Given]:
        pose = np.arange(6, dtype="f4").reshape(3, 2)
        whole = npz(pose=pose)
        return {
            "another-member": ([npz(mask=pose)], ()),
            "cut": ([whole[:-30]], ()),
            "objects": ([npz(pose=np.asarray([{}], object))], ()),
            "no-member": ([npz()], ()),
        }


def test_an_npz_of_one_array_needs_no_name_and_of_several_it_does() -> None:
    array = np.ones(3, "i2")
    np.testing.assert_array_equal(parse_array(npz(a=array)), array)
    with pytest.raises(SampleError, match="but a, b"):
        parse_array(npz(a=array, b=array))
