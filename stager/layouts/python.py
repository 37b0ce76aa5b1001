"""Generated samples: a function makes each of an index and a seed. There is nothing to list."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Literal

from stager.errors import UsageError
from stager.interfaces import Count, Listing
from stager.layouts.kind import LayoutKind
from stager.reader.samples.computed.rules import Generated, Rule

SCHEME: Final = "python:"
OPTIONS: Final = {"count": 0, "seed": 0, "variants": 1}
COUNT_MAX: Final = 1 << 31


class PythonLayout:
    """`count` indexes, and of each so many `variants`."""

    is_computed: Literal[True] = True
    counters: Mapping[str, Count] = MappingProxyType({})

    def __init__(self, options: Mapping[str, Any]) -> None:
        count, seed, variants = (options[name] for name in OPTIONS)
        self._rule = Generated(count * variants, seed, variants)

    def rules(self, listing: Listing) -> Sequence[Rule]:
        return [self._rule]


def check_options(options: Mapping[str, Any]) -> dict[str, Any]:
    checked = {**OPTIONS, **{name: value for name, value in options.items() if name != "args"}}
    for name, value in checked.items():
        if type(value) is not int:
            raise UsageError(f"{name} must be a whole number, not {value!r}", hint=f"as in {name} = 5")
    if "count" not in options:
        raise UsageError("the layout python has no count", hint="say how many samples: count = 100_000")
    if checked["count"] < 1 or checked["variants"] < 1 or checked["seed"] < 0:
        raise UsageError("count and variants are at least 1, and seed is at least 0", hint="count = 100_000")
    if checked["count"] * checked["variants"] > COUNT_MAX:
        raise UsageError(f"count x variants is more than {COUNT_MAX:,}", hint="make several data sets of it")
    return checked


def recipe_of(table: Mapping[str, Any]) -> dict[str, Any]:
    """The recipe of such a data set: its source names the function, `args` what it is given."""
    source, recipe = str(table["source"]), dict(table.get("recipe", {}))
    if not source.startswith(SCHEME):
        raise UsageError(
            f"the layout python has the source {source!r}", hint='as in source = "python:simulator:sequence"'
        )
    for key in ("kind", "prepare", "args"):
        if key in recipe and (key, recipe[key]) != ("kind", "python"):
            raise UsageError(f"the recipe has {key}", hint="source and args of the data set say that")
    return {"kind": "python", "prepare": source.removeprefix(SCHEME), "args": table.get("args", {}), **recipe}


PYTHON: Final = LayoutKind(
    (*OPTIONS, "args"),
    check_options,
    lambda options, recipe, left_out: PythonLayout(options),
    recipe=recipe_of,
)
