"""The recipe of a person's own function: parts and inputs to arrays. It runs in processes of its own."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Final

from stager.errors import SampleError, UsageError, nearest
from stager.functions.children import CHILDREN, code_of
from stager.functions.function import Function
from stager.interfaces import Data, Input, Kind, Made, Needs
from stager.reader.values import Arrays, Field, canonical_json, digest_of
from stager.recipes.array import ArrayRecipe, check_array
from stager.recipes.fields import check_field_name
from stager.recipes.kind import RecipeKind
from stager.recipes.paths import check_path, needs_of

VERSION: Final = "python/1"  # to be raised when the same keys come to give other values
_NAME: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_ENDING: Final = re.compile(r"\.[a-z0-9.]{1,20}")
_ARRAY: Final = ("dtype", "shape", "axes", "batch")  # what is said of a field that a function returns
MOST_S: Final = 7 * 24 * 3600.0


@dataclass(frozen=True)
class PythonRecipe:
    """What `prepare` returns of the parts and inputs, each field an array as it was declared."""

    prepare_: str
    fields_: Mapping[str, Mapping[str, Any]]
    args: Mapping[str, Any] = field(default_factory=dict)
    path: Sequence[str] = ()
    inputs: tuple[str, ...] = ()
    endings: Sequence[str] = ()
    folder: str = ""
    deadline_s: float = 600.0
    memory_mb: int = 0
    code: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def function(self) -> Function:
        about = self.prepare_, self.folder, self.args, self.code
        return Function(*about, deadline_s=self.deadline_s, memory_mb=self.memory_mb)

    @cached_property
    def _arrays(self) -> dict[str, ArrayRecipe]:
        opened = {name: ArrayRecipe(**{**keys, "path": ""}) for name, keys in self.fields_.items()}
        return {name: opened[name] for name in sorted(opened)}

    @cached_property
    def digest(self) -> str:
        """Its code and what that is given; not how long it may take, nor where its module lies."""
        code = self.function.key.digest if self.code else self.prepare_
        told = [[name, recipe.digest] for name, recipe in self._arrays.items()]
        keys = {"version": VERSION, "code": code, "args": self.args, "fields": told}
        return digest_of(canonical_json(keys).encode())

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        return tuple(replace(recipe.fields[0], name=name) for name, recipe in self._arrays.items())

    @property
    def takes(self) -> Kind:
        return Kind("file", "files", tuple(self.endings))

    def needs(self, columns: Sequence[str], field: str = "") -> Needs:
        each = [needs_of(path, columns) for path in self.path or [""]]
        for name in self.inputs:
            if name not in columns:
                raise UsageError(f"the table has no column {name!r} (inputs)", hint=nearest(name, columns))
        return Needs(tuple(path for needs in each for path in needs.paths), tuple(map(Input, self.inputs)))

    def prepare(self, data: Sequence[Data], inputs: tuple[Any, ...]) -> Arrays:
        made = CHILDREN.make(self.function, data, inputs)
        if list(made) == [""] and len(self._arrays) == 1:  # one array, and no dict
            made = Made(dict(zip(self._arrays, made.values(), strict=True)), made.seconds)
        if set(made) != set(self._arrays):
            told = ", ".join(sorted(made)) if set(made) != {""} else "no dict of arrays"
            raise SampleError("function", f"it returned {told}; declared are {', '.join(self._arrays)}")
        checked: Arrays = {}
        for name, recipe in self._arrays.items():
            try:
                (checked[name],) = recipe.prepare([made[name]], ()).values()
            except SampleError as error:
                raise SampleError("function", f"{name}: {error.message}") from None
        return Made(checked, made.seconds)


_KEYS: Final = {known.name.rstrip("_"): known for known in fields(PythonRecipe)}


def check_python(keys: Mapping[str, Any]) -> dict[str, Any]:
    """All keys of the recipe, checked, with defaults for those that are not given."""
    for key in keys:
        if key not in _KEYS:
            raise UsageError(f"unknown key {key} in the recipe", hint=nearest(key, _KEYS))
    prepare = keys.get("prepare")
    if not isinstance(prepare, str) or not _NAME.fullmatch(prepare):
        raise UsageError(f"recipe prepare is {prepare!r}", hint='name a function: "package.module:function"')
    declared = keys.get("fields")
    if not isinstance(declared, Mapping) or not declared:
        raise UsageError(
            f"nothing says what {prepare} returns",
            hint='as in fields = { pose = { dtype = "float32", shape = [250, 72] } }',
        )
    defaults = PythonRecipe(prepare, {})
    checked = {key: keys.get(key, getattr(defaults, known.name)) for key, known in _KEYS.items()}
    paths = [checked["path"]] if isinstance(checked["path"], str) else checked["path"]
    checked |= {
        "fields": {name: _check_field(name, table) for name, table in declared.items()},
        "args": _check_args(checked["args"]),
        "path": [check_path(path) for path in _texts("path", paths)],
        "inputs": _texts("inputs", checked["inputs"]),
        "endings": _texts("endings", checked["endings"]),
    }
    for ending in checked["endings"]:
        if not _ENDING.fullmatch(ending):
            raise UsageError(f"recipe endings has {ending!r}", hint='as in endings = [".wav", ".flac"]')
    if type(checked["deadline_s"]) not in (int, float) or not 0 < checked["deadline_s"] <= MOST_S:
        raise UsageError(
            f"recipe deadline_s is {checked['deadline_s']!r}", hint="seconds, as deadline_s = 60"
        )
    if type(checked["memory_mb"]) is not int or checked["memory_mb"] < 0:
        raise UsageError(f"recipe memory_mb is {checked['memory_mb']!r}", hint="as in memory_mb = 4000")
    return checked


def with_code(keys: Mapping[str, Any]) -> dict[str, Any]:
    """The same recipe with its code as it is now. Raise UsageError if that cannot be had."""
    recipe = _open({**keys, "code": {}})
    return {**keys, "code": code_of(recipe.function).to_json()}


def _open(keys: Mapping[str, Any]) -> PythonRecipe:
    given = {_KEYS[key].name: value for key, value in keys.items()}
    return PythonRecipe(**{**given, "inputs": tuple(given.get("inputs", ()))})


def _check_field(name: str, table: Any) -> dict[str, Any]:
    check_field_name(name)
    if not isinstance(table, Mapping):
        raise UsageError(f"field {name} is {table!r}", hint='as in { dtype = "float32", shape = [250, 72] }')
    for key in table:
        if key not in _ARRAY:
            raise UsageError(f"unknown key {key} of field {name}", hint=nearest(key, _ARRAY))
    try:
        checked = check_array(table)
    except UsageError as error:
        raise UsageError(f"field {name}: {error.message}", hint=error.hint) from None
    return {key: checked[key] for key in _ARRAY}


def _check_args(args: Any) -> dict[str, Any]:
    try:
        if isinstance(args, Mapping):
            canonical_json(dict(args))
            return dict(args)
    except TypeError:
        pass
    raise UsageError(f"args is {args!r}", hint="a table of texts and numbers, as args = { scale = 2.0 }")


def _texts(name: str, values: Any) -> list[str]:
    if isinstance(values, list | tuple) and all(isinstance(text, str) for text in values):
        return list(values)
    raise UsageError(f"recipe {name} is {values!r}", hint=f'a list of texts, as {name} = ["a", "b"]')


PYTHON: Final = RecipeKind(check_python, _open, Kind("file", "files", ()))
