"""A table whose rows move, and the objects that they share: every state of it is kept.

A row is a sample of two fields: a row of a .npy array (`patch`), and a box of an image (`photo`). Both say of
themselves what they are, as in `versions_kept`. Objects of one step have the same time and size: only their
names, and their bytes, tell them apart.
"""

import csv
import io
import os
import random
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from images import Pixels, encode
from versions_kept import FIRST_MTIME_NS, SIDE, image_of, said_by

FILES, PHOTOS, ROWS = 6, 5, 8  # ROWS of a file
WHO_MOST: Final = 90  # rows of the table, at most
BOX = 60  # pixels of a side: rows over 8 kB
EDGE: Final = 0, SIDE - BOX + 1  # where a box may begin: the middle is always in it
LABELS = ("p0", "p1", "p2")
COLUMNS = ("id", "file", "row", "picture", "x", "y", "x2", "y2", "phase", "who", "age", "note")
OF_PHOTOS = 10_000  # added to the number of an image's object
Row = dict[str, Any]

TABLE = """[datasets.rows]
source = "{root}"
layout = "table"
table = "rows.csv"
label = "phase"
key = "id"
at = "row"
[datasets.rows.recipe.patch]
kind = "array"
path = "{{file}}"
dtype = "uint8"
shape = [{side}, {side}, 3]
[datasets.rows.recipe.photo]
kind = "image"
path = "{{picture}}"
box = ["x", "y", "x2", "y2"]
resize = [{box}, {box}]
"""


def file_of(number: int) -> str:
    return f"arrays/{number}.npy"


def photo_of(number: int) -> str:
    return f"photos/{number}.png"


def patches_of(number: int, content: int) -> npt.NDArray[np.uint8]:
    """The array of a file: each of its rows says which file, row and content it is."""
    return np.stack([image_of(number * ROWS + row, content) for row in range(ROWS)])


class RowsSource:
    """The table and its objects."""

    def __init__(self, root: Path, draw: random.Random) -> None:
        self.root, self.draw, self.step = root, draw, 0
        self.contents: dict[str, int] = {}  # of each object
        self.rows: dict[int, Row] = {}
        root.mkdir(parents=True)
        for name in [*map(file_of, range(FILES)), *map(photo_of, range(PHOTOS))]:
            self._put(name)
        for who in range(60):
            self._add(who)
        self._write()

    def config(self) -> str:
        return TABLE.format(root=self.root, side=SIDE, box=BOX)

    def change(self) -> None:
        """Some rows and objects are others from now on; the table is replaced whole."""
        self.step += 1
        for _ in range(self.draw.randrange(1, 6)):
            self.draw.choice(
                (self._move, self._swap, self._note, self._age, self._label, self._box, self._photo,
                 self._come, self._go, self._content)
            )()  # fmt: skip
        self._write()

    def _put(self, name: str) -> None:
        content = self.contents[name] = self.contents.get(name, 0) + 1
        number = int(Path(name).stem)
        file = io.BytesIO()
        if name.endswith(".npy"):
            np.save(file, patches_of(number, content), allow_pickle=False)
        path, scratch = self.root / name, self.root / "scratch.part"
        path.parent.mkdir(exist_ok=True)
        png = encode(image_of(OF_PHOTOS + number, content), "PNG", compress_level=0)  # all of one size
        scratch.write_bytes(file.getvalue() or png)
        mtime_ns = FIRST_MTIME_NS + self.step
        os.utime(scratch, ns=(mtime_ns, mtime_ns))
        scratch.rename(path)

    def _add(self, who: int) -> None:
        self.rows[who] = {
            "id": f"row-{who:03d}",
            "who": who,
            "phase": LABELS[who % 3],
            "note": "new",
            "age": 1.5,
        }
        self._place(self.rows[who])
        self._frame(self.rows[who])

    def _place(self, row: Row) -> None:
        row |= {"file": file_of(self.draw.randrange(FILES)), "row": self.draw.randrange(ROWS)}
        row["picture"] = photo_of(self.draw.randrange(PHOTOS))

    def _frame(self, row: Row) -> None:
        x, y = self.draw.randrange(*EDGE), self.draw.randrange(*EDGE)
        row |= {"x": x, "y": y, "x2": x + BOX, "y2": y + BOX}

    def _any(self) -> Row:
        return self.rows[self.draw.choice(list(self.rows))]

    def _move(self) -> None:
        self._place(self._any())

    def _swap(self) -> None:
        one, other = self._any(), self._any()
        for name in ("file", "row"):
            one[name], other[name] = other[name], one[name]

    def _note(self) -> None:
        self._any()["note"] = f"step {self.step}"

    def _age(self) -> None:
        self._any()["age"] = self.step + 0.25

    def _label(self) -> None:
        row = self._any()
        row["phase"] = self.draw.choice(LABELS) if row["who"] > 2 else row["phase"]  # none is ever empty

    def _box(self) -> None:
        self._frame(self._any())

    def _photo(self) -> None:
        self._any()["picture"] = photo_of(self.draw.randrange(PHOTOS))

    def _come(self) -> None:
        free = [who for who in range(WHO_MOST) if who not in self.rows]
        if free:
            self._add(self.draw.choice(free))

    def _go(self) -> None:
        who = self.draw.choice(list(self.rows))
        if who > 2:
            del self.rows[who]

    def _content(self) -> None:
        self._put(self.draw.choice(list(self.contents)))

    def _write(self) -> None:
        file = io.StringIO()
        table = csv.DictWriter(file, COLUMNS)
        table.writeheader()
        rows = list(self.rows.values())
        self.draw.shuffle(rows)  # also their places
        table.writerows(rows)
        scratch = self.root / "scratch.part"
        scratch.write_text(file.getvalue())
        scratch.rename(self.root / "rows.csv")

    def state(self) -> dict[str, Row]:
        return {str(who): dict(row) for who, row in self.rows.items()}


def what_is_wrong(
    sample: Row, label: str, row: Row, contents: dict[str, list[int]]
) -> tuple[str, dict[str, int]]:
    """Why a sample is not this row of a table; and which content of each object it shows."""
    said = {**{name: sample[name] for name in ("x", "y", "x2", "y2", "age", "note", "who")}, "phase": label}
    for name, value in said.items():
        if value != row[name]:
            return f"{name} is {value!r}, the table says {row[name]!r}", {}
    box = row["x"], row["y"], row["x2"], row["y2"]
    number, photo = int(Path(row["file"]).stem) * ROWS + row["row"], int(Path(row["picture"]).stem)
    patch_said, photo_said = said_by(sample["patch"]), said_in_box(sample["photo"], row)
    wrong = _wrong_pixels(sample["patch"], patch_said, number, (0, 0, SIDE, SIDE), contents.get(row["file"]))
    wrong = wrong or _wrong_pixels(
        sample["photo"], photo_said, OF_PHOTOS + photo, box, contents.get(row["picture"])
    )
    if wrong or patch_said is None or photo_said is None:
        return f"{row['file']} row {row['row']}, {row['picture']}: {wrong}", {}
    return "", {row["file"]: patch_said[1], row["picture"]: photo_said[1]}


def _wrong_pixels(
    pixels: Pixels,
    said: tuple[int, int] | None,
    number: int,
    box: tuple[int, int, int, int],
    contents: list[int] | None,
) -> str:
    if said is None:
        return f"it says nothing of itself; {np.mean(pixels == 0):.0%} are zeros"
    if said[0] != number:
        return f"it is {said[0]}, the table says {number}"
    x, y, x2, y2 = box
    if not np.array_equal(pixels, image_of(*said)[y:y2, x:x2]):
        return f"content {said[1]}, but other bytes"
    return "" if said[1] in (contents or []) else f"content {said[1]}; the version has {contents}"


def said_in_box(photo: Pixels, row: Row) -> tuple[int, int] | None:
    """What an image says of itself in the middle, which is elsewhere in a box of it."""
    y, x = SIDE // 2 - row["y"], SIDE // 2 - row["x"]
    whole = np.zeros((SIDE, SIDE, 3), np.uint8)
    whole[SIDE // 2, SIDE // 2 : SIDE // 2 + 4] = photo[y, x : x + 4]
    return said_by(whole)
