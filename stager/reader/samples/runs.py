"""Numbers in runs: what an array of them would be, without one."""

from collections.abc import Iterable
from typing import Any, Final, Self, overload

import numpy as np

from stager.reader.values import Mask, Numbers

_NONE: Final[Numbers] = np.zeros(0, np.int64)


class Runs:
    """Numbers one after the other, in a few runs of (first, count) that do not overlap."""

    def __init__(self, runs: Iterable[tuple[int, int]]) -> None:
        told = np.asarray([(first, count) for first, count in runs if count], np.int64).reshape(-1, 2)
        self._take(told[:, 0], told[:, 1])

    @classmethod
    def of(cls, firsts: Numbers, counts: Numbers) -> Self:
        """Runs that begin with these numbers, and have so many each."""
        made = cls(())
        made._take(firsts[counts > 0], counts[counts > 0])
        return made

    @classmethod
    def of_rising(cls, numbers: Numbers) -> Self:
        """The runs of numbers in rising order, each once."""
        begins = np.flatnonzero(np.diff(numbers, prepend=-2) != 1)
        return cls.of(numbers[begins], np.diff(begins, append=len(numbers)))

    def _take(self, firsts: Numbers, counts: Numbers) -> None:
        self.firsts, self.counts = firsts, counts
        self.ends: Numbers = np.cumsum(counts)  # of their positions
        self.begins = self.ends - counts
        self._order = np.argsort(firsts)

    @property
    def runs(self) -> tuple[tuple[int, int], ...]:
        """First and count of each."""
        return tuple(zip(self.firsts.tolist(), self.counts.tolist(), strict=True))

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: Any) -> Numbers: ...
    def __getitem__(self, at: Any) -> int | Numbers:
        """As an array has it: by a position, by positions, or by a slice."""
        if isinstance(at, int):
            return int(self[np.asarray([at])][0])
        if isinstance(at, slice):
            at = np.arange(*at.indices(len(self)))
        at = np.asarray(at, dtype=np.int64)
        if not at.size:
            return _NONE
        if not 0 <= at.min() <= at.max() < len(self):
            raise IndexError(f"there are {len(self)} numbers")
        run = np.searchsorted(self.ends, at, side="right")
        return np.asarray(at - self.begins[run] + self.firsts[run])

    def at(self, positions: "Runs") -> "Runs":
        """The numbers at these positions."""
        edges = positions.firsts, positions.firsts + positions.counts, self.begins
        cuts = np.unique(np.concatenate(edges))
        is_wanted = positions.find(cuts[:-1]) >= 0
        return Runs.of(self[cuts[:-1][is_wanted]], np.diff(cuts)[is_wanted])

    def find(self, numbers: Numbers) -> Numbers:
        """The position of each of these numbers; -1: it is not here."""
        if not len(self.firsts):
            return np.full(len(numbers), -1, dtype=np.int64)
        run = np.searchsorted(self.firsts, numbers, side="right", sorter=self._order) - 1
        run = self._order[run.clip(min=0)]
        behind = numbers - self.firsts[run]
        return np.where((behind >= 0) & (behind < self.counts[run]), behind + self.begins[run], -1)

    def without(self, positions: Numbers) -> "Runs":
        """All but those at these positions."""
        gone = np.unique(positions)
        cuts = np.unique(np.concatenate([self.begins, gone, gone + 1]))
        left = cuts[~np.isin(cuts, gone) & (cuts < len(self))]
        ends = np.append(cuts, len(self))[np.searchsorted(cuts, left) + 1]
        return Runs.of(self[left], ends - left)

    def rising(self) -> "Runs":
        """The same numbers, in rising order."""
        return self.either(self)

    def either(self, other: "Runs") -> "Runs":
        """The numbers that one of them has, in rising order."""
        return _joined(self, other, lambda mine, theirs: mine | theirs)

    def both(self, other: "Runs") -> "Runs":
        """The numbers that both have, in rising order."""
        return _joined(self, other, lambda mine, theirs: mine & theirs)

    def less(self, other: "Runs") -> "Runs":
        """The numbers that the other one does not have, in rising order."""
        return _joined(self, other, lambda mine, theirs: mine & ~theirs)


def _joined(one: Runs, other: Runs, takes: Any) -> Runs:
    """The numbers that are taken, by whether either has them. Between two cuts, all are alike."""
    cuts = np.unique(
        np.concatenate([edge for of in (one, other) for edge in (of.firsts, of.firsts + of.counts)])
    )
    is_taken = takes(one.find(cuts) >= 0, other.find(cuts) >= 0)
    edges = np.flatnonzero(np.diff(is_taken.astype(np.int8), prepend=0))  # of what is taken, by turns
    firsts, ends = cuts[edges[::2]], cuts[edges[1::2]]
    return Runs.of(firsts, ends - firsts)


Collection = Numbers | Runs  # of numbers, each once


def is_among(samples: Numbers, known: Collection) -> Mask:
    """Which of these samples are among the known ones, which are runs, or sorted."""
    if isinstance(known, Runs):
        return known.find(samples) >= 0
    if not len(known):
        return np.zeros(len(samples), dtype=np.bool_)
    at = np.minimum(np.searchsorted(known, samples), len(known) - 1)
    return np.asarray(known[at] == samples)


def positions_of(samples: Numbers, known: Collection) -> Numbers:
    """Where among the known ones, in whatever order they are, these samples stand, as far as they do."""
    if isinstance(known, Runs):
        found = known.find(samples)
        return np.sort(found[found >= 0])
    return np.flatnonzero(is_among(known, np.unique(samples)))


def without(known: Collection, positions: Numbers) -> Collection:
    """All but those at these positions."""
    if not len(positions):
        return known
    return known.without(positions) if isinstance(known, Runs) else np.delete(known, positions)
