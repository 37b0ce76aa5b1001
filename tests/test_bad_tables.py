"""Tables with something wrong, end to end: one line each, the exit code, and the rest is staged."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from running import Place
from stager_client.numpy import StagedArrays
from tables import COUNT, tables_at

Edit = Callable[[str], str]
KEYED = """
[datasets.keyed]
source = "{root}"
layout = "table"
table = "rows.csv"
key = "name"
[datasets.keyed.recipe]
kind = "array"
path = "left/{{name}}.npy"
dtype = "float32"
shape = [4, 6]
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    place = tables_at(tmp_path_factory.mktemp("tables"))
    place.config.write_text(place.config.read_text() + KEYED.format(root=place.root / "source"))
    with place.service():
        yield place


@pytest.fixture
def place(whole: Place) -> Iterator[Place]:
    """With the table as it was at first."""
    table = whole.root / "source/rows.csv"
    before = table.read_text()
    yield whole
    table.write_text(before)


def edit(place: Place, change: Edit) -> None:
    table = Path(place.root) / "source/rows.csv"
    table.write_text(change(table.read_text()))


def test_a_row_without_its_object_is_told_with_its_line_and_the_rest_is_staged(place: Place) -> None:
    edit(place, lambda text: text.replace("\n7,7,", "\nseven,7,"))
    done = place.run("prefetch", "scans")
    assert done.returncode == 3
    said = "left out: 1 row of the table whose object is not there (line 9: left/seven.npy)"
    assert done.stderr.count(said) == 1
    told = place.json("prefetch", "scans", code=3)
    assert (told["already"], told["failed"], told["left_out"]) == (COUNT - 1, 0, said)
    assert len(StagedArrays("scans", 4, service=str(place.socket))) == 6
    edit(place, lambda text: text.replace("\nseven,", "\n7,"))
    told = place.json("prefetch", "scans")
    assert (told["staged"], told["left_out"]) == (1, "")


def test_two_rows_of_one_key_are_told_and_both_are_staged(place: Place) -> None:
    edit(place, lambda text: f"{text}3,3,early,0,again\n")
    done = place.run("prefetch", "keyed")
    assert done.returncode == 0
    assert done.stderr.count("line 26 has the key '3' of line 5, and is called '3#1'") == 1
    assert place.json("prefetch", "keyed")["already"] == COUNT + 1
    assert place.json("why", "keyed", "3#1")["why"]


@pytest.mark.parametrize(
    ("change", "said", "tried"),
    [
        (lambda text: text.replace("phase", "fase", 1), "no column 'phase' (label)", "did you mean 'fase'?"),
        (lambda text: text.replace("pair", "pear", 1), "'right/{pair}.npy' names no column", "'pear'"),
        (lambda text: text.replace("7,7,early", "7,7,early,x,"), "line 9 does not have 5 values", "commas"),
        (lambda text: text.replace("fold,note", "fold,fold"), "two columns have one name", "first line"),
    ],
)
def test_a_table_whose_columns_are_wrong_is_one_line_and_usage(
    place: Place, change: Edit, said: str, tried: str
) -> None:
    edit(place, change)
    done = place.run("prefetch", "scans")
    assert done.returncode == 2
    first, second = done.stderr.strip().splitlines()
    assert said in first
    assert tried in second
