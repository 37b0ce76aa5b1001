"""A table of samples: a row each, with the keys of its objects, its label and its attributes."""

import csv
import io
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from string import Formatter
from typing import Any, Final, Literal

import numpy.typing as npt

from stager.errors import SampleError, UsageError, nearest
from stager.interfaces import Entry, Folders, LeftOut, Listing, Needs, Opener
from stager.layouts.kind import LayoutKind
from stager.npy import parse_npy
from stager.reader.samples.predicate import COLUMNS
from stager.reader.values import Attribute, ObjectInfo, Part

OPTIONS: Final = {"table": "", "label": "", "split": "", "key": "", "at": ""}
TRUTHS: Final = {"true": True, "false": False}


class TableLayout:
    """`table` is the key of a CSV file of the source, or a file of this machine; its first line has names.

    The recipe says which objects a row has. `label`, `split` and `key` name columns; without `key`, a
    sample's key is that of its first object. `at` names the column with the place inside of that object, if
    objects have several samples. Other columns, but those that paths are made of, are attributes.
    """

    is_computed: Literal[False] = False
    is_plain = False

    def __init__(
        self, options: Mapping[str, Any], needs: Callable[[Sequence[str]], Needs], left_out: LeftOut
    ) -> None:
        self._options, self._needs_of, self._left_out = options, needs, left_out
        self.attributes: tuple[Attribute, ...] = ()

    def entries(self, listing: Listing) -> Iterator[Entry]:
        rows, objects = self._read(listing)
        columns = list(rows[0]) if rows else []
        needs = self._needs_of(columns)
        self._check_columns(columns, needs)
        table = {name: _typed([row[name] for row in rows]) for name in columns}
        self.attributes = tuple(
            Attribute(name, _type_of(table[name])) for name in self._attribute_names(columns, needs)
        )
        wanted = [_keys_of(row, needs.paths) for row in rows]
        found = self._find(objects, listing, {key for keys in wanted for key in keys})
        used: Counter[str] = Counter()  # how often a name came, also with a number behind it
        for number, (row, keys) in enumerate(zip(rows, wanted, strict=True)):
            if self._options["label"] and not row[self._options["label"]]:
                self._left_out.count("no_label")
            elif not all(key in found for key in keys):
                self._left_out.count("no_object")
            else:
                key = row[self._options["key"]] if self._options["key"] else keys[0]
                yield Entry(
                    _unlike(key, used),
                    tuple(Part(found[key]) for key in keys),
                    (self._of(row, "split"), self._of(row, "label")),
                    tuple(table[attribute.name][number] for attribute in self.attributes),
                    table[self._options["at"]][number] if self._options["at"] else None,
                    tuple(table[name][number] for name in needs.inputs),
                )

    def label(self, paths: Iterable[Folders]) -> dict[Folders, tuple[str, str]]:
        return {path: (path[0], path[1]) for path in paths}

    def _of(self, row: Mapping[str, str], option: str) -> str:
        return row[self._options[option]] if self._options[option] else ""

    def _read(self, listing: Listing) -> tuple[list[dict[str, str]], dict[str, ObjectInfo]]:
        """The rows of the table, and the objects that were seen on the way to it."""
        name, objects = self._options["table"], {}
        if Path(name).is_absolute():
            return _rows_of(name, _bytes_at(Path(name))), {}
        for info in listing.objects():
            objects[info.key] = info
        if name not in objects:
            raise UsageError(
                f"there is no table {name!r} in the source, nor beside the config",
                hint=nearest(name, [key for key in objects if key.lower().endswith(".csv")]),
            )
        return _rows_of(name, bytes(listing.read(Part(objects[name])))), objects

    def _find(
        self, objects: dict[str, ObjectInfo], listing: Listing, keys: set[str]
    ) -> dict[str, ObjectInfo]:
        """The objects that rows name."""
        if objects:
            return {key: objects[key] for key in keys if key in objects}
        return {info.key: info for info in listing.objects() if info.key in keys}

    def _check_columns(self, columns: Sequence[str], needs: Needs) -> None:
        for option in ("label", "split", "key", "at"):
            name = self._options[option]
            if name and name not in columns:
                raise UsageError(f"the table has no column {name!r} ({option})", hint=nearest(name, columns))
        for name in needs.inputs:
            if name not in columns:
                raise UsageError(f"the table has no column {name!r}", hint=nearest(name, columns))

    def _attribute_names(self, columns: Sequence[str], needs: Needs) -> Iterator[str]:
        used = {self._options[option] for option in ("label", "split", "key", "at")}
        used |= {name for path in needs.paths for _, name, _, _ in Formatter().parse(path) if name}
        for name in columns:
            if name in COLUMNS and name not in used:
                self._left_out.count("column")
            elif name not in used:
                yield name


class ArrayRows:
    """Samples that are rows of one array: the array is parsed once, and a row is a view of it."""

    def open(self, data: memoryview) -> npt.NDArray[Any]:
        return parse_npy(data)

    def take(self, opened: npt.NDArray[Any], at: Any) -> npt.NDArray[Any]:
        if not isinstance(at, int) or not opened.ndim or not 0 <= at < len(opened):
            raise SampleError("corrupt", f"there is no row {at} in an array of {opened.shape}")
        row: npt.NDArray[Any] = opened[at]
        return row


def opener_of(options: Mapping[str, Any]) -> Opener | None:
    """With `at`, an object has several samples."""
    return ArrayRows() if options["at"] else None


def check_table(options: Mapping[str, Any]) -> dict[str, Any]:
    """All options of a table, checked."""
    for name, value in options.items():
        if not isinstance(value, str) or not value:
            raise UsageError(f"{name} must be a text, not {value!r}", hint="put it in quotes")
    if "table" not in options:
        raise UsageError("the layout table has no table", hint='add table = "samples.csv"')
    return {**OPTIONS, **options}


def _unlike(key: str, used: Counter[str]) -> str:
    """The name, or one with a number behind it that nobody has yet."""
    name = key
    while used[name]:
        name = f"{key}#{used[key]}"
        used[key] += 1
    used[name] += 1
    return name


def _keys_of(row: Mapping[str, str], paths: Sequence[str]) -> list[str]:
    return [path.format_map(row) for path in paths]


def _bytes_at(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", hint="is the path of the table right?") from None


def _rows_of(name: str, data: bytes) -> list[dict[str, str]]:
    """The rows of a CSV file by the names in its first line."""
    try:
        text = data.decode("utf-8-sig")
        reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
        columns = list(reader.fieldnames or ())
        rows = list(reader)
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{name} cannot be read as CSV: {error}", hint="it must be CSV in UTF-8") from None
    if len(set(columns)) < len(columns) or not all(columns):
        raise UsageError(
            f"{name}: two columns of one name, or one without", hint="name them in the first line"
        )
    for number, row in enumerate(rows, 2):
        if None in row or None in row.values():
            raise UsageError(f"{name}: line {number} has not {len(columns)} values", hint="check its commas")
    return rows


def _typed(values: Sequence[str]) -> list[Any]:
    """The values of a column, as what all of them can be: truths, whole numbers, numbers, or texts."""
    for kind in (_truth, int, _number):
        try:
            return [kind(value.strip()) if value.strip() else None for value in values]
        except ValueError:
            continue
    return [value or None for value in values]


def _truth(text: str) -> bool:
    if text.lower() not in TRUTHS:
        raise ValueError(text)
    return TRUTHS[text.lower()]


def _number(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(text)
    return value


def _type_of(values: Sequence[Any]) -> str:
    kinds = {type(value) for value in values} - {type(None)}
    names = {bool: "bool", int: "int64", float: "float64", str: "string"}
    return names[kinds.pop()] if kinds else "string"


TABLE: Final = LayoutKind(
    tuple(OPTIONS),
    check_table,
    lambda options, recipe, left_out: TableLayout(options, recipe.needs, left_out),
    opener_of,
)
