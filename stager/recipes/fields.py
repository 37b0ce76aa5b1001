"""Several fields a sample, each by a recipe of its own."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice
from typing import Any

from stager.errors import UsageError
from stager.interfaces import Data, Kind, Needs, Recipe
from stager.reader.samples.predicate import COLUMNS
from stager.reader.values import Arrays, Field, canonical_json, digest_of


class FieldsRecipe:
    """Recipes of one field each, by the names of their fields. Parts come in the fields' order.

    That is the order of their names: what is recorded of a recipe does not keep another one.
    """

    def __init__(self, recipes: Mapping[str, Recipe]) -> None:
        self._recipes = {name: recipes[name] for name in sorted(recipes)}
        for name, recipe in self._recipes.items():
            check_field_name(name)
            if len(recipe.fields) != 1:
                raise UsageError(f"{name} makes several fields", hint="a recipe of several stands alone")

    @cached_property
    def digest(self) -> str:
        told = [[name, recipe.digest] for name, recipe in self._recipes.items()]
        return digest_of(canonical_json(["fields/1", told]).encode())

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        return tuple(replace(recipe.fields[0], name=name) for name, recipe in self._recipes.items())

    @cached_property
    def takes(self) -> Kind:
        kinds = {recipe.takes.many: recipe.takes for recipe in self._recipes.values()}
        if len(kinds) == 1:
            return next(iter(kinds.values()))
        return Kind("sample", "samples", tuple(ending for kind in kinds.values() for ending in kind.endings))

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """Those of each field, one after the other."""
        return tuple(name for recipe in self._recipes.values() for name in recipe.inputs)

    def needs(self, columns: Sequence[str], field: str = "") -> Needs:
        each = [recipe.needs(columns, name) for name, recipe in self._recipes.items()]
        return Needs(
            tuple(path for needs in each for path in needs.paths),
            tuple(given for needs in each for given in needs.inputs),
        )

    def prepare(self, data: Sequence[Data], inputs: tuple[Any, ...]) -> Arrays:
        arrays: Arrays = {}
        if len(data) != len(self._recipes):
            raise UsageError(
                f"{len(self._recipes)} fields, and {len(data)} objects a sample",
                hint='several fields need layout = "table", with a path for each field',
            )
        left = iter(inputs)
        for (name, recipe), part in zip(self._recipes.items(), data, strict=True):
            own = tuple(islice(left, len(recipe.inputs)))
            (arrays[name],) = recipe.prepare([part], own).values()
        return arrays


def check_field_name(name: str) -> None:
    """Raise UsageError if a field cannot be called so: it means something else."""
    if name in COLUMNS or not name.isidentifier():
        raise UsageError(f"a field cannot be called {name!r}", hint="use a name such as depth or mask")
