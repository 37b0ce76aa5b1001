"""What every format of tables gives: columns of values, and where each row stands in it."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from stager.errors import UsageError
from stager.layouts.utf8 import in_utf8

OBJECTS: Final = "objects"  # the column with the things that a row has several of: a list of dicts
BOX: Final = "bbox"  # of such a thing: x, y, width and height
CORNERS: Final = ("xmin", "ymin", "xmax", "ymax")


@dataclass(frozen=True, slots=True)
class TableRows:
    """Rows of a table, column by column. None: a row has no value there."""

    columns: dict[str, list[Any]]
    lines: list[str]  # "line 17", as a person finds it
    is_written: bool = False  # all values are texts, and their types show from the whole column

    def __len__(self) -> int:
        return len(self.lines)


def rows_of(rows: Sequence[Mapping[str, Any]], where: Iterable[str]) -> TableRows:
    """Rows that have their values by name."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    return TableRows({in_utf8(name): [row.get(name) for row in rows] for name in names}, list(where))


def joined(tables: Sequence[TableRows]) -> TableRows:
    """The rows of several tables, one after the other."""
    if len(tables) == 1:
        return tables[0]
    names = list(dict.fromkeys(name for table in tables for name in table.columns))
    columns: dict[str, list[Any]] = {name: [] for name in names}
    for table in tables:
        missing = [None] * len(table)
        for name in names:
            columns[name] += table.columns.get(name, missing)
    where = [line for table in tables for line in table.lines]
    return TableRows(columns, where, all(table.is_written for table in tables))


def counted(rows: TableRows) -> TableRows:
    """The same, with the number of things in the place of a row's list of them."""
    if not any(isinstance(value, list | dict) for value in rows.columns.get(OBJECTS, ())):
        return rows
    counts = [len(_things(value, where)) for value, where in _listed(rows)]
    return TableRows({**rows.columns, OBJECTS: counts}, rows.lines)


def each_box(rows: TableRows) -> tuple[TableRows, list[int]]:
    """A row for each thing that a row has several of, with its values beside the row's; and whose it was."""
    if not any(isinstance(value, list | dict) for value in rows.columns.get(OBJECTS, ())):
        raise UsageError(
            f'per = "box" needs a table that has several boxes a row, in a column {OBJECTS!r}',
            hint='leave out per = "box" if each row has one box',
        )
    things = [_things(value, where) for value, where in _listed(rows)]
    owner = [at for at, of_one in enumerate(things) for _ in of_one]
    columns = {name: [values[at] for at in owner] for name, values in rows.columns.items() if name != OBJECTS}
    own = [_with_corners(thing) for of_one in things for thing in of_one]
    for name in dict.fromkeys(name for thing in own for name in thing):
        columns[f"box_{name}" if name in columns else name] = [thing.get(name) for thing in own]
    where = [
        f"{rows.lines[at]}, box {number}" for at, of_one in enumerate(things) for number in range(len(of_one))
    ]
    return TableRows(columns, where), owner


def _listed(rows: TableRows) -> Iterable[tuple[Any, str]]:
    return zip(rows.columns[OBJECTS], rows.lines, strict=True)


def _things(value: Any, where: str) -> list[dict[str, Any]]:
    """A list of dicts, or, as Hugging Face has it, a dict of equally long lists."""
    if value is None:
        return []
    if isinstance(value, dict) and all(isinstance(column, list) for column in value.values()):
        if len({len(column) for column in value.values()}) <= 1:
            return [dict(zip(value, row, strict=True)) for row in zip(*value.values(), strict=True)]
    elif isinstance(value, list) and all(isinstance(thing, dict) for thing in value):
        return value
    raise UsageError(
        f"{where}: its {OBJECTS} are no list of things",
        hint='as in [{"bbox": [x, y, width, height]}], or {"bbox": [[x, y, width, height]]}',
    )


def _with_corners(thing: dict[str, Any]) -> dict[str, Any]:
    """The thing with its corners in columns of their own. A box that is none has no corners."""
    if BOX not in thing:
        return thing
    box, others = thing[BOX], {name: value for name, value in thing.items() if name != BOX}
    corners: list[Any] = [None] * 4
    if isinstance(box, list) and len(box) == 4 and all(type(side) in (int, float) for side in box):
        x, y, width, height = box
        with suppress(OverflowError):  # of a whole number that no float is
            corners = [x, y, x + width, y + height]
    return others | dict(zip(CORNERS, corners, strict=True))
