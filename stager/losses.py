"""Samples that were resident and are no more: why, since when, so that a miss can be explained."""

import time

import numpy as np

from stager.catalog import Catalog, LossRow
from stager.dataset import DatasetSpec
from stager.model import Numbers


class Losses:
    """The last loss of each sample of a data set, until it is staged again."""

    def __init__(self, catalog: Catalog, dataset: int, samples: int) -> None:
        self._catalog, self._dataset = catalog, dataset
        self._rows = catalog.losses(dataset)
        self._last = np.zeros(samples, dtype=np.int32)  # a row's number + 1; 0: none
        for number, row in enumerate(self._rows):
            self._last[row.samples] = number + 1

    def add(self, reason: str, detail: str, samples: Numbers) -> None:
        """These are resident no more."""
        if len(samples):
            row = LossRow(time.time(), reason, detail, samples)
            self._catalog.add_loss(self._dataset, row)
            self._rows.append(row)
            self._last[samples] = len(self._rows)

    def regained(self, samples: Numbers) -> None:
        """These are resident again."""
        self._last[samples] = 0

    def of(self, sample: int) -> LossRow | None:
        """Why a sample that was resident is not; None: it never was, or it is."""
        last = int(self._last[sample])
        return self._rows[last - 1] if last else None


def why_lost(before: DatasetSpec, after: DatasetSpec) -> tuple[str, str]:
    """Why what was staged of one spec does not count for another: reason, and what has changed."""
    old, new = before.recipe, after.recipe
    changed = sorted(key for key in {*old, *new} if old.get(key) != new.get(key))
    if not changed:
        return "source_changed", "the source has another version of it"
    return "recipe_changed", ", ".join(f"{key} {old.get(key)} -> {new.get(key)}" for key in changed)
