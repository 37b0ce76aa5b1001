"""Layouts: how a source's objects become samples with labels and attributes."""

from collections.abc import Mapping
from typing import Any, Final

from stager.errors import UsageError, nearest
from stager.interfaces import Layout, LeftOut, Opener, Recipe
from stager.layouts.folder import FolderLayout
from stager.layouts.table import TableLayout, check_table, opener_of

LAYOUTS: Final = ("folder", "table")


def check_layout(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a layout, checked. Raise UsageError if there is no such layout, or no such option."""
    if name not in LAYOUTS:
        raise UsageError(f"there is no layout {name!r}", hint=nearest(name, LAYOUTS))
    if name == "table":
        return check_table(options)
    for option in options:
        raise UsageError(f"the layout {name} has no option {option!r}", hint='layout = "table" has')
    return {}


def open_layout(name: str, options: Mapping[str, Any], recipe: Recipe, left_out: LeftOut) -> Layout:
    """A layout for one scan, which counts what it leaves out."""
    if name == "table":
        return TableLayout(options, recipe.needs, left_out)
    return FolderLayout(recipe.takes, left_out)


def open_opener(name: str, options: Mapping[str, Any]) -> Opener | None:
    """What takes samples out of objects that have several; None: each object is one."""
    return opener_of(options) if name == "table" else None
