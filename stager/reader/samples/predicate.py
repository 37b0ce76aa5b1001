"""The small language of --where: `size > 10KB and class in (cat, dog) and fold != 1`.

A column is one of COLUMNS, or an attribute of the data set. To compare with a missing value is false.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stager.errors import UsageError
from stager.reader.samples.manifest import ListedManifest
from stager.reader.values import Mask, encode_key

COLUMNS: Final = ("class", "key", "label", "size", "split", "version")
NUMBERS: Final = {"label": pa.int32(), "size": pa.int64()}
_TOKEN: Final = re.compile(
    r"\s*(?:(?P<number>-?[0-9][0-9_]*(?:\.[0-9]+)?(?P<unit>[KMGT]i?B)?(?![\w.-]))"
    r"|(?P<text>'[^']*'|\"[^\"]*\")"
    r"|(?P<sign><=|>=|!=|<>|==|=|<|>|\(|\)|,)"
    r"|(?P<word>[^\s'\"<>=!(),]+))"
)
_SCALE: Final = {
    "KB": 1e3,
    "MB": 1e6,
    "GB": 1e9,
    "TB": 1e12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_COMPARE: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "=": pc.equal,
    "==": pc.equal,
    "!=": pc.not_equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
# What somebody asks of the service must not hold it up: reading is linear in the length, and each comparison
# looks at every sample, `like` for up to 0.15 s of a million.
LENGTH_MAX: Final = 65_536  # characters
TOKENS_MAX: Final = 8_192  # words, values and signs
COMPARISONS_MAX: Final = 64
LIKES_MAX: Final = 16
PATTERN_MAX: Final = 1_000  # characters of a `like`
DEPTH_MAX: Final = 50
SHOWN_CHARS: Final = 100


class ManifestColumns:
    """The columns of a manifest. Classes and splits are compared by name, of which there are few."""

    def __init__(self, manifest: ListedManifest) -> None:
        self._manifest = manifest

    def check(self, name: str) -> pa.DataType:
        """The type of a column's values. Raise UsageError if there is no such column."""
        if name in COLUMNS:
            return NUMBERS.get(name, pa.large_string())
        names = [attribute.name for attribute in self._manifest.attributes]
        if name not in names:
            raise UsageError(
                f"--where: there is no column {_short(name)}",
                hint=f"columns: {', '.join((*COLUMNS, *names))}",
            )
        return self._manifest.column(name).type

    def where(self, name: str, is_true: Callable[[Any], Any]) -> Mask:
        """Which samples have a value in this column that is true for it."""
        self.check(name)
        if name in ("class", "split"):
            names = self._manifest.classes if name == "class" else self._manifest.splits
            of_each = self._manifest.labels if name == "class" else self._manifest.split_of
            return _mask(is_true(_texts(names)))[of_each]
        return _mask(is_true(self._column(name)))

    def _column(self, name: str) -> Any:
        column = self._manifest.column(name)
        return column.cast(pa.large_string(), safe=False) if name == "key" else column  # need not be UTF-8


Predicate = Callable[[ManifestColumns], Mask]
Value = Callable[[ManifestColumns], Any]  # an array of one


def select(manifest: ListedManifest, expression: str) -> Mask:
    """Which samples of a manifest an expression is true for."""
    return parse(expression)(ManifestColumns(manifest))


def parse(expression: str) -> Predicate:
    """What an expression asks of each sample. Raise UsageError if it makes no sense, or too much."""
    parser = _Parser(expression)
    predicate = parser.either(0)
    parser.end()
    return predicate


class _Parser:
    """Reads from left to right, each character once."""

    def __init__(self, expression: str) -> None:
        self.expression = expression
        if len(expression) > LENGTH_MAX:
            raise self.too_much(f"it has {len(expression):,} characters, {LENGTH_MAX:,} are allowed")
        self.tokens: list[tuple[str, Any]] = []
        self.comparisons = self.likes = 0
        at, end = 0, len(expression.rstrip())
        while at < end:
            match = _TOKEN.match(expression, at)
            if match is None:
                raise self.error(f"{expression[at : at + 20].strip()!r} makes no sense here")
            self.tokens.append(_token(match))
            at = match.end()
        if len(self.tokens) > TOKENS_MAX:
            raise self.too_much(f"it has {len(self.tokens):,} words and signs, {TOKENS_MAX:,} are allowed")
        self.at = 0

    def either(self, depth: int) -> Predicate:
        parts = [self.both(depth)]
        while self.take_word("or"):
            parts.append(self.both(depth))
        return parts[0] if len(parts) == 1 else lambda columns: _reduce(np.logical_or, columns, parts)

    def both(self, depth: int) -> Predicate:
        parts = [self.one(depth)]
        while self.take_word("and"):
            parts.append(self.one(depth))
        return parts[0] if len(parts) == 1 else lambda columns: _reduce(np.logical_and, columns, parts)

    def one(self, depth: int) -> Predicate:
        if depth > DEPTH_MAX:
            raise self.error("it is nested too deeply")
        if self.take_word("not"):
            return _negated(self.one(depth + 1))
        if self.take_sign("("):
            inner = self.either(depth + 1)
            self.need(")")
            return inner
        return self.comparison()

    def comparison(self) -> Predicate:
        self.comparisons += 1
        if self.comparisons > COMPARISONS_MAX:
            raise self.too_much(f"it compares more than {COMPARISONS_MAX} times")
        kind, name = self.next("a column")
        if kind != "word" or not (name in COLUMNS or name.isidentifier()):
            raise self.error(f"there is no column {_short(name)}")
        negated = self.take_word("not")
        if self.take_word("in"):
            found = self.among(name)
        elif self.take_word("like"):
            found = self.like(name)
        else:
            _, sign = self.next("a comparison")
            if sign not in _COMPARE or negated:
                raise self.error(f"{_short(sign)} is no comparison")
            found = self.compared(name, _COMPARE[sign])
        return _negated(found) if negated else found

    def compared(self, name: str, compare: Callable[[Any, Any], Any]) -> Predicate:
        value = self.value(name)
        return lambda columns: columns.where(name, lambda column: compare(column, value(columns)[0]))

    def among(self, name: str) -> Predicate:
        self.need("(")
        parts = [self.value(name)]
        while self.take_sign(","):
            parts.append(self.value(name))
        self.need(")")

        def is_among(columns: ManifestColumns) -> Mask:
            values = pa.concat_arrays([part(columns) for part in parts])
            return columns.where(name, lambda column: pc.is_in(column, value_set=values))

        return is_among

    def like(self, name: str) -> Predicate:
        if name in NUMBERS:
            raise self.error(f"{name} is a number: like is for texts")
        self.likes += 1
        if self.likes > LIKES_MAX:
            raise self.too_much(f"it has more than {LIKES_MAX} likes")
        pattern = self.text_value()
        if len(pattern) > PATTERN_MAX:
            raise self.too_much(f"a like has {len(pattern):,} characters, {PATTERN_MAX:,} are allowed")
        if not _is_utf8(pattern):  # Arrow takes no other
            raise self.error(f"{_short(pattern)} is no text")

        def is_like(columns: ManifestColumns) -> Mask:
            if columns.check(name) != pa.large_string():
                raise self.error(f"{name} is no text: like is for texts")
            return columns.where(name, lambda column: pc.match_like(column, pattern))

        return is_like

    def value(self, name: str) -> Value:
        """The next value, as an array of one, of the column's type. That of an attribute is known later."""
        kind, value = self.next("a value")
        if kind == "sign":
            raise self.error(f"{value!r} is no value")
        if name not in COLUMNS:
            return lambda columns: self.typed(name, columns.check(name), kind, value)
        made = self.typed(name, NUMBERS.get(name, pa.large_string()), kind, value)
        return lambda columns: made

    def typed(self, name: str, column: pa.DataType, kind: str, value: Any) -> Any:
        """A value that was read, as an array of one of a column's type."""
        text = str(value[0] if kind == "number" else value)
        if column == pa.bool_():
            if text.lower() not in ("true", "false"):
                raise self.error(f"{name} is true or false, not {_short(text)}")
            return pa.array([text.lower() == "true"])
        if column == pa.large_string():
            try:
                return _texts([text])
            except UnicodeEncodeError:
                raise self.error(f"{_short(text)} is no text") from None
        if kind != "number":
            named = ", and the name is in class" if name == "label" else ""
            raise self.error(f"{name} is a number{named}: {_short(text)} is none")
        if column == pa.float64():
            return pa.array([float(value[1])])
        if not -(2**31) < value[1] < (2**31 if name == "label" else 2**62):
            raise self.error(f"{_short(text)} is out of range for {name}")
        if value[1] != int(value[1]) and name not in COLUMNS:
            raise self.error(f"{name} is a whole number, {_short(text)} is not")
        return pa.array([int(value[1])], column)

    def text_value(self) -> str:
        """The next value as it is written."""
        kind, value = self.next("a value")
        if kind == "sign":
            raise self.error(f"{value!r} is no value")
        return str(value[0] if kind == "number" else value)

    def next(self, wanted: str) -> tuple[str, Any]:
        if self.at == len(self.tokens):
            raise self.error(f"it ends where {wanted} should be")
        self.at += 1
        return self.tokens[self.at - 1]

    def take_word(self, word: str) -> bool:
        return self._take("word", word)

    def take_sign(self, sign: str) -> bool:
        return self._take("sign", sign)

    def _take(self, kind: str, value: str) -> bool:
        if self.at < len(self.tokens) and self.tokens[self.at] == (kind, value):
            self.at += 1
            return True
        return False

    def need(self, sign: str) -> None:
        if not self.take_sign(sign):
            raise self.error(f"{sign!r} is missing")

    def end(self) -> None:
        if self.at < len(self.tokens):
            raise self.error(f"{_short(self.tokens[self.at][1])} comes after its end")

    def error(self, what: str) -> UsageError:
        return UsageError(
            f"--where {_short(self.expression)}: {what}",
            hint=f"columns: {', '.join(COLUMNS)}; as: size > 10KB and class in (cat, dog)",
        )

    def too_much(self, what: str) -> UsageError:
        return UsageError(
            f"--where {_short(self.expression)}: {what}", hint="name classes in a file: --classes @FILE"
        )


def _token(match: "re.Match[str]") -> tuple[str, Any]:
    """Its kind and value; of a number, how it is written and what it is."""
    if match["number"]:
        unit = match["unit"] or ""
        number = float(match["number"].removesuffix(unit).replace("_", ""))
        return "number", (match["number"], number * _SCALE.get(unit, 1))
    if match["text"]:
        return "text", match["text"][1:-1]
    if match["sign"]:
        return "sign", match["sign"]
    word = match["word"]
    return "word", word.lower() if word.lower() in ("and", "or", "not", "in", "like") else word


def _texts(values: Sequence[str]) -> Any:
    """Texts as Arrow has them; bytes that are no UTF-8 stay as they are."""
    raw = pa.array([encode_key(value) for value in values], pa.large_binary())
    return raw.cast(pa.large_string(), safe=False)


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _mask(found: Any) -> Mask:
    mask: Mask = found.fill_null(False).to_numpy(zero_copy_only=False)
    return mask


def _negated(inner: Predicate) -> Predicate:
    return lambda columns: ~inner(columns)


def _reduce(join: Any, columns: ManifestColumns, parts: Sequence[Predicate]) -> Mask:
    mask = parts[0](columns)
    for part in parts[1:]:
        join(mask, part(columns), out=mask)
    return mask


def _short(value: Any) -> str:
    """What somebody wrote, as it is shown in an error."""
    text = value[0] if isinstance(value, tuple) else str(value)
    return repr(text if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + "...")
