"""Samples that were resident and are no more: why, since when, so that a miss can be explained."""

import numpy as np

from stager.catalog.catalog import LOSSES_KEPT, Catalog
from stager.catalog.rows import LossRow
from stager.clock import Clock
from stager.reader.record import DatasetSpec, say_recipe_change
from stager.reader.values import ByNumber, Numbers


class LossLog:
    """The last loss of each sample of a data set, until it is staged again. Only the last ones in detail."""

    def __init__(self, catalog: Catalog, dataset: int, clock: Clock) -> None:
        self._catalog, self._dataset, self._clock = catalog, dataset, clock
        self._rows: dict[int, LossRow] = {}  # by number, from 1
        self._count = 0
        self._last = ByNumber(np.int64)  # a row's number; 0: none
        for row in catalog.losses(dataset):
            self._note(row)

    def add(self, reason: str, detail: str, samples: Numbers) -> None:
        """These are resident no more."""
        if len(samples):
            row = LossRow(self._clock.wall(), reason, detail, samples)
            self._catalog.add_loss(self._dataset, row)
            self._note(row)

    def _note(self, row: LossRow) -> None:
        self._count += 1
        self._rows[self._count] = row
        self._last[row.samples] = self._count
        self._rows.pop(self._count - LOSSES_KEPT, None)

    def regained(self, samples: Numbers) -> None:
        """These are resident again."""
        self._last[samples] = 0

    def of(self, sample: int) -> LossRow | None:
        """Why a sample that was resident is not; None: it never was, or it is."""
        last = int(self._last[np.asarray([sample])][0])
        if last == 0:
            return None
        oldest = next(iter(self._rows.values()))
        return self._rows.get(last) or LossRow(oldest.at, "evicted", "then or before", oldest.samples[:0])


def why_lost(before: DatasetSpec, after: DatasetSpec) -> tuple[str, str]:
    """Why what was staged of one spec does not count for another: reason, and what has changed."""
    changed = say_recipe_change(before.recipe, after.recipe)
    return (
        ("recipe_changed", changed) if changed else ("source_changed", "the source has another version of it")
    )
