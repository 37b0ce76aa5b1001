"""Samples that were resident and are no more: why, since when, so that a miss can be explained."""

from typing import Final

import numpy as np

from stager.catalog.catalog import DEPARTURES_KEPT, Catalog
from stager.catalog.rows import DepartureRow
from stager.clock import Clock
from stager.reader.record import DatasetSpec, say_recipe_change
from stager.reader.samples.by_number import ByNumber
from stager.reader.values import Numbers

OUTDATED: Final = ("source_changed", "recipe_changed")
_NONE: Final = np.zeros(0, dtype=np.int64)


class DepartureLog:
    """The last departure of each sample, until it is staged again. Only the last ones in detail."""

    def __init__(self, catalog: Catalog, dataset: int, clock: Clock) -> None:
        self._catalog, self._dataset, self._clock = catalog, dataset, clock
        self._rows: dict[int, DepartureRow] = {}  # by number, from 1
        self._count = 0
        self._last = ByNumber(np.int64)  # a row's number; 0: none
        for row in catalog.departures(dataset):
            self._note(row)

    def add(self, reason: str, detail: str, samples: Numbers) -> None:
        """These are resident no more."""
        if len(samples):
            row = DepartureRow(self._clock.wall(), reason, detail, samples)
            self._catalog.add_departure(self._dataset, row)
            self._note(row)

    def _note(self, row: DepartureRow) -> None:
        self._count += 1
        self._rows[self._count] = row
        self._last[row.samples] = self._count
        self._rows.pop(self._count - DEPARTURES_KEPT, None)

    def regained(self, samples: Numbers) -> None:
        """These are resident again."""
        self._last[samples] = 0

    def outdated(self) -> Numbers:
        """Samples whose version before, or whose sample by the recipe before, was resident: they were not."""
        rows = [number for number, row in self._rows.items() if row.reason in OUTDATED]
        lost = np.unique(np.concatenate([_NONE, *(self._rows[number].samples for number in rows)]))
        return np.asarray(lost[np.isin(self._last[lost], rows)])

    def of(self, sample: int) -> DepartureRow | None:
        """Why a sample that was resident is not; None: it never was, or it is."""
        last = int(self._last[np.asarray([sample])][0])
        if last == 0:
            return None
        oldest = next(iter(self._rows.values()))
        return self._rows.get(last) or DepartureRow(
            oldest.at, "evicted", "then or before", oldest.samples[:0]
        )


def why_departed(before: DatasetSpec, after: DatasetSpec) -> tuple[str, str]:
    """Why what was staged of one spec does not count for another: reason, and what has changed."""
    changed = say_recipe_change(before.recipe, after.recipe)
    return (
        ("recipe_changed", changed) if changed else ("source_changed", "the source has another version of it")
    )
