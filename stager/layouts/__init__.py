"""Layouts: how a source's objects become samples with labels and attributes."""

from collections.abc import Mapping
from typing import Any, Final

from stager.errors import UsageError, nearest
from stager.interfaces import ComputedLayout, Layout, LeftOut, Opener, Recipe
from stager.layouts.folder import FOLDER
from stager.layouts.kind import LayoutKind
from stager.layouts.packed.kinds import PARQUET, TAR
from stager.layouts.python import PYTHON, SCHEME
from stager.layouts.table.layout import TABLE
from stager.layouts.volume.layout import VOLUME

LAYOUTS: Final[dict[str, LayoutKind]] = {
    "folder": FOLDER,
    "table": TABLE,
    "tar": TAR,
    "parquet": PARQUET,
    "volume": VOLUME,
    "python": PYTHON,
}
OPTIONS: Final = tuple(dict.fromkeys(name for kind in LAYOUTS.values() for name in kind.options))  # of any


def check_layout(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a layout, checked. Raise UsageError if there is no such layout, or no such option."""
    if name not in LAYOUTS:
        raise UsageError(f"there is no layout {name!r}", hint=nearest(name, LAYOUTS))
    known = LAYOUTS[name].options
    for option in options:
        if option not in known:
            others = [other for other, kind in LAYOUTS.items() if option in kind.options]
            hint = f'layout = "{others[0]}" has' if others else nearest(option, known)
            raise UsageError(f"the layout {name} has no option {option!r}", hint=hint)
    return LAYOUTS[name].check(options)


def default_layout(source: str) -> str:
    """The layout of a data set that names none."""
    return "python" if source.startswith(SCHEME) else "folder"


def recipe_table(name: str, table: Mapping[str, Any]) -> Mapping[str, Any]:
    """The recipe's table of a data set's table, with what the layout says of it. Raise UsageError."""
    return LAYOUTS[name].recipe(table)


def open_layout(
    name: str, options: Mapping[str, Any], recipe: Recipe, left_out: LeftOut
) -> Layout | ComputedLayout:
    """A layout for one scan, which counts what it leaves out."""
    return LAYOUTS[name].open(options, recipe, left_out)


def open_opener(name: str, options: Mapping[str, Any]) -> Opener | None:
    """What takes samples out of objects that have several; None: each object is one."""
    return LAYOUTS[name].opener(options)
