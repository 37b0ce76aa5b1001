"""A volume as bricks: boxes of equal size, numbered so that those of one chunk are neighbours."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stager.reader.values import Numbers

Places = npt.NDArray[np.int64]  # a line for each brick: which one it is, on each side of the volume
Sides = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Grid:
    """Bricks go cell by cell, and in a cell line by line. A cell is what one or more chunks cover together.

    Bricks at the far sides may reach out of the volume; none is outside of it.
    """

    shape: Sides  # of the volume, in voxels
    brick: Sides
    cell: Sides  # a multiple of the brick

    @property
    def is_right(self) -> bool:
        """Whether there can be such a grid."""
        sides = self.shape, self.brick, self.cell
        is_some = all(len(of) == len(self.shape) > 0 and min(of) > 0 for of in sides)
        return is_some and all(c % b == 0 for c, b in zip(self.cell, self.brick, strict=True))

    @property
    def counts(self) -> Sides:
        """How many bricks there are on each side."""
        return tuple(-(-side // brick) for side, brick in zip(self.shape, self.brick, strict=True))

    @property
    def per_cell(self) -> Sides:
        """How many bricks a cell has on each side."""
        return tuple(cell // brick for cell, brick in zip(self.cell, self.brick, strict=True))

    def __len__(self) -> int:
        return math.prod(self.counts)

    def rows(self, places: Places) -> Numbers:
        """The numbers of bricks."""
        per_cell = np.asarray(self.per_cell)
        cells = places // per_cell
        inside = places - cells * per_cell
        here = self._sizes(cells)
        rows: Numbers = np.zeros(len(places), np.int64)
        for side, behind in enumerate(self._behind()):
            before = here[:, :side].prod(axis=1) * behind * cells[:, side] * per_cell[side]
            rows += before + inside[:, side] * here[:, side + 1 :].prod(axis=1)
        return rows

    def places(self, rows: Numbers) -> Places:
        """Where bricks are."""
        cells, here, rest = self._cells(rows)
        inside = np.empty_like(cells)
        for side in reversed(range(len(self.counts))):
            rest, inside[:, side] = np.divmod(rest, here[:, side])
        cells *= np.asarray(self.per_cell)
        return cells + inside

    def firsts(self, rows: Numbers) -> Numbers:
        """Of each of these bricks: the first one of the cell that it is in."""
        return rows - self._cells(rows)[2]

    def _cells(self, rows: Numbers) -> tuple[Places, Places, Numbers]:
        """Which cells bricks are in, how many bricks these have on each side, and which of them each is."""
        counts, per_cell = self.counts, self.per_cell
        cells = np.empty((len(rows), len(counts)), np.int64)
        here = np.empty_like(cells)
        rest, before = rows.astype(np.int64), np.ones(len(rows), np.int64)
        for side, behind in enumerate(self._behind()):
            block = before * behind * per_cell[side]
            cells[:, side] = rest // block
            rest = rest - cells[:, side] * block
            here[:, side] = np.minimum(per_cell[side], counts[side] - cells[:, side] * per_cell[side])
            before = before * here[:, side]
        return cells, here, rest

    def mates(self, rows: Numbers) -> Numbers:
        """All bricks of the cells that these are in, in rising order."""
        cells = np.unique(self.places(rows) // np.asarray(self.per_cell), axis=0)
        firsts, sizes = self.rows(cells * np.asarray(self.per_cell)), self._sizes(cells).prod(axis=1)
        ends = np.cumsum(sizes)
        found = np.repeat(firsts - (ends - sizes), sizes) + np.arange(int(sizes.sum()))
        return np.asarray(np.sort(found), dtype=np.int64)

    def _sizes(self, cells: Places) -> Places:
        """How many bricks cells have on each side: less at the far ones."""
        counts, per_cell = np.asarray(self.counts), np.asarray(self.per_cell)
        return np.asarray(np.minimum(per_cell, counts - cells * per_cell))

    def _behind(self) -> list[int]:
        """For each side: how many bricks there are in a line of bricks across the sides after it."""
        return [math.prod(self.counts[side + 1 :]) for side in range(len(self.counts))]


def places_between(first: Places, last: Places) -> tuple[Numbers, Places, Numbers]:
    """All places from first to last on each side, of each box: which box, the place; where each box ends."""
    sides = last - first + 1
    counts = sides.prod(axis=1)
    ends = np.cumsum(counts)
    box = np.repeat(np.arange(len(first)), counts)
    rest = np.arange(len(box)) - (ends - counts)[box]
    place = np.empty((len(box), first.shape[1]), np.int64)
    for side in reversed(range(first.shape[1])):
        rest, place[:, side] = np.divmod(rest, sides[box, side])
    return box, place + first[box], ends


def sides_in(value: Any) -> Sides:
    """Sides as JSON has them."""
    return tuple(int(side) for side in value)


def scale_of(brick: Sides, shape: Sequence[int | None]) -> Sides:
    """How many voxels of a volume one of a field covers, on each side. `shape`: of the field's bricks.

    They cover the same of space: voxel n of the field begins where n * scale of the volume is.
    """
    return tuple(side // (own or 1) for side, own in zip(brick, shape, strict=True))
