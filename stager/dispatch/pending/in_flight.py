"""Which samples are in a task now."""

from collections.abc import Iterable

import numpy as np

from stager.cache.dataset import Dataset
from stager.dispatch.task import Lot
from stager.reader.samples.by_number import ByNumber


class InFlight:
    """Marks by data set. None of a data set is set while its list is made anew."""

    def __init__(self) -> None:
        self._marks: dict[tuple[int, bool], ByNumber] = {}

    def of(self, dataset: Dataset, for_reader: bool = False) -> ByNumber:
        """The marks of a data set: of all tasks, or of those for a reader."""
        return self._marks.setdefault((dataset.id, for_reader), ByNumber(np.bool_))

    def mark(self, lot: Lot) -> None:
        for marks in self._all(lot):
            marks[lot.samples] = True

    def clear(self, lot: Lot, others: Iterable[Lot]) -> None:
        """A task is over. The lots of the others may have some of its samples, too."""
        for marks in self._all(lot):
            marks[lot.samples] = False
        for other in others:
            if other.dataset is lot.dataset:
                self.mark(other)

    def _all(self, lot: Lot) -> list[ByNumber]:
        return [self.of(lot.dataset, kind) for kind in {False, lot.is_for_reader}]
