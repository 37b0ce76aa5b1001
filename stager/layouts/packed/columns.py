"""What samples in tars and Parquet files say of themselves: attributes, labels, splits."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from stager.interfaces import Folders, LeftOut
from stager.layouts.folder import SPLITS
from stager.layouts.utf8 import in_utf8
from stager.reader.samples.predicate import COLUMNS
from stager.reader.values import Attribute

Values = Mapping[str, Any]  # of one sample, by name

_TYPES: Final = {bool: "bool", int: "int64", float: "float64", str: "string"}
_INT64: Final = range(-(1 << 63), 1 << 63)


class SeenAttributes:
    """The attributes that samples turn out to have, and of which type all values of one are."""

    def __init__(self) -> None:
        self._types: dict[str, str] = {}

    def add(self, values: Values) -> None:
        for name, value in values.items():
            if value is not None:
                self.add_type(name, _TYPES[type(value)])

    def add_type(self, name: str, type_name: str) -> None:
        """A value of this type was seen; the attribute becomes as wide as all of them."""
        self._types[name] = _wider(self._types.get(name, type_name), type_name)

    @property
    def names(self) -> list[str]:
        return sorted(self._types)

    def attributes(self, left_out: LeftOut) -> tuple[Attribute, ...]:
        """All but those whose names mean something else."""
        left_out.count("column", len(self._types.keys() & COLUMNS))
        return tuple(Attribute(name, self._types[name]) for name in self.names if name not in COLUMNS)


def plain_values(told: Mapping[str, Any]) -> dict[str, Any]:
    """The values that can be attributes: truths, numbers and texts."""
    plain = ((name, value) for name, value in told.items() if _is_plain(value))
    return {in_utf8(name): in_utf8(value) if isinstance(value, str) else value for name, value in plain}


def values_of(told: Values, attributes: Sequence[Attribute]) -> tuple[Any, ...]:
    """The values of one sample, each of its attribute's type."""
    return tuple(_as(told.get(attribute.name), attribute.type) for attribute in attributes)


def as_class(value: Any) -> str:
    """A value as the name of a class."""
    return "" if value is None else str(value)


def labels_in_order(paths: Iterable[Folders]) -> dict[Folders, tuple[str, str]]:
    """Each path is a split and a class. Classes that are numbers get zeros in front: so they sort as such."""
    known = list(paths)
    names = {name for _, name in known}
    are_numbers = all(name.isascii() and name.isdecimal() for name in names)
    width = max((len(str(int(name))) for name in names), default=0) if are_numbers else 0
    return {(split, name): (split, f"{int(name):0{width}}" if width else name) for split, name in known}


def splits_of(keys: Sequence[str]) -> dict[str, str]:
    """The split of each object, by the one word of its key that means one; none, if an object has none."""
    found = {
        key: {SPLITS[word] for word in re.split(r"[/._-]", key.lower()) if word in SPLITS} for key in keys
    }
    if not all(len(words) == 1 for words in found.values()):
        return dict.fromkeys(keys, "")
    return {key: next(iter(words)) for key, words in found.items()}


def _is_plain(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, bool | str) or (isinstance(value, int) and value in _INT64)


def _wider(one: str, other: str) -> str:
    if one == other:
        return one
    return "float64" if {one, other} == {"int64", "float64"} else "string"


def _as(value: Any, type_name: str) -> Any:
    if value is None:
        return None
    if type_name == "float64":
        return float(value)
    return str(value) if type_name == "string" else value
