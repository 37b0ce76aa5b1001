"""What a kind of layout has: its options, how one is opened for a scan, and its opener."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from stager.interfaces import ComputedLayout, Layout, LeftOut, Opener, Recipe

Options = Mapping[str, Any]  # keys of a data set's table in stager.toml


@dataclass(frozen=True, slots=True)
class LayoutKind:
    """One of the layouts that a data set may name."""

    options: tuple[str, ...]  # that it knows
    check: Callable[[Options], dict[str, Any]]  # every option, with its default if it was not given
    open: Callable[[Options, Recipe, LeftOut], Layout | ComputedLayout]  # of options that were checked
    opener: Callable[[Options], Opener | None] = lambda options: None
