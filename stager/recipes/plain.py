"""The recipes for what is kept as it is: any bytes, texts, JSON."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from stager.errors import SampleError, UsageError, nearest
from stager.interfaces import Data, Kind, Needs
from stager.reader.values import Arrays, Field, canonical_json, digest_of
from stager.recipes.kind import RecipeKind
from stager.recipes.paths import check_path, needs_of

VERSION: Final = "plain/1"  # to be raised when the same keys come to give other values
BATCHES: Final = ("ragged", "pad")
DEFAULTS: Final[dict[str, Any]] = {"batch": "ragged", "path": ""}


def _any(data: bytes) -> None:
    """Whatever they are."""


def _text(data: bytes) -> None:
    data.decode()


def _json(data: bytes) -> None:
    json.loads(data.decode())


@dataclass(frozen=True, slots=True)
class PlainRecipe:
    """One row of bytes a sample, as long as it is."""

    kind: str
    takes: Kind
    check: Callable[[bytes], None]  # raises ValueError if they are something else
    batch: str
    path: str

    @property
    def digest(self) -> str:
        return digest_of(canonical_json({"version": VERSION, "kind": self.kind}).encode())

    @property
    def fields(self) -> tuple[Field, ...]:
        return (Field(self.kind, "uint8", (None,), "raw", "", self.batch),)

    @property
    def inputs(self) -> tuple[str, ...]:
        return ()

    def needs(self, columns: Sequence[str], field: str = "") -> Needs:
        return needs_of(self.path, columns, field)

    def prepare(self, data: Sequence[Data], inputs: tuple[Any, ...]) -> Arrays:
        (part,) = data
        raw = bytes(part)
        try:
            self.check(raw)
        except (ValueError, RecursionError) as error:
            told = f"it is no {self.takes.one}: {type(error).__name__}"
            raise SampleError("unknown_format", told) from None
        return {self.kind: np.frombuffer(raw, np.uint8)}


def check_plain(keys: Mapping[str, Any]) -> dict[str, Any]:
    """All keys of such a recipe, checked, with defaults for those that are not given."""
    for key in keys:
        if key not in DEFAULTS:
            raise UsageError(f"unknown key {key} in the recipe", hint=nearest(key, DEFAULTS))
    checked = {**DEFAULTS, **keys}
    if checked["batch"] not in BATCHES:
        raise UsageError(f"recipe batch is {checked['batch']!r}", hint="use one of " + ", ".join(BATCHES))
    return {**checked, "path": check_path(checked["path"])}


def _kind(name: str, takes: Kind, check: Callable[[bytes], None]) -> RecipeKind:
    return RecipeKind(
        check_plain, lambda keys: PlainRecipe(name, takes, check, keys["batch"], keys["path"]), takes
    )


BYTES: Final = _kind("bytes", Kind("file", "files", ()), _any)
TEXT: Final = _kind("text", Kind("text", "texts", (".txt",)), _text)
JSON: Final = _kind("json", Kind("JSON", "JSONs", (".json",)), _json)
