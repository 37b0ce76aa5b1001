"""A source with tables: a CSV of pairs of arrays, and one whose samples are rows of two arrays."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from running import Place

COUNT = 24
CONFIG = """
[datasets.scans]
source = "{root}"
layout = "table"
table = "rows.csv"
label = "phase"
[datasets.scans.recipe.right]
kind = "array"
path = "right/{{pair}}.npy"
dtype = "uint16"
shape = [-1, 2]
batch = "ragged"
[datasets.scans.recipe.left]
kind = "array"
path = "left/{{name}}.npy"
dtype = "float32"
shape = [4, 6]

[datasets.rows]
source = "{root}"
layout = "table"
table = "packed.csv"
label = "phase"
at = "row"
[datasets.rows.recipe]
kind = "array"
dtype = "int32"
shape = [5]

[datasets.both]
source = "{root}"
layout = "table"
table = "packed.csv"
label = "phase"
at = "row"
[datasets.both.recipe.a_row]
kind = "array"
path = "{{file}}"
dtype = "int32"
shape = [5]
[datasets.both.recipe.b_whole]
kind = "array"
path = "left/{{row}}.npy"
dtype = "float32"
shape = [4, 6]
"""


def left(at: int) -> npt.NDArray[np.float32]:
    return np.arange(24, dtype=np.float32).reshape(4, 6) + 100 * at


def right(pair: int) -> npt.NDArray[np.uint16]:
    return np.arange(2 * (pair + 1), dtype=np.uint16).reshape(-1, 2) + 10 * pair


def save(path: Path, array: npt.NDArray[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    path.write_bytes(file.getvalue())


def write_table(root: Path, moved: int | None = None) -> None:
    """A row each: a name, one of eight pairs, a phase, a fold, a note. `moved`: that row has another pair."""
    rows = [
        f"{at},{(at + (at == moved)) % 8},{'early' if at % 3 else 'late'},{at % 4}," for at in range(COUNT)
    ]
    (root / "rows.csv").write_text("name,pair,phase,fold,note\n" + "\n".join(rows) + "\n")


def tables_at(root: Path) -> Place:
    """A place whose config has both data sets, `scans` and `rows`."""
    source = root / "source"
    for at in range(COUNT):
        save(source / "left" / f"{at}.npy", left(at))
    for pair in range(8):
        save(source / "right" / f"{pair}.npy", right(pair))
    for number in range(2):
        save(source / f"pack{number}.npy", np.arange(60, dtype=np.int32).reshape(12, 5) + 1000 * number)
    packed = [f"pack{at // 12}.npy,{at % 12},p{at % 2}" for at in range(24)]
    (source / "packed.csv").write_text("file,row,phase\n" + "\n".join(packed) + "\n")
    write_table(source)
    return Place(root).configure(CONFIG.format(root=source))
