"""A table of samples: a row each, with the keys of its objects, its label and its attributes."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal

import numpy.typing as npt

from stager.errors import SampleError, UsageError, nearest
from stager.interfaces import Data, Entry, Folders, LeftOut, Listing, Needs, Opener
from stager.layouts.kind import LayoutKind
from stager.layouts.table.finding import FoundTable, find_table
from stager.layouts.table.guessing import guesses, path_of
from stager.layouts.table.rows import counted, each_box
from stager.layouts.table.template import Template
from stager.layouts.table.types import Column, as_numbers, column_of
from stager.npy import parse_npy
from stager.reader.samples.predicate import COLUMNS
from stager.reader.values import Attribute, ObjectInfo, Part

OPTIONS: Final = {"table": "", "label": "", "split": "", "key": "", "at": "", "per": ""}
PER: Final = ("", "box")
NAMING: Final = ("label", "split", "key", "at")  # options that name a column


class TableLayout:
    """`table` is the key of a table of the source, or a file of this machine; without it, metadata.* is.

    The recipe says which objects a row has. `label`, `split` and `key` name columns; without `key`, a
    sample's key is that of its first object. `at` names the column with the place inside of that object, if
    objects have several samples. With per = "box", a row with several boxes is a sample each. All columns are
    attributes, but those that are a key or a place.
    """

    is_computed: Literal[False] = False
    is_plain = False

    def __init__(
        self, options: Mapping[str, Any], needs: Callable[[Sequence[str]], Needs], left_out: LeftOut
    ) -> None:
        self._options, self._needs_of, self._left_out = options, needs, left_out
        self.attributes: tuple[Attribute, ...] = ()

    def entries(self, listing: Listing) -> Iterator[Entry]:
        table = self._per(find_table(self._options["table"], listing, self._left_out))
        columns = self._columns(table)
        needs = self._needs_of(list(columns))
        self._check_columns(columns, needs)
        kept = {name: columns[name] for name in self._attribute_names(columns, needs)}
        for given in needs.inputs:
            if given.is_number and given.column in kept:
                kept[given.column] = as_numbers(columns[given.column])
        self.attributes = tuple(Attribute(name, column.type) for name, column in kept.items())
        paths = [Template(path) for path in needs.paths]
        wanted = [
            [folder + path.key(columns, row) for path in paths] for row, folder in enumerate(table.folders)
        ]
        found = _find(table.objects, listing, {key for keys in wanted for key in keys})
        if not found and paths:
            self._tell_path(columns, table.objects or {info.key for info in listing.objects()})
        named, labels, splits = (self._texts(columns, option) for option in ("key", "label", "split"))
        at, names = self._options["at"], _Names(self._left_out)
        for row, (keys, where) in enumerate(zip(wanted, table.rows.lines, strict=True)):
            missing = next((key for key in keys if key not in found), None)
            if labels and not labels[row]:
                self._left_out.count("no_label", example=where)
            elif missing is not None:
                self._left_out.count("no_object", example=f"{where}: {missing}")
            else:
                yield Entry(
                    names.of(named[row], where) if named else names.unlike(keys[0]),
                    tuple(Part(found[key]) for key in keys),
                    (splits[row] if splits else table.splits[row], labels[row] if labels else ""),
                    tuple(column.values[row] for column in kept.values()),
                    columns[at].values[row] if at else None,
                    tuple(given.of(columns[given.column].values[row]) for given in needs.inputs),
                    where,
                )
        names.tell()

    def label(self, paths: Iterable[Folders]) -> dict[Folders, tuple[str, str]]:
        return {path: (path[0], path[1]) for path in paths}

    def _per(self, found: FoundTable) -> FoundTable:
        """As it is, or a row a box."""
        if self._options.get("per") != "box":  # a cache of a build before has no such option
            return replace(found, rows=counted(found.rows))
        rows, owner = each_box(found.rows)
        folders, splits = ([of_one[at] for at in owner] for of_one in (found.folders, found.splits))
        return FoundTable(rows, folders, splits, found.objects)

    def _columns(self, table: FoundTable) -> dict[str, Column]:
        """The columns of values; those of lists are left out."""
        rows = table.rows
        columns = {name: column_of(values, rows.is_written) for name, values in rows.columns.items()}
        lists = [name for name, column in columns.items() if column is None]
        if lists:
            self._left_out.count("lists", len(lists), ", ".join(lists))
        return {name: column for name, column in columns.items() if column is not None}

    def _texts(self, columns: Mapping[str, Column], option: str) -> list[str]:
        """The column that an option names; nothing, if it names none."""
        return columns[self._options[option]].texts if self._options[option] else []

    def _check_columns(self, columns: Mapping[str, Column], needs: Needs) -> None:
        asked = {self._options[option]: f" ({option})" for option in NAMING if self._options[option]}
        for name, told in {**{given.column: "" for given in needs.inputs}, **asked}.items():
            if name not in columns:
                raise UsageError(f"the table has no column {name!r}{told}", hint=nearest(name, columns))

    def _tell_path(self, columns: Mapping[str, Column], keys: Iterable[str]) -> None:
        """No object is called as the rows say: tell the path by which they have some."""
        path = path_of(columns, keys)
        if path:
            self._left_out.remark(
                f"no row has an object by its path; path = {path!r} in the recipe finds them"
            )

    def _attribute_names(self, columns: Mapping[str, Column], needs: Needs) -> Iterator[str]:
        """All columns but those that say nothing that a key or a place does not say."""
        used = {self._options[option] for option in NAMING}
        keys = {self._options["key"], self._options["at"]}
        keys |= {name for name in columns if f"{{{name}}}" in needs.paths}
        used |= {name for path in needs.paths for name in Template(path).columns}
        for name in columns:
            if name not in COLUMNS and name not in keys:
                yield name
            elif name not in used:
                self._left_out.count("column", example=name)


class _Names:
    """The keys of samples, no two alike."""

    def __init__(self, left_out: LeftOut) -> None:
        self._left_out = left_out
        self._used: Counter[str] = Counter()  # how often a name came, also with a number behind it
        self._where: dict[str, str] = {}  # of names that a column gave
        self._again: list[str] = []

    def of(self, name: str, where: str) -> str:
        """The name that a row has. It is told if another row has it, too."""
        key = self.unlike(name)
        first = self._where.setdefault(name, where)
        if first != where:
            self._again.append(f"{where} has the key {name!r} of {first}, and is called {key!r}")
        return key

    def unlike(self, key: str) -> str:
        """The name, or one with a number behind it that nobody has yet."""
        name = key
        while self._used[name]:
            name = f"{key}#{self._used[key]}"
            self._used[key] += 1
        self._used[name] += 1
        return name

    def tell(self) -> None:
        if self._again:
            more = f"; so have {len(self._again) - 1:,} more rows" if len(self._again) > 1 else ""
            self._left_out.remark(f"{self._again[0]}{more}")


class ArrayRows:
    """Samples that are rows of their first part: the array is parsed once, and a row is a view of it."""

    def open(self, number: int, data: memoryview) -> npt.NDArray[Any] | memoryview:
        return data if number else parse_npy(data)

    def take(self, opened: Sequence[Any], at: Any) -> Sequence[Data]:
        array, *others = opened
        if not isinstance(at, int) or not array.ndim or not 0 <= at < len(array):
            raise SampleError("corrupt", f"there is no row {at} in an array of {array.shape}")
        return [array[at], *others]


def opener_of(options: Mapping[str, Any]) -> Opener | None:
    """With `at`, an object has several samples."""
    return ArrayRows() if options["at"] else None


def check_table(options: Mapping[str, Any]) -> dict[str, Any]:
    """All options of a table, checked."""
    for name, value in options.items():
        if not isinstance(value, str) or not value:
            raise UsageError(f"{name} must be a text, not {value!r}", hint="put it in quotes")
    checked = {**OPTIONS, **options}
    if checked["per"] not in PER:
        raise UsageError(f"per is {checked['per']!r}", hint='use per = "box", or leave it out')
    return checked


def _find(objects: dict[str, ObjectInfo] | None, listing: Listing, keys: set[str]) -> dict[str, ObjectInfo]:
    """The objects that rows name."""
    if objects is not None:
        return {key: objects[key] for key in keys if key in objects}
    return {info.key: info for info in listing.objects() if info.key in keys}


TABLE: Final = LayoutKind(
    tuple(OPTIONS),
    check_table,
    lambda options, recipe, left_out: TableLayout(options, recipe.needs, left_out),
    opener_of,
    guesses=guesses,
)
