"""The small language of --where: `size > 10KB and class in (cat, dog) and not key like '%_small.jpg'`."""

import re
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stager.errors import UsageError
from stager.manifest import Manifest

Mask = npt.NDArray[np.bool_]
COLUMNS: Final = ("class", "key", "label", "size", "split", "version")
_TOKEN: Final = re.compile(
    r"\s*(?:(?P<number>[0-9][0-9_]*(?:\.[0-9]+)?(?P<unit>[KMGT]i?B)?(?![\w.-]))"
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
DEPTH_MAX: Final = 50


def select(manifest: Manifest, expression: str) -> Mask:
    """Which samples of a manifest an expression is true for."""
    if not expression.isascii() and any("\ud800" <= letter <= "\udfff" for letter in expression):
        raise UsageError(f"--where {expression!r}: it is no UTF-8", hint="use like '%', which fits any bytes")
    parser = _Parser(manifest, expression)
    mask = parser.either(0)
    parser.end()
    return mask


class _Parser:
    """Reads from left to right and works out the mask as it goes."""

    def __init__(self, manifest: Manifest, expression: str) -> None:
        self.manifest, self.expression = manifest, expression
        self.tokens: list[tuple[str, Any]] = []
        at = 0
        while expression[at:].strip():
            match = _TOKEN.match(expression, at)
            if match is None:
                raise self.error(f"{expression[at:].strip()[:20]!r} makes no sense here")
            self.tokens.append(_token(match))
            at = match.end()
        self.at = 0

    def either(self, depth: int) -> Mask:
        mask = self.both(depth)
        while self.take_word("or"):
            mask = mask | self.both(depth)
        return mask

    def both(self, depth: int) -> Mask:
        mask = self.one(depth)
        while self.take_word("and"):
            mask = mask & self.one(depth)
        return mask

    def one(self, depth: int) -> Mask:
        if depth > DEPTH_MAX:
            raise self.error("it is nested too deeply")
        if self.take_word("not"):
            return ~self.one(depth + 1)
        if self.take_sign("("):
            mask = self.either(depth + 1)
            self.need(")")
            return mask
        return self.comparison()

    def comparison(self) -> Mask:
        kind, name = self.next("a column")
        if kind != "word" or name not in COLUMNS:
            raise self.error(f"{name!r} is no column")
        column = _column(self.manifest, name)
        negated = self.take_word("not")
        if self.take_word("in"):
            self.need("(")
            values = [self.value(name)]
            while self.take_sign(","):
                values.append(self.value(name))
            self.need(")")
            mask = pc.is_in(column, value_set=pa.array(values, column.type))
        elif self.take_word("like"):
            if not pa.types.is_large_string(column.type):
                raise self.error(f"{name} is a number: like is for texts")
            mask = pc.match_like(column, str(self.value(name)))
        else:
            _, sign = self.next("a comparison")
            if sign not in _COMPARE or negated:
                raise self.error(f"{sign!r} is no comparison")
            mask = _COMPARE[sign](column, pa.scalar(self.value(name), column.type))
        result: Mask = mask.to_numpy(zero_copy_only=False)
        return ~result if negated else result

    def value(self, name: str) -> Any:
        kind, value = self.next("a value")
        if kind == "sign":
            raise self.error(f"{value!r} is no value")
        if name in ("size", "label"):
            if kind != "number":
                raise self.error(f"{name} is a number, {value!r} is not")
            if not -(2**31) < value < (2**31 if name == "label" else 2**62):
                raise self.error(f"{value:.0f} is out of range for {name}")
            return int(value)
        return self.raw(-1) if kind == "number" else value

    def raw(self, offset: int) -> str:
        value = self.tokens[self.at + offset][1]
        return f"{value:.0f}" if float(value).is_integer() else str(value)

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
            raise self.error(f"{self.tokens[self.at][1]!r} comes after its end")

    def error(self, what: str) -> UsageError:
        return UsageError(
            f"--where {self.expression!r}: {what}",
            hint=f"columns: {', '.join(COLUMNS)}; as: size > 10KB and class in (cat, dog)",
        )


def _token(match: "re.Match[str]") -> tuple[str, Any]:
    if match["number"]:
        unit = match["unit"] or ""
        number = float(match["number"].removesuffix(unit).replace("_", ""))
        return "number", number * _SCALE.get(unit, 1)
    if match["text"]:
        return "text", match["text"][1:-1]
    if match["sign"]:
        return "sign", match["sign"]
    word = match["word"]
    return "word", word.lower() if word.lower() in ("and", "or", "not", "in", "like") else word


def _column(manifest: Manifest, name: str) -> Any:
    if name == "class":
        return pa.array(manifest.classes, pa.large_string()).take(manifest.column("label"))
    if name == "split":
        return pa.array(manifest.splits, pa.large_string()).take(manifest.column("split"))
    if name == "key":
        return manifest.column("key").cast(pa.large_string(), safe=False)  # keys need not be UTF-8
    return manifest.column(name)
