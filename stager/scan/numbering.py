"""Computed samples get their numbers: what follows from a rule that is known keeps those that it had."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from stager.reader.samples.computed.rules import Rule
from stager.reader.samples.manifest import Manifest
from stager.reader.samples.runs import Runs
from stager.reader.samples.sample_list import SampleList
from stager.reader.samples.segments import ComputedSegment
from stager.reader.values import Numbers, canonical_json


class Numbered(NamedTuple):
    """The numbers of all samples of some rules, in order, and the segments that a list is to get for them."""

    numbers: Runs
    added: list[ComputedSegment]


class _Pieces:
    """Which rows of a rule have which numbers, piece by piece."""

    def __init__(self) -> None:
        self._pieces = [np.zeros((3, 0), np.int64)]

    def add(self, rows: Runs, segment: ComputedSegment, first: int) -> None:
        """These rows have the numbers that they have in a segment that begins with this one."""
        numbers = segment.of_rule.find(rows.firsts) + first
        self._pieces.append(np.stack([rows.firsts, numbers, rows.counts]))

    def in_order(self) -> Numbers:
        """Numbers and counts, by the rows."""
        pieces = np.concatenate(self._pieces, axis=1)
        return np.asarray(pieces[1:, np.argsort(pieces[0])])


def number_rules(rules: Sequence[Rule], records: SampleList) -> Numbered:
    """A sample of a rule of the same identity, of which nothing has changed, has its number already."""
    added: list[ComputedSegment] = []
    found = [np.zeros((2, 0), np.int64)]
    behind = len(records)
    for rule in rules:
        pieces, left = _Pieces(), Runs([(0, rule.count)])
        for first, segment in records.computed():
            here = segment.of_rule.both(left)
            if len(here) and segment.rule.identity == rule.identity:
                same = here.less(rule.changed(segment.rule, here))
                pieces.add(same, segment, first)
                left = left.less(same)
        if len(left):
            added.append(ComputedSegment(rule.narrowed(left), left))
            pieces.add(left, added[-1], behind)
            behind += len(left)
        found.append(pieces.in_order())
    return Numbered(Runs.of(*np.concatenate(found, axis=1)), added)


def replaced(rules: Sequence[Rule], now: Runs, newest: Manifest | None) -> Numbers:
    """Runs of samples of the newest manifest that have other numbers now: those before, these, how many."""
    found = [np.zeros((3, 0), np.int64)]
    if newest is None or not isinstance(newest.numbers, Runs):
        return found[0]
    before = newest.numbers
    was_at = {
        canonical_json(rule.identity): (place, rule.count)
        for place, rule in _placed(newest.records.rules(before))
    }
    for place, rule in _placed(rules):
        was, count = was_at.get(canonical_json(rule.identity), (0, 0))
        count = min(count, rule.count)
        ends: Numbers = np.asarray([0, count])
        cuts: Numbers = np.unique(np.concatenate([ends, before.begins - was, now.begins - place]))
        cuts = cuts[(cuts >= 0) & (cuts <= count)]
        many = np.diff(cuts)
        old, new = before[was + cuts[:-1]], now[place + cuts[:-1]]
        found.append(np.stack([old, new, many])[:, old != new])
    return np.concatenate(found, axis=1)


def _placed(rules: Iterable[Rule]) -> Iterator[tuple[int, Rule]]:
    """Rules, each with the place of its first sample."""
    place = 0
    for rule in rules:
        yield place, rule
        place += rule.count
