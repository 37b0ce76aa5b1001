"""Numbers in runs: what an array of them would be, without one."""

from collections.abc import Iterable, Iterator
from typing import Any, overload

import numpy as np

from stager.reader.values import Mask, Numbers


class Runs:
    """Numbers one after the other, in a few runs of (first, count) that do not overlap."""

    def __init__(self, runs: Iterable[tuple[int, int]]) -> None:
        self.runs = tuple((int(first), int(count)) for first, count in runs if count)
        counts = [count for _, count in self.runs]
        self._firsts: Numbers = np.asarray([first for first, _ in self.runs] or [0], dtype=np.int64)
        self._ends: Numbers = np.cumsum(counts or [0])
        self._begins = self._ends - (counts or [0])

    def __len__(self) -> int:
        return int(self._ends[-1])

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
        if at.size and not 0 <= at.min() <= at.max() < len(self):
            raise IndexError(f"there are {len(self)} numbers")
        run = np.searchsorted(self._ends, at, side="right").clip(max=len(self._ends) - 1)
        return np.asarray(at - self._begins[run] + self._firsts[run])

    def find(self, numbers: Numbers) -> Numbers:
        """The position of each of these numbers; -1: it is not here."""
        found = np.full(len(numbers), -1, dtype=np.int64)
        for begin, (first, count) in zip(self._begins.tolist(), self.runs, strict=False):
            inside = (numbers >= first) & (numbers < first + count)
            found[inside] = numbers[inside] - first + begin
        return found

    def without(self, positions: Numbers) -> "Runs":
        """All but those at these positions."""
        left: list[tuple[int, int]] = []
        begin = 0
        for position in [*np.unique(positions).tolist(), len(self)]:
            left += self._between(begin, position)
            begin = position + 1
        return Runs(left)

    def _between(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """The runs of the numbers between two positions."""
        for start, (first, count) in zip(self._begins.tolist(), self.runs, strict=False):
            skip, stop = max(begin - start, 0), min(end - start, count)
            if skip < stop:
                yield first + skip, stop - skip


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
