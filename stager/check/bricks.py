"""A guess at volumes, tried with a few bricks: each is fetched and prepared as a job would do it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np

from stager.check.trial import Trial, TriedSample, shape_of
from stager.errors import SampleError, SourceError, StagerError
from stager.interfaces import Fetched, LeftOut, Listing, Opener, Recipe, Scanning
from stager.layouts import LAYOUTS, check_layout, open_layout, open_opener
from stager.layouts.kind import Guess
from stager.reader.values import ObjectInfo, Part, SampleInfo, SourceSpec
from stager.recipes import check_kind, open_recipe
from stager.sources.unpacked import UnpackedSource

BRICKS: Final = 10


def try_bricks(name: str, guess: Guess, listing: Listing) -> Trial:
    """Try a layout of computed samples, with the recipe that it has named."""
    recipe_table = dict(guess.recipe or {})
    try:
        check_kind(str(recipe_table["kind"]))
        recipe = open_recipe(recipe_table)
        options, left_out = check_layout(name, guess.options), LeftOut(recipe.takes)
        layout = open_layout(name, options, recipe, left_out)
        assert layout.is_computed, "others are tried by their entries"
        rules = layout.rules(listing)
    except SourceError:
        raise
    except StagerError as error:
        return Trial(name, guess.options, recipe_table, (), 0, "", error.message)
    count = sum(rule.count for rule in rules)
    opener, unpack = open_opener(name, options), LAYOUTS[name].unpack
    assert opener is not None, "bricks are taken of chunks"
    picked = np.unique(np.linspace(0, count - 1, BRICKS).astype(np.int64))
    infos: list[SampleInfo] = []
    for rule in rules:
        infos += rule.infos(picked[picked < rule.count])
        picked = picked[picked >= rule.count] - rule.count
    with TemporaryDirectory(prefix="stager-check-") as scratch:
        source = _Listed(listing)
        read = _reader(UnpackedSource(source, SourceSpec(""), unpack, Path(scratch)) if unpack else source)
        samples = [_tried(info, recipe, opener, read) for info in infos]
    return Trial(name, guess.options, recipe_table, samples, count, left_out.line(), about=guess.about)


class _Listed:
    """What a listing reads, as a source has it."""

    def __init__(self, listing: Listing) -> None:
        self._listing = listing

    def scan(self, scanning: Scanning | None = None) -> Iterator[ObjectInfo]:
        return self._listing.objects(scanning.under if scanning else "")

    def start(self, part: Part, done: Callable[[Fetched], None]) -> None:
        try:
            fetched: Fetched = self._listing.read(part)
        except StagerError as error:
            fetched = error
        done(fetched)


def _reader(source: _Listed | UnpackedSource) -> Callable[[Part], memoryview]:
    def read(part: Part) -> memoryview:
        came: SimpleQueue[Fetched] = SimpleQueue()
        source.start(part, came.put)
        fetched = came.get()
        if isinstance(fetched, Exception):
            raise fetched
        return fetched

    return read


def _tried(
    info: SampleInfo, recipe: Recipe, opener: Opener, read: Callable[[Part], memoryview]
) -> TriedSample:
    about: tuple[str, str, str, dict[str, Any]] = info.key, "", "", {}
    try:
        opened = [opener.open(number, read(part)) for number, part in enumerate(info.parts)]
        arrays = recipe.prepare(opener.take(opened, info.at), info.inputs)
    except SampleError as error:
        return TriedSample(*about, {}, f"{error.reason}: {error.message}")
    return TriedSample(*about, {name: shape_of(array) for name, array in arrays.items()})
