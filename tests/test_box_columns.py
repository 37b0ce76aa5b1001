"""The columns of a table whose boxes are not all good: what is wrong with one row concerns no other."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from images import natural
from running import Place
from stager_client.numpy import StagedArrays
from stager_client.torch import StagedDataset, StagedLoader

CORNERS = ("xmin", "ymin", "xmax", "ymax")
GOOD = 12
CONFIG = """
[datasets.{name}]
source = "{folder}"
layout = "table"
table = "{table}"
label = "grade"
key = "id"
[datasets.{name}.recipe.photo]
path = "{{patient}}/{{photo}}"
box = ["xmin", "ymin", "xmax", "ymax"]
resize = [16, 20]
[datasets.{name}.recipe.mask]
path = "{{patient}}/{{photo}}"
box = ["xmin", "ymin", "xmax", "ymax"]
resize = [16, 20]
channels = 1
filter = "nearest"
"""
BAD: dict[str, tuple[tuple[str, str, str, str], str]] = {
    "text": (("left", "1", "20", "20"), "the box (left, 1, 20, 20) is not four numbers"),
    "infinite": (("1", "1", "inf", "20"), "the box (1, 1, inf, 20) is not four numbers"),
    "nothing": (("1", "", "20", "20"), "the box (1, nothing, 20, 20) is not four numbers"),
    "nan": (("1", "2", "nan", "20"), "the box (1, 2, nan, 20) is not four numbers"),
    "swapped": (("20", "1", "10", "20"), "ends before it begins"),
    "outside": (("70", "1", "90", "20"), "is outside of the image, 64x48"),
}


def rows() -> list[dict[str, Any]]:
    good = [
        {"id": f"s{at}", "patient": f"p{at % 3}", "photo": f"{at}.png", "grade": 9 + at % 3, "fold": at % 2}
        | dict(zip(CORNERS, (at, at + 1, at + 20, at + 21), strict=True))
        for at in range(GOOD)
    ]
    bad = [
        {**good[at], "id": name, **dict(zip(CORNERS, box, strict=True))}
        for at, (name, (box, _)) in enumerate(BAD.items())
    ]
    return [*good[:6], *bad, *good[6:]]


def write_csv(path: Path, table: list[dict[str, Any]]) -> None:
    lines = [",".join(table[0]), *(",".join(map(str, row.values())) for row in table)]
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    root = tmp_path_factory.mktemp("columns")
    folder = root / "source"
    for at in range(GOOD):
        (folder / f"p{at % 3}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(natural(64, 48, seed=at)).save(folder / f"p{at % 3}/{at}.png")
    write_csv(folder / "rows.csv", rows())
    lines = [json.dumps(row) for row in rows()]  # numbers, and among them texts
    (folder / "rows.jsonl").write_text("\n".join(lines) + "\n")
    write_csv(folder / "moving.csv", [row for row in rows() if row["id"] not in BAD])
    tables = {"written": "rows.csv", "typed": "rows.jsonl", "moving": "moving.csv"}
    texts = [CONFIG.format(name=name, folder=folder, table=table) for name, table in tables.items()]
    with pytest.MonkeyPatch.context() as patch:
        place = Place(root).configure("".join(texts))
        patch.setenv("STAGER_CONFIG", str(place.config))
        yield place


@pytest.mark.parametrize("name", ["written", "typed"])
def test_a_box_that_is_no_box_fails_alone_whatever_stands_in_its_columns(place: Place, name: str) -> None:
    told = place.json("prefetch", name, code=3)
    assert (told["staged"], told["failed"]) == (GOOD, len(BAD))
    failed = {row["key"]: row for row in place.json("ls", "--failed", name)}
    for line, (key, (_, said)) in enumerate(BAD.items(), 8 if name == "written" else 7):
        assert failed[key]["reason"] == "bad_row"
        assert failed[key]["detail"].startswith(f"line {line}: the box (")
        assert said in failed[key]["detail"]
    arrays = StagedArrays(name, 4, shuffle=True, skip_failed=True)
    seen = 0
    for values, _ in arrays:  # all columns, also those in which some rows have no number
        for at, photo in enumerate(values["photo"]):
            left, top, right, bottom = (float(values[corner][at]) for corner in CORNERS)
            with Image.open(place.root / f"source/p{int(left) % 3}/{int(left)}.png") as image:
                part = image.crop((left, top, right, bottom)).resize((20, 16), Image.Resampling.BILINEAR)
            np.testing.assert_array_equal(photo, np.asarray(part))
            seen += 1
    assert seen == GOOD


def test_the_label_and_the_columns_of_paths_are_attributes_with_their_types(place: Place) -> None:
    place.json("prefetch", "moving")
    data = StagedDataset("moving", where="grade >= 10 and patient != 'p1' and photo != '2.png'")
    assert {data.classes[label] for label in data.targets} == {"11"}
    assert sorted(data.samples.key(at) for at in range(len(data))) == ["s11", "s5", "s8"]
    told = place.json("prefetch", "moving", "--where", "grade = 9 and fold = 0")
    assert (told["already"], told["staged"]) == (2, 0)
    for values, labels in StagedLoader(StagedDataset("moving"), 5, shuffle=True):
        assert set(values) == {"photo", "mask", "patient", "grade", "fold", *CORNERS}
        assert values["photo"].shape[1:] == (3, 16, 20), "a field goes before a column of its name"
        assert values["grade"].tolist() == [int(["10", "11", "9"][label]) for label in labels.tolist()]
        assert values["patient"] == [f"p{int(left) % 3}" for left in values["xmin"]]


def test_a_box_that_moved_by_half_a_pixel_restages_one_sample(place: Place) -> None:
    place.json("prefetch", "moving")
    table = place.root / "source/moving.csv"
    table.write_text(table.read_text().replace("\ns4,p1,4.png,10,0,4,", "\ns4,p1,4.png,10,0,4.5,"))
    told = place.json("prefetch", "moving")
    assert (told["staged"], told["already"]) == (1, GOOD - 1)
