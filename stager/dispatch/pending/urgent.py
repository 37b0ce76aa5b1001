"""What comes before all jobs: samples that a reader waits for, or that a dead worker had."""

from bisect import insort
from collections.abc import Callable, Iterator
from typing import Final

from stager.dispatch.places import Places
from stager.dispatch.task import Lot

HUNG_MOST: Final = 64  # lots that wait for a source that hangs; who needs more asks again


class Urgent:
    """Lots in the order in which they are given out: the nearest first."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._lots: list[tuple[int, Lot]] = []

    def __iter__(self) -> Iterator[Lot]:
        return (lot for _, lot in self._lots)

    def put(self, lot: Lot, distance: int) -> None:
        """`distance`: how many samples the reader reads before."""
        insort(self._lots, (distance, lot), key=lambda urgent: urgent[0])

    def take(self, may_begin: Callable[[Lot], bool], missing: Callable[[Lot], Lot | None]) -> Lot | None:
        """The next one that may begin, of what of it is missing; None if there is none."""
        found, later, hung = None, [], 0
        while self._lots and found is None:
            distance, lot = self._lots.pop(0)
            hangs = self._places.hung(lot.dataset.spec.source) is not None
            hung += hangs
            if may_begin(lot):
                found = missing(lot)
            elif not hangs or hung <= HUNG_MOST:
                later.append((distance, lot))
        self._lots[:0] = later
        return found
