"""What a kind of layout has: its options, how it is opened, its opener, and what it makes of a place."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from stager.interfaces import ComputedLayout, Layout, LeftOut, Listing, Opener, Recipe
from stager.reader.values import ObjectInfo, Unpacked

Options = Mapping[str, Any]  # keys of a data set's table in stager.toml


class Guess(NamedTuple):
    """A way to read a place that may fit: a few of its objects tell."""

    options: Options  # of the layout
    path: str  # of the recipe
    objects: Sequence[ObjectInfo]  # to look into
    recipe: Options | None = None  # its whole table, if the layout knows it
    about: Sequence[str] = ()  # lines for a person
    box: tuple[str, ...] = ()  # the columns of a box, if it has some


def no_guesses(objects: Sequence[ObjectInfo], listing: Listing) -> Iterable[Guess]:
    return ()


@dataclass(frozen=True, slots=True)
class LayoutKind:
    """One of the layouts that a data set may name."""

    options: tuple[str, ...]  # that it knows
    check: Callable[[Options], dict[str, Any]]  # every option, with its default if it was not given
    open: Callable[[Options, Recipe, LeftOut], Layout | ComputedLayout]  # of options that were checked
    opener: Callable[[Options], Opener | None] = lambda options: None
    has_chunks: bool = False  # samples are of chunks, some of which are not there (sources/chunks.py)
    # What unpacks objects that can be read by ranges only then, of the bytes that come of them.
    unpack: Callable[[Unpacked, Iterator[memoryview]], Iterator[memoryview]] | None = None
    guesses: Callable[[Sequence[ObjectInfo], Listing], Iterable[Guess]] = no_guesses  # for `stager check`
    # The table of the recipe, of the data set's whole table: with what the layout says of it, if anything.
    recipe: Callable[[Options], Mapping[str, Any]] = lambda table: table.get("recipe", {})
