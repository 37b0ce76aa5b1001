"""Samples with which a worker died: found by halves, tried alone, and given up if they kill one more."""

from collections.abc import Callable, Iterator

import numpy as np

from stager.dispatch.task import Lot, Purpose, Suspect

Failed = tuple[int, str, str]  # a sample, the reason, and what is told of it


class Suspects:
    """Each waits until it can be tried with nothing beside it."""

    def __init__(self) -> None:
        self._waiting: list[Suspect] = []

    def __iter__(self) -> Iterator[Suspect]:
        return iter(self._waiting)

    def put_back(self, lot: Lot, again: Callable[[Lot], None]) -> list[Failed]:
        """Have the samples of a dead worker staged again, in halves; return those that failed for good."""
        purpose = Purpose.READ if lot.is_for_reader else Purpose.KEEP
        if len(lot.samples) > 1:
            for half in np.array_split(lot.samples, 2):
                again(Lot(lot.dataset, half, lot.format, purpose))
            return []
        if not isinstance(lot, Suspect):  # the worker had other tasks, too: it may have been one of theirs
            self._waiting.append(Suspect(lot.dataset, lot.samples, lot.format, purpose))
            return []
        return [(int(lot.samples[0]), "crashed", "preparing it ended the worker")]

    def take(self, may_begin: Callable[[Lot], bool], missing: Callable[[Lot], Lot | None]) -> Lot | None:
        """The next one that may begin and is still missing; None if there is none."""
        for suspect in list(self._waiting):
            if may_begin(suspect):
                self._waiting.remove(suspect)
                if (lot := missing(suspect)) is not None:
                    return lot
        return None
