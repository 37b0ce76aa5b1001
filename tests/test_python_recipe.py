"""The recipe `python`, by its contract, and what a function may do to nobody but its own sample."""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from functions import write_functions
from recipe_contract import Given, RecipeContract
from stager.errors import SourceError, UsageError
from stager.functions.children import CHILDREN, Children
from stager.functions.frames import frame_of, read_frame
from stager.functions.function import Function
from stager.recipes import check_recipe, is_code, keyed, open_recipe
from stager.recipes.python import PythonRecipe

FIELDS = {"values": {"dtype": "int32", "shape": [4]}, "more": {"dtype": "int64", "shape": []}}


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("functions")
    write_functions(folder)
    TestPythonRecipe.spec["folder"] = TestPythonRecipe.other["folder"] = str(folder)
    yield folder
    assert CHILDREN.making == 0


class TestPythonRecipe(RecipeContract):
    spec: ClassVar[dict[str, Any]] = {"kind": "python", "prepare": "simulator:picky", "fields": FIELDS}
    other: ClassVar[dict[str, Any]] = {**spec, "args": {"scale": 2}}

    def good(self) -> Mapping[str, Given]:
        array = np.arange(8, dtype=np.uint8)
        return {
            "bytes": ([memoryview(b"abcdef")], ()),
            "bytes and inputs": ([memoryview(b"abcd")], (1, "two", None)),
            "already opened": ([array], ()),
        }

    def bad(self) -> Mapping[str, Given]:
        return {"too short": ([memoryview(b"abc")], ()), "nothing": ([memoryview(b"")], ())}

    def test_one_array_need_be_no_dict(self, folder: Path) -> None:
        (folder / "lone.py").write_text("import numpy as np\ndef make(n): return np.arange(n)\n")
        spec = {"kind": "python", "prepare": "lone:make", "folder": str(folder)}
        recipe = open_recipe({**spec, "fields": {"n": {"dtype": "int64", "shape": [-1]}}})
        np.testing.assert_array_equal(recipe.prepare([], (3,))["n"], [0, 1, 2])

    @pytest.mark.parametrize(
        "keys",
        [
            {"prepare": "simulator"},
            {"prepare": "simulator:a b"},
            {"prepare": 3},
            {"fields": {}},
            {"fields": {"class": {"dtype": "int8", "shape": []}}},
            {"fields": {"x": {"dtype": "object", "shape": []}}},
            {"fields": {"x": {"dtype": "int8"}}},
            {"fields": {"x": {"dtype": "int8", "shape": [], "path": "{a}"}}},
            {"fields": {"x": "int8"}},
            {"args": 3},
            {"args": {"x": {1, 2}}},
            {"inputs": "age"},
            {"endings": ["wav"]},
            {"deadline_s": 0},
            {"memory_mb": 1.5},
        ],
    )
    def test_keys_that_make_no_sense_are_refused(self, keys: dict[str, Any]) -> None:
        with pytest.raises(UsageError) as raised:
            check_recipe({**self.spec, **keys})
        assert raised.value.hint

    def test_how_long_it_may_take_and_where_it_lies_are_not_in_the_digest(self) -> None:
        more = {"deadline_s": 1, "memory_mb": 500, "folder": "/elsewhere", "endings": [".x"], "path": "{a}"}
        assert open_recipe({**self.spec, **more}).digest == self.recipe().digest


def function(folder: Path, name: str, **keys: Any) -> Function:
    return Function(name, str(folder), **keys)


def test_a_recipe_is_keyed_by_its_code_and_a_child_of_other_code_makes_nothing(folder: Path) -> None:
    assert is_code(TestPythonRecipe.spec)
    assert not is_code({"kind": "image"})
    spec = keyed({**TestPythonRecipe.spec, "prepare": "simulator:sequence"})
    assert open_recipe(spec).digest == open_recipe(keyed(spec)).digest
    helper = folder / "simhelper.py"
    before = helper.read_text()
    try:
        helper.write_text(before.replace("\n\n\ndef", "\n\n\n# moved\ndef"))
        assert open_recipe(keyed(spec)).digest == open_recipe(spec).digest
        helper.write_text(before.replace("2.0", "3.0"))
        assert open_recipe(keyed(spec)).digest != open_recipe(spec).digest
        old = open_recipe(spec)
        assert isinstance(old, PythonRecipe)
        with pytest.raises(SourceError, match="the constant FACTOR of simhelper changed"):
            Children(1).make(old.function, [], (0, 0))
    finally:
        helper.write_text(before)


@pytest.mark.parametrize(
    ("name", "module", "told"),
    [
        ("nowhere:make", "", "No module named 'nowhere'"),
        ("m1:other", "def make(): pass", "has no attribute 'other'"),
        ("m2:make", "def make(): pass\n\nraise RuntimeError('no licence')", r"no licence \(m2.py, line 3\)"),
        ("m3:make", "import sys\nsys.exit(1)", "SystemExit: 1"),
        ("m4:make", "def make(:", "SyntaxError"),
        ("m5:make", "make = 3", "is no function"),
        ("m6:make", "import os\nos._exit(7)", r"exit code 7"),
        ("m7:make", "FILE = open(__file__)\ndef make(): return FILE.name", "the constant FILE of m7 is a"),
    ],
)
def test_a_function_that_cannot_be_had_is_one_clear_line(
    folder: Path, name: str, module: str, told: str
) -> None:
    if module:
        (folder / f"{name.split(':', maxsplit=1)[0]}.py").write_text(module)
    fields = {"x": {"dtype": "int8", "shape": []}}
    with pytest.raises(UsageError, match=told) as raised:
        keyed({"kind": "python", "prepare": name, "fields": fields, "folder": str(folder)})
    assert raised.value.hint
    assert raised.value.message.isprintable()


def test_a_function_that_cannot_be_had_is_not_imported_again_for_each_sample(folder: Path) -> None:
    (folder / "slow.py").write_text("import time\ntime.sleep(0.3)\nraise OSError('no disk')\n")
    children, began = Children(1), time.monotonic()
    for _ in range(20):
        with pytest.raises(SourceError, match="no disk"):
            children.make(function(folder, "slow:make"), [], ())
    assert time.monotonic() - began < 5


def test_frames_carry_arrays_of_any_kind_and_shape() -> None:
    arrays = [
        np.arange(6, dtype=">i2").reshape(2, 3).T,
        np.zeros((0, 3), np.complex64),
        np.asarray(True),
        np.float64(2.5),
    ]
    stream = b"".join(frame_of({"a": 1}, [memoryview(b"bytes"), *map(np.asarray, arrays)]))
    at = 0

    def read(into: memoryview) -> int:
        nonlocal at
        some = stream[at : at + min(7, len(into))]
        into[: len(some)] = some
        at += len(some)
        return len(some)

    told = read_frame(read)
    assert told is not None
    header, (first, *others) = told
    assert (header, bytes(memoryview(first))) == ({"a": 1}, b"bytes")
    for got, array in zip(others, arrays, strict=True):
        assert isinstance(got, np.ndarray)
        assert (got.dtype, got.shape) == (np.asarray(array).dtype, np.shape(array))
        np.testing.assert_array_equal(got, array)
    assert read_frame(read) is None
