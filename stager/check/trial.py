"""One guess at a place, tried with a few samples: each is fetched and prepared as a job would do it."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from stager.errors import SampleError, StagerError
from stager.interfaces import (
    Asked,
    Data,
    Entry,
    Folders,
    Layout,
    LeftOut,
    Listing,
    Looked,
    Opener,
    Recalled,
    Recipe,
)
from stager.layouts import check_layout, open_layout, open_opener
from stager.layouts.kind import Guess
from stager.reader.values import ObjectInfo, Part
from stager.recipes import KINDS, check_kind, open_recipe

SAMPLES: Final = 10
ANYTHING: Final = "bytes"  # the kind of recipe that takes whatever there is


@dataclass(frozen=True, slots=True)
class TriedSample:
    """A sample that was tried: what became of it, or why nothing did."""

    key: str
    split: str
    label: str
    attributes: dict[str, Any]
    fields: dict[str, str]  # dtype and shape, by name
    error: str = ""


@dataclass(frozen=True, slots=True)
class Trial:
    """A layout and a recipe, and how they fared."""

    layout: str
    options: Mapping[str, Any]
    recipe: Mapping[str, Any]
    samples: Sequence[TriedSample]
    found: int  # samples of the objects that were looked into
    left_out: str
    problem: str = ""  # why it was not even tried
    about: Sequence[str] = ()  # lines for a person

    @property
    def good(self) -> int:
        return sum(not sample.error for sample in self.samples)

    @property
    def kind(self) -> str:
        return str(self.recipe["kind"])

    @property
    def fits(self) -> bool:
        """Whether at least half of the samples that were tried are good."""
        return bool(self.samples) and 2 * self.good >= len(self.samples)


@dataclass
class Few:
    """A listing of a few objects of a source."""

    source: Listing
    infos: Sequence[ObjectInfo]
    _parts: dict[Part, memoryview] = field(default_factory=dict)

    def objects(self, under: str = "") -> Iterator[ObjectInfo]:
        return (info for info in self.infos if info.key.startswith(under))

    def read(self, part: Part) -> memoryview:
        return self.source.read(part)

    def side_by_side(self, objects: Iterable[Asked], look: Callable[[Asked], Looked]) -> Iterator[Looked]:
        return self.source.side_by_side(objects, look)

    def known(self, info: ObjectInfo) -> Recalled | None:
        return None

    def data_of(self, entry: Entry, opener: Opener | None) -> Sequence[Data]:
        """What a recipe is given of a sample. Raise SampleError."""
        for part in entry.parts:
            if part not in self._parts:
                self._parts[part] = self.read(part)
        data = [self._parts[part] for part in entry.parts]
        if opener is None or entry.at is None:
            return data
        return opener.take([opener.open(number, part) for number, part in enumerate(data)], entry.at)


def try_guess(name: str, guess: Guess, listing: Listing) -> Iterator[Trial]:
    """Try a layout with each recipe that may take what it finds."""
    few = Few(listing, guess.objects)
    anything = open_recipe({"kind": ANYTHING, "path": guess.path})
    entries, _, _, left_out = _scan(name, guess.options, anything, few)
    if not entries:
        yield Trial(name, guess.options, {"kind": ""}, (), 0, left_out)
        return
    kinds = [kind for kind in KINDS if _of_kind(entries, guess, kind)]
    for kind in kinds or sorted(KINDS, key=lambda kind: kind == ANYTHING):
        trial = _try_kind(name, guess, kind, _of_kind(entries, guess, kind) if kinds else entries, few)
        yield trial
        if trial.fits and not kinds:
            return


def _of_kind(entries: Sequence[Entry], guess: Guess, kind: str) -> Sequence[Entry]:
    """The entries whose names end as this kind of recipe takes them."""
    endings = KINDS[kind].takes.endings
    if guess.path and "{" not in guess.path:
        return entries if endings and f".{guess.path}".endswith(endings) else ()
    keys = [entry.parts[0].info.key.lower() if entry.parts else "" for entry in entries]
    return [entry for entry, key in zip(entries, keys, strict=True) if endings and key.endswith(endings)]


def _try_kind(name: str, guess: Guess, kind: str, entries: Sequence[Entry], few: Few) -> Trial:
    spec: dict[str, Any] = {"kind": kind} | ({"path": guess.path} if guess.path else {})
    opener = open_opener(name, check_layout(name, guess.options))
    try:
        check_kind(kind)
        guessed = KINDS[kind].guess(list(_first_parts(spread(entries), opener, few)))
        if guess.box and KINDS[kind].boxed:
            guessed = {"box": list(guess.box), **KINDS[kind].boxed}
        spec |= guessed
        recipe = open_recipe(spec)
        found, layout, labels, left_out = _scan(name, guess.options, recipe, few)
    except StagerError as error:
        return Trial(name, guess.options, spec, (), len(entries), "", error.message)
    samples = [_sample(entry, labels, layout, recipe, opener, few) for entry in spread(found)]
    return Trial(name, guess.options, spec, samples, len(found), left_out)


def _first_parts(entries: Sequence[Entry], opener: Opener | None, few: Few) -> Iterator[Data]:
    """Of those that can be had."""
    for entry in entries:
        with suppress(SampleError):  # it is told of where it is tried
            yield few.data_of(entry, opener)[0]


def _scan(
    name: str, options: Mapping[str, Any], recipe: Recipe, few: Few
) -> tuple[Sequence[Entry], Layout, Mapping[Folders, tuple[str, str]], str]:
    """What a layout finds and how it labels that, and what it leaves out."""
    left_out = LeftOut(recipe.takes)
    layout = open_layout(name, check_layout(name, options), recipe, left_out)
    assert not layout.is_computed, "a layout that guesses has something to list"
    entries = list(layout.entries(few))
    labels = layout.label({entry.path for entry in entries})
    return [entry for entry in entries if entry.path in labels], layout, labels, left_out.line()


def _sample(
    entry: Entry,
    labels: Mapping[Folders, tuple[str, str]],
    layout: Layout,
    recipe: Recipe,
    opener: Opener | None,
    few: Few,
) -> TriedSample:
    split, label = labels[entry.path]
    names = [attribute.name for attribute in layout.attributes]
    about = entry.key, split, label, dict(zip(names, entry.values, strict=True))
    try:
        arrays = recipe.prepare(few.data_of(entry, opener), entry.inputs)
    except SampleError as error:
        return TriedSample(*about, {}, f"{error.reason}: {error.message}")
    except Exception as error:  # as in a worker: what a recipe did not expect is that sample's failure
        return TriedSample(*about, {}, f"{type(error).__name__}: {error}")
    return TriedSample(*about, {name: shape_of(array) for name, array in arrays.items()})


def shape_of(array: Any) -> str:
    """The dtype and the shape of a field, for a person."""
    return f"{array.dtype} {'x'.join(map(str, array.shape))}"


def spread(entries: Sequence[Entry]) -> Sequence[Entry]:
    """A few of them, from all over."""
    return entries[:: max(len(entries) // SAMPLES, 1)][:SAMPLES]
