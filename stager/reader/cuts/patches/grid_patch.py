"""Patches side by side."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from stager.errors import UsageError
from stager.reader.cuts.cut import Draws
from stager.reader.cuts.patches.patch import Patches, which
from stager.reader.samples.computed.grid import Places
from stager.reader.values import Numbers


@dataclass(frozen=True)
class GridPatch(Patches):
    """Side by side, or `overlap` voxels over one another, until all of every volume is covered.

    Where sides do not fit, the last patch begins earlier; padded, it reaches out of the volume. They go cell
    by cell, as bricks do: what lies in one chunk is read together.
    """

    kind: ClassVar[str] = "grid_patch"
    overlap: Any = ()

    def _check_more(self) -> None:
        told = self.overlap
        told = (told,) * len(self.size) if isinstance(told, int) else tuple(told)
        overlap = told or (0,) * len(self.size)
        pairs = zip(overlap, self.size, strict=False)
        if len(overlap) != len(self.size) or not all(
            type(by) is int and 0 <= by < side for by, side in pairs
        ):
            raise UsageError(
                f"an overlap of {self.overlap!r} makes no sense",
                hint="voxels a side, less than the patch has",
            )
        self._set(overlap=overlap)
        if any((n - by) % step for n, by, step in zip(self.size, overlap, self.step, strict=False)):
            told = f"an overlap of {list(overlap)} has no whole number of voxels in every field"
            raise UsageError(told, hint=f"multiples of {list(self.step)}")

    @cached_property
    def weights(self) -> npt.NDArray[np.float32]:
        """How much each voxel of a patch counts where patches overlap: less towards its sides, nowhere 0.

        Sum what is predicted times these, and these, and divide.
        """
        ramps = []
        for side, overlap in zip(self.size, self.overlap, strict=True):
            at = np.arange(side)
            ramps.append(np.minimum(np.minimum(at, side - 1 - at) + 1, overlap + 1) / (overlap + 1))
        found = ramps[0]
        for ramp in ramps[1:]:
            found = found[..., None] * ramp
        return np.asarray(found, np.float32)

    def count(self) -> int:
        whole = self._check(self._smallest(), int(self._counts.prod(axis=1).sum()))
        found = len(self._kept) if self.lost else whole
        if self.length not in (0, found):
            raise UsageError(f"these volumes have {found} such patches, not {self.length}", hint="no length")
        return found

    def corners(self, draws: Draws) -> tuple[Numbers, Places]:
        return self._corners(self._kept[draws.positions] if self.lost else draws.positions)

    def to_json(self) -> dict[str, Any]:
        return {**Patches.to_json(self), "overlap": list(self.overlap)}

    def _corners(self, numbers: Numbers) -> tuple[Numbers, Places]:
        volume = np.searchsorted(self._ends, numbers, side="right").astype(np.int64)
        corner = np.empty((len(numbers), len(self.size)), np.int64)
        for number in range(len(self.grids)):
            here = volume == number
            rest = self._orders[number][numbers[here] - (self._ends[number] - len(self._orders[number]))]
            corner[here] = self._at(number, rest)
        return volume, corner

    def _at(self, number: int, rest: Numbers) -> Places:
        """Where the patches of a volume begin, counted line by line."""
        corner = np.stack(np.unravel_index(rest, tuple(self._counts[number].tolist())), axis=1)
        corner = corner.astype(np.int64) * self._pace
        if self.borders == "inside":
            corner = np.minimum(corner, self._shapes[number] - self._size)
        return corner

    @cached_property
    def _orders(self) -> list[Numbers]:
        """Of each volume: its patches by the cells they begin in, along the side with the most of these."""
        orders = []
        for number, (grid, _) in enumerate(self.grids):
            every = np.arange(int(self._counts[number].prod()))
            cell = self._at(number, every) // np.asarray(grid.cell)
            along = np.argsort([-n // c for n, c in zip(grid.shape, grid.cell, strict=True)], kind="stable")
            orders.append(np.lexsort([every, *(cell[:, side] for side in reversed(along.tolist()))]))
        return orders

    @cached_property
    def _kept(self) -> Numbers:
        """Those that touch no brick that is lost."""
        count = int(self._ends[-1])
        return which(count, lambda part: self._is_whole(*self._corners(np.arange(part.start, part.stop))))

    @cached_property
    def _ends(self) -> Numbers:
        return np.asarray(np.cumsum(self._counts.prod(axis=1)), np.int64)

    @property
    def _pace(self) -> Numbers:
        return np.asarray(self._size - np.asarray(self.overlap), np.int64)

    @cached_property
    def _counts(self) -> npt.NDArray[np.int64]:
        """How many patches each volume has on each side."""
        rest = np.maximum(self._shapes - self._size, 0)
        return np.asarray(-(-rest // self._pace) + 1, np.int64)
