"""How much foreground each brick has: what is known of a mask without reading it."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stager.reader.cuts.patches.volumes import Volume
from stager.reader.samples.computed.grid import Places
from stager.reader.samples.manifest import Counts
from stager.reader.values import Numbers

TOGETHER: Final = 1024  # bricks whose counts are summed up, to find one of millions in two steps


class Foreground:
    """The counts of some volumes, to draw bricks by. It keeps next to nothing beside them."""

    def __init__(self, counts: Counts, grids: Sequence[Volume]) -> None:
        self._voxels, self._grids = counts.voxels, grids
        assert len(self._voxels) == sum(len(grid) for grid, _ in grids)

    @cached_property
    def _sums(self) -> list[Numbers]:
        """Of each volume: how much its first TOGETHER bricks have, its first two times as many, and so on."""
        sums = []
        for grid, first in self._grids:
            starts = np.arange(first, first + len(grid), TOGETHER)
            ends = np.minimum(starts + TOGETHER, first + len(grid))
            parts = (self._voxels[a:b].sum(dtype=np.int64) for a, b in zip(starts, ends, strict=True))
            sums.append(np.cumsum(np.fromiter(parts, np.int64, len(starts))))
        return sums

    @cached_property
    def _totals(self) -> Numbers:
        return np.asarray([int(sums[-1]) for sums in self._sums])

    @property
    def total(self) -> int:
        """Voxels of all volumes."""
        return int(self._totals.sum())

    def draw(
        self, volume_at: npt.NDArray[np.float64], at: npt.NDArray[np.float64], weights: Any
    ) -> tuple[Numbers, Places]:
        """Bricks, by random numbers: as likely as they have foreground; volumes by their weights."""
        shares = np.asarray(self._totals, np.float64)
        if weights is not None:
            shares = np.where(self._totals > 0, np.asarray(weights), 0.0)
        ends = np.cumsum(shares)
        volume = np.searchsorted(ends, volume_at * ends[-1], side="right")
        volume = np.minimum(volume, np.flatnonzero(shares)[-1]).astype(np.int64)
        return volume, self._places(volume, (at * self._totals[volume]).astype(np.int64))

    def at(self, shares: npt.NDArray[np.float64]) -> tuple[Numbers, Places]:
        """The bricks in which these shares of all foreground come to their end."""
        ends = np.cumsum(self._totals)
        nth = np.minimum((shares * ends[-1]).astype(np.int64), ends[-1] - 1)
        volume = np.searchsorted(ends, nth, side="right").astype(np.int64)
        return volume, self._places(volume, nth - (ends - self._totals)[volume])

    def within(self, volume: Numbers, place: Places, voxels: Numbers) -> Numbers:
        """How much so many voxels of these bricks have, as if it were spread evenly in each."""
        has, all_of = np.empty(len(place), np.int64), np.empty(len(place), np.int64)
        for number, (grid, first) in enumerate(self._grids):
            here = slice(None) if len(self._grids) == 1 else volume == number
            has[here] = self._voxels[first + grid.rows(place[here])]
            brick, shape = np.asarray(grid.brick), np.asarray(grid.shape)
            all_of[here] = (np.minimum(shape, (place[here] + 1) * brick) - place[here] * brick).prod(axis=1)
        return has * np.minimum(voxels, all_of) // all_of

    def _places(self, volume: Numbers, nth: Numbers) -> Places:
        """The bricks that have the nth voxels of foreground of their volumes."""
        place = np.zeros((len(volume), len(self._grids[0].grid.brick)), np.int64)
        for number, (grid, first) in enumerate(self._grids):
            here = np.flatnonzero(volume == number)
            if not len(here):
                continue
            sums = self._sums[number]
            part = np.searchsorted(sums, nth[here], side="right")
            rest = nth[here] - np.where(part > 0, sums[part - 1], 0)
            row = np.empty(len(here), np.int64)
            for of in np.unique(part).tolist():  # of neighbours together
                start = of * TOGETHER
                mine = part == of
                voxels = self._voxels[first + start : first + min(start + TOGETHER, len(grid))]
                row[mine] = start + np.searchsorted(
                    np.cumsum(voxels, dtype=np.int64), rest[mine], side="right"
                )
            place[here] = grid.places(row)
        return place
