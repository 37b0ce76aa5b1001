"""What one version of a data set has and another has not: samples that came, changed, went or moved."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stager.reader.samples.manifest import ListedManifest, Manifest
from stager.reader.samples.runs import Collection, Runs
from stager.reader.samples.sample_list import SampleList
from stager.reader.values import Numbers

KINDS: Final = ("added", "changed", "removed", "moved")
KEYS_TOLD: Final = 1_000  # of each kind, the first ones; the counts are of all
SUSPECT_PART: Final = 0.05  # of a source that is gone at once: a mount that is half there looks like this
_SAID: Final = {"moved": "moved to another class or split"}


@dataclass(frozen=True, slots=True)
class Changes:
    """How many samples there are of each kind, and the first keys of each."""

    before: int  # samples that the older version has
    same: int  # of them, by key, version, label and split
    added: int = 0
    changed: int = 0  # another version of the same key
    removed: int = 0
    moved: int = 0  # another label or split, of the same bytes
    keys: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def is_suspect(self) -> bool:
        """Whether so much is gone that it may be the source which is: nobody takes this for a deletion."""
        return self.removed > SUSPECT_PART * self.before

    def __str__(self) -> str:
        return say_counts(self.to_json())

    def to_json(self) -> dict[str, Any]:
        counts = {name: getattr(self, name) for name in ("before", "same", *KINDS)}
        return counts | {"keys": {kind: list(keys) for kind, keys in self.keys.items()}}


@dataclass(frozen=True, slots=True)
class VersionRows:
    """Samples of one version, a row each."""

    key: Callable[[int], str]
    tags: npt.NDArray[np.uint64]  # of key and version
    key_hashes: npt.NDArray[np.uint64]
    labels: npt.NDArray[np.integer[Any]]
    classes: tuple[str, ...]
    split_of: npt.NDArray[np.integer[Any]]
    splits: tuple[str, ...]


def say_counts(told: dict[str, Any]) -> str:
    """The four counts, as far as they are any, from their JSON."""
    parts = [f"{told[kind]:,} {_SAID.get(kind, kind)}" for kind in KINDS if told[kind]]
    return f"{', '.join(parts) or 'nothing has changed'}; {told['same']:,} are the same"


def compare(before: Manifest | None, after: Manifest) -> Changes:
    """What `after` has that `before` has not, and the other way round. None: nothing was known."""
    if before is None:
        return Changes(0, 0, added=len(after))
    if isinstance(before, ListedManifest) and isinstance(after, ListedManifest):
        return compare_rows(_rows_of(before), _rows_of(after))
    return compare_numbers(before.numbers, after.numbers, after.records)


def compare_numbers(before: Collection, after: Collection, records: SampleList) -> Changes:
    """The same of samples that follow from rules. Those of a rule that both have are the same, or changed.

    One that lacks a chunk which it had counts as removed: so many of them may be a mount that is gone.
    `records`: the list that the numbers are of, which a later version only adds to.
    """
    if not isinstance(before, Runs) or not isinstance(after, Runs):
        return Changes(len(before), 0, added=len(after), removed=len(before))
    came = after.less(before)
    same = len(after) - len(came)
    were, are = records.counts_of_rules(before), records.counts_of_rules(after)
    changed = sum(min(were[rule], are[rule]) for rule in were.keys() & are.keys()) - same
    added, removed = len(after) - same - changed, len(before) - same - changed
    lost = _lost(before, came, records) if changed else Runs(())
    keys: dict[str, tuple[str, ...]] = {}
    if changed and changed == len(came):  # else some of them are of a rule that is new
        told = {"changed": came.less(lost), "removed": lost}
        keys = {kind: tuple(map(records.key, of[:KEYS_TOLD].tolist())) for kind, of in told.items() if of}
    return Changes(len(before), same, added, changed - len(lost), removed + len(lost), keys=keys)


def _lost(before: Runs, came: Runs, records: SampleList) -> Runs:
    """Of samples that came in the place of others: those that lack an object which the others had."""
    lost = Runs(())
    for (first, segment), (other_first, other) in product(records.computed(), repeat=2):
        rows = segment.rows_among(came, first)
        if rows and records.is_of_one_rule(first, other_first):
            rows = rows.both(other.rows_among(before, other_first))
            lacking = segment.rule.lacking(other.rule, rows)
            lost = lost.either(segment.numbers_of(lacking, first))
    return lost


def compare_rows(before: VersionRows, after: VersionRows) -> Changes:
    """By tags, which are of key and version, and not by numbers: the two may be of different lists."""
    was_at = join(after.tags, before.tags)
    came, stayed = np.flatnonzero(was_at < 0), np.flatnonzero(was_at >= 0)
    is_gone = np.ones(len(before.tags), dtype=np.bool_)
    is_gone[was_at[stayed]] = False
    gone = np.flatnonzero(is_gone)
    again = join(after.key_hashes[came], before.key_hashes[gone])
    has_key = np.zeros(len(gone), dtype=np.bool_)
    has_key[again[again >= 0]] = True
    has_moved = _moved(before, was_at[stayed], after, stayed)
    places = {
        "added": (after, came[again < 0]),
        "changed": (after, came[again >= 0]),
        "removed": (before, gone[~has_key]),
        "moved": (after, stayed[has_moved]),
    }
    counts = {kind: len(at) for kind, (_, at) in places.items()}
    keys = {
        kind: tuple(rows.key(int(place)) for place in at[:KEYS_TOLD])
        for kind, (rows, at) in places.items()
        if len(at)
    }
    return Changes(len(before.tags), len(stayed) - counts["moved"], **counts, keys=keys)


def _rows_of(manifest: ListedManifest) -> VersionRows:
    return VersionRows(
        manifest.key,
        manifest.tags,
        manifest.key_hashes,
        manifest.labels,
        manifest.classes,
        manifest.split_of,
        manifest.splits,
    )


def _moved(before: VersionRows, was_at: Numbers, after: VersionRows, at: Numbers) -> npt.NDArray[np.bool_]:
    """Which samples that both have are of another class or split, by name."""
    label = _renamed(before.classes, after.classes)[before.labels[was_at]]
    split = _renamed(before.splits, after.splits)[before.split_of[was_at]]
    return np.asarray((label != after.labels[at]) | (split != after.split_of[at]))


def _renamed(before: tuple[str, ...], after: tuple[str, ...]) -> Numbers:
    """For each number of a name before, the one that it has after; -1: there is no such name."""
    number_of = {name: number for number, name in enumerate(after)}
    return np.asarray([number_of.get(name, -1) for name in before], dtype=np.int64)


def join(ours: npt.NDArray[np.uint64], others: npt.NDArray[np.uint64]) -> Numbers:
    """For each of ours, which are all different, its place among the others; -1: it is not there.

    Two scans of one source are mostly alike: what they begin and end with needs no search. For the rest,
    both are sorted: a million look-ups all over a sorted array take seconds, in rising order a moment.
    """
    shortest = min(len(ours), len(others))
    head = _alike(ours[:shortest], others[:shortest])
    tail = _alike(ours[len(ours) - shortest + head :][::-1], others[len(others) - shortest + head :][::-1])
    found = np.full(len(ours), -1, dtype=np.int64)
    found[:head] = np.arange(head)
    found[len(ours) - tail :] = np.arange(len(others) - tail, len(others))
    ours, others = ours[head : len(ours) - tail], others[head : len(others) - tail]
    if len(ours) and len(others):
        order, other_order = np.argsort(ours), np.argsort(others)
        ours, others = ours[order], others[other_order]
        places = np.searchsorted(others, ours).clip(max=len(others) - 1)
        found[head + order] = np.where(others[places] == ours, head + other_order[places], -1)
    return found


def _alike(ours: npt.NDArray[np.uint64], others: npt.NDArray[np.uint64]) -> int:
    """How many of the first are the same in both, which are equally long."""
    differ = ours != others
    return int(np.argmax(differ)) if differ.any() else len(differ)
