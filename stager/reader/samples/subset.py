"""The part of a manifest that is wanted, drawn the same way wherever it is drawn."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stager.errors import UsageError, nearest
from stager.reader.samples.manifest import ComputedManifest, ListedManifest, Manifest
from stager.reader.samples.predicate import select
from stager.reader.samples.runs import Collection, Runs
from stager.reader.values import Numbers, decode_key, key_hash

Hashes = npt.NDArray[np.uint64]

DRAW_PLACES: Final = 1 << 17  # of a computed manifest, looked at at once


@dataclass(frozen=True, slots=True)
class Subset:
    """Which samples are wanted. Draws with one seed are nested: fewer classes are part of more."""

    classes: int | tuple[str, ...] | None = None
    seed: int = 0
    per_class: int | None = None
    fraction: float | None = None
    where: str | None = None
    split: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.classes, int) and self.classes < 1:
            raise UsageError(f"classes is {self.classes}", hint="ask for at least one")
        if self.per_class is not None and self.per_class < 1:
            raise UsageError(f"samples of each class: {self.per_class}", hint="ask for at least one")
        if self.fraction is not None and not 0 < self.fraction <= 1:
            raise UsageError(
                f"a fraction of {self.fraction} makes no sense", hint="use a number above 0, at most 1"
            )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Subset":
        classes = value.get("classes")
        return cls(**{**value, "classes": tuple(classes) if isinstance(classes, list) else classes})


@dataclass(frozen=True, slots=True)
class Drawn:
    """A subset of one manifest: its places in rising order, their samples, and the drawn classes, sorted."""

    places: Collection
    numbers: Collection
    classes: tuple[str, ...]


def parse_classes(text: str | None) -> int | tuple[str, ...] | None:
    """100 is a count, a,b,c are names, @file has a name a line. A class called 100 is written `100,`."""
    if text is None:
        return None
    if text.startswith("@"):
        try:
            names = [line.strip() for line in decode_key(Path(text[1:]).read_bytes()).split("\n")]
        except OSError as error:
            raise UsageError(
                f"--classes {text}: {error}", hint="a text file with one class name on each line"
            ) from None
        names = [name for name in names if name and not name.startswith("#")]
    elif text.isdecimal():
        return int(text)
    else:
        names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise UsageError(f"--classes {text!r} names no class", hint="use a count, names (a,b,c) or @file")
    return tuple(dict.fromkeys(names))


def draw(manifest: Manifest, subset: Subset) -> Drawn:
    """The samples of a subset. Pure: the same manifest and subset give the same samples everywhere."""
    if isinstance(manifest, ComputedManifest):
        return _draw_computed(manifest, subset)
    assert isinstance(manifest, ListedManifest), "there is no third kind"
    return _draw_listed(manifest, subset)


def _draw_computed(manifest: ComputedManifest, subset: Subset) -> Drawn:
    """All of one class: what is left is how many. Nobody looks at a million samples at once."""
    if subset.where is not None:
        raise UsageError(
            "samples that are computed have no columns to choose by",
            hint="choose by --fraction or --per-class instead of --where",
        )
    if subset.split is not None:
        _splits(manifest, subset.split)
    _classes(manifest, subset, np.zeros(1, np.int32))
    count = len(manifest)
    wanted = count if subset.fraction is None else math.ceil(count * subset.fraction)
    wanted = wanted if subset.per_class is None else min(wanted, subset.per_class)
    if wanted == count:
        return Drawn(Runs([(0, count)]), manifest.numbers, manifest.classes)
    places = _lowest(count, wanted, subset.seed)
    return Drawn(places, manifest.numbers[places], manifest.classes)


def _lowest(count: int, wanted: int, seed: int) -> Numbers:
    """The places with the lowest ranks, in rising order. Fewer are part of more."""
    ranks, found = np.zeros(0, np.uint64), np.zeros(0, np.int64)
    for start in range(0, count, DRAW_PLACES):
        places = np.arange(start, min(start + DRAW_PLACES, count))
        ranks, found = np.append(ranks, mix(places.astype(np.uint64), seed)), np.append(found, places)
        if len(found) > wanted:
            lowest = np.argpartition(ranks, wanted - 1)[:wanted]
            ranks, found = ranks[lowest], found[lowest]
    return np.sort(found)


def _draw_listed(manifest: ListedManifest, subset: Subset) -> Drawn:
    wanted = np.ones(len(manifest), dtype=np.bool_)
    if subset.split is not None:
        wanted &= np.isin(manifest.split_of, _splits(manifest, subset.split))
    present = np.flatnonzero(np.bincount(manifest.labels[wanted])).astype(np.int32)
    labels = _classes(manifest, subset, present)
    is_drawn = np.zeros(len(manifest.classes), dtype=np.bool_)
    is_drawn[labels] = True
    wanted &= is_drawn[manifest.labels]
    if subset.where is not None:
        wanted &= select(manifest, subset.where)
    places = np.flatnonzero(wanted)
    if subset.per_class is not None or subset.fraction is not None:
        places = _part(manifest, places, subset)
    return Drawn(places, manifest.numbers[places], tuple(manifest.classes[label] for label in labels))


def _splits(manifest: Manifest, text: str) -> list[int]:
    """The splits that are named: one, or several with commas."""
    names = [text] if text in manifest.splits else text.split(",")
    for name in names:
        if name not in manifest.splits:
            there = ", ".join(split for split in manifest.splits if split)
            hint = (
                f"splits of this data set: {there}" if there else "this data set has no splits: leave it out"
            )
            raise UsageError(f"there is no split {name!r}", hint=hint)
    return [manifest.splits.index(name) for name in names]


def _classes(manifest: Manifest, subset: Subset, present: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """The labels of the drawn classes, in rising order. Classes that are named may be of another split."""
    if subset.classes is None:
        return present
    if isinstance(subset.classes, int):
        if subset.classes > len(present):
            raise UsageError(
                f"{subset.classes} classes were asked for, and there are {len(present)}",
                hint=f"ask for {len(present)} at most, or leave it out for all",
            )
        hashes = np.asarray([key_hash(manifest.classes[label]) for label in present], dtype=np.uint64)
        # Ranked by hash, so that a class that is added later moves no other one.
        return np.sort(present[np.argsort(mix(hashes, subset.seed), kind="stable")[: subset.classes]])
    # Also of classes without a sample in this split: with those of another one named, labels are its labels.
    label_of = {name: label for label, name in enumerate(manifest.classes)}
    missing = [name for name in subset.classes if name not in label_of]
    if missing:
        raise UsageError(
            f"no class {missing[0]!r} in the source"
            + (f", nor {len(missing) - 1} others that are named" if len(missing) > 1 else ""),
            hint=nearest(missing[0], label_of),
        )
    return np.sort(np.asarray([label_of[name] for name in subset.classes], dtype=np.int32))


def _part(manifest: ListedManifest, places: Numbers, subset: Subset) -> Numbers:
    """Of each class the samples with the lowest ranks."""
    ranks = mix(manifest.key_hashes[places], subset.seed)
    labels = manifest.labels[places]
    order = np.lexsort((ranks, labels))
    sorted_labels = labels[order]
    starts = (
        np.flatnonzero(np.r_[True, sorted_labels[1:] != sorted_labels[:-1]])
        if len(order)
        else np.zeros(0, int)
    )
    counts = np.diff(np.r_[starts, len(order)])
    limits = counts
    if subset.fraction is not None:
        limits = np.ceil(limits * subset.fraction).astype(np.int64)
    if subset.per_class is not None:
        limits = np.minimum(limits, min(subset.per_class, len(places)))
    rank = np.arange(len(order)) - np.repeat(starts, counts)
    return np.sort(places[order[rank < np.repeat(limits, counts)]])


def mix(hashes: Hashes, seed: int) -> Hashes:
    """Hashes stirred by a seed (the finaliser of splitmix64): ranks that are independent between seeds."""
    with np.errstate(over="ignore"):
        start = np.uint64(seed % 2**64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0x632BE59BD9B4E019)
        x = hashes ^ (start ^ (start >> np.uint64(29)))
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))
