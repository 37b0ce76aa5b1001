"""The values of a column, as what all of them can be: truths, whole numbers, numbers, or texts."""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from stager.interfaces import Input
from stager.layouts.utf8 import in_utf8

TRUTHS: Final = {"true": True, "false": False}
WHOLE_MAX: Final = 1 << 63
NAMES: Final[dict[type, str]] = {bool: "bool", int: "int64", float: "float64", str: "string"}


@dataclass(frozen=True)
class Column:
    """Values of one type, or None; and their texts, as paths, keys and labels have them."""

    type: str
    values: list[Any]
    written: list[str] | None = None

    @cached_property
    def texts(self) -> list[str]:
        return [_text(value) for value in self.values] if self.written is None else self.written


def column_of(values: Sequence[Any], is_written: bool) -> Column | None:
    """What a column is; None, if it has lists or bytes in it. `is_written`: all its values are texts."""
    if is_written:
        texts = ["" if value is None else value for value in values]
        typed = _read(texts)
        return Column(_type_of(typed), typed, texts)
    kinds = {type(value) for value in values} - {type(None)}
    if not kinds <= NAMES.keys():
        return None
    are_numbers = kinds <= {int, float} and (float in kinds or not all(map(_fits, values)))
    if are_numbers:
        with suppress(OverflowError):  # of a whole number that no float is: then they are texts
            return Column("float64", [None if value is None else float(value) for value in values])
    if len(kinds) > 1 or are_numbers:
        return Column("string", [None if value is None else _text(value) for value in values])
    if kinds == {str}:
        return Column("string", [None if value is None else in_utf8(value) for value in values])
    return Column(_type_of(values), list(values))


def as_numbers(column: Column) -> Column:
    """The same column of numbers, where those that are none, as in a row that fails alone, are missing."""
    if column.type in ("int64", "float64") and None not in column.values:
        return column
    values = [Input("", is_number=True).of(value) for value in column.values]
    is_one = [type(value) in (int, float) and math.isfinite(value) for value in values]
    return Column(
        "float64", [float(v) if is_number else None for v, is_number in zip(values, is_one, strict=True)]
    )


def _read(texts: Sequence[str]) -> list[Any]:
    kinds: tuple[Callable[[str], Any], ...] = (_truth, _whole, _number)
    for kind in kinds:
        try:
            return [kind(text.strip()) if text.strip() else None for text in texts]
        except ValueError:
            continue
    return [text or None for text in texts]


def _truth(text: str) -> bool:
    if text.lower() not in TRUTHS:
        raise ValueError(text)
    return TRUTHS[text.lower()]


def _whole(text: str) -> int:
    value = int(text)
    if not _fits(value):
        raise ValueError(text)
    return value


def _number(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(text)
    return value


def _fits(value: int | None) -> bool:
    return value is None or -WHOLE_MAX <= value < WHOLE_MAX


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else in_utf8(str(value))


def _type_of(values: Sequence[Any]) -> str:
    kinds = {type(value) for value in values} - {type(None)}
    return NAMES[kinds.pop()] if kinds else "string"
