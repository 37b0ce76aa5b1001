"""Pieces of rows, and where in an output they go: boxes of items, for C (pieces.c) and for its stand-in."""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

from stager.reader.values import Numbers

ZEROS: Final = -1  # in the place of a row: there is none, the output gets zeros
OUTPUT: Final = -2  # the same: what is copied is in the output already, by an earlier piece
DIMENSIONS_MAX: Final = 9
HEAD: Final = 3  # row, start, to; then for each dimension count, step in the row, step in the output

Table = npt.NDArray[np.int64]
Flat = npt.NDArray[Any]  # items in a row
Read = Callable[[int, int, int], Flat]  # of a row: so many items from one on


class Turned(NamedTuple):
    """For each box: which of its sides each side of the output shows, and whether back to front."""

    sides: Table
    is_flipped: npt.NDArray[np.bool_]


class Pieces(NamedTuple):
    """A line for each piece, copied in this order. All is counted in items, from a row's or output's first.

    `table`: which row (or ZEROS, or OUTPUT), where the piece starts in it, where it goes to; and for each
    dimension, the outermost first: how many, and the steps from one to the next in the row and in the output,
    which may go backwards.
    """

    table: Table
    is_apart: bool = False  # no two of rows go to one place: C may copy them in any order

    @property
    def dimensions(self) -> int:
        """Of how many sides each piece is a box."""
        return int(self.table.shape[1] - HEAD) // 3

    def check(self, row_items: Numbers, out_items: int) -> None:
        """Assert that nothing lies outside of the rows, which have so many items, and of the output."""
        row, start, to = self.table[:, :HEAD].T
        counts, steps, out_steps = (self.table[:, HEAD + at :: 3] for at in range(3))
        assert self.dimensions <= DIMENSIONS_MAX
        assert row.min(initial=0) >= OUTPUT
        assert row.max(initial=-1) < len(row_items)
        assert min(start.min(initial=0), to.min(initial=0), steps.min(initial=0)) >= 0
        last, out_last = (np.maximum(counts - 1, 0) * by for by in (steps, out_steps))
        out_first = np.minimum(out_last, 0).sum(axis=1)
        is_some = (counts > 0).all(axis=1)
        room = np.where(row >= 0, np.append(row_items, 0)[row], np.where(row == OUTPUT, out_items, start + 1))
        ends = start + np.where((row == ZEROS)[:, None], 0, last).sum(axis=1)
        assert not (is_some & (ends >= room)).any()
        assert not (is_some & (to + out_first < 0)).any()
        assert not (is_some & (to + np.maximum(out_last, 0).sum(axis=1) >= out_items)).any()

    def spans(self) -> tuple[Numbers, Numbers, Numbers]:
        """Of those that are taken of rows, in items: the row, the first, and how many from it to the last."""
        counts, steps = self.table[:, HEAD::3], self.table[:, HEAD + 1 :: 3]
        is_some = (self.table[:, 0] >= 0) & (counts > 0).all(axis=1)
        ends = 1 + ((counts - 1) * steps).sum(axis=1)
        return self.table[is_some, 0], self.table[is_some, 1], ends[is_some]

    def copy(self, out: npt.NDArray[Any], read: Read) -> None:
        """Copy all of them, as C does. `read` is asked once a piece, for all from its first item on."""
        flat = out.reshape(-1)
        for row, start, to, *sides in self.table.tolist():
            counts, steps, out_steps = sides[0::3], sides[1::3], sides[2::3]
            if min(counts, default=1) < 1:
                continue
            target = _strided(flat[to:], counts, out_steps)
            if row == ZEROS:
                target[...] = 0
                continue
            span = 1 + sum((count - 1) * step for count, step in zip(counts, steps, strict=True))
            items = flat[start : start + span] if row == OUTPUT else read(row, start, span)
            target[...] = _strided(items, counts, steps)


def runs(row: Numbers, start: Numbers, to: Numbers, count: Numbers) -> Pieces:
    """Pieces of items that lie together in the row and in the output."""
    ones = np.ones_like(row)
    return Pieces(np.stack([row, start, to, count, ones, ones], axis=1).astype(np.int64, copy=False))


def boxes(
    row: Numbers,
    sides: Table,
    starts: Table,
    counts: Table,
    draw: Numbers,
    out_shape: Sequence[int],
    out_starts: Table | int = 0,
    turned: Turned | None = None,
) -> Pieces:
    """Boxes of `counts` items a side, from `starts` of rows with these sides to `out_starts` of an output.

    Of `sides`, `starts`, `counts` and `out_starts` there is a line for each box, or one for all. If they are
    turned, `out_starts` are what they were without that.
    """
    of = (len(row), len(out_shape))
    sides, starts, counts, to = (np.broadcast_to(value, of) for value in (sides, starts, counts, out_starts))
    steps, out_steps = _steps(sides), _steps(np.asarray([out_shape], np.int64))
    if turned is not None:
        to, out_steps = _turned(to, out_steps, np.asarray(out_shape, np.int64), turned)
    table = np.empty((len(row), HEAD + 3 * len(out_shape)), np.int64)
    table[:, 0] = row
    table[:, 1] = (starts * steps).sum(axis=1)
    table[:, 2] = draw * int(np.prod(out_shape, dtype=np.int64)) + (to * np.abs(out_steps)).sum(axis=1)
    table[:, HEAD::3], table[:, HEAD + 1 :: 3], table[:, HEAD + 2 :: 3] = counts, steps, out_steps
    return Pieces(table)


def _steps(sides: Table) -> Table:
    """From one to the next on each side, in items."""
    steps = np.ones_like(sides)
    steps[:, :-1] = np.cumprod(sides[:, :0:-1], axis=1)[:, ::-1]
    return steps


def _turned(to: Table, out_steps: Table, out_shape: Table, turned: Turned) -> tuple[Table, Table]:
    """Where boxes go, and the steps that their sides make in the output."""
    ours = np.argsort(turned.sides, axis=1)  # which side of the output shows each of a box's
    is_flipped = np.take_along_axis(turned.is_flipped, ours, axis=1)
    steps = np.take_along_axis(np.broadcast_to(out_steps, ours.shape), ours, axis=1)
    return np.where(is_flipped, out_shape - 1 - to, to), np.where(is_flipped, -steps, steps)


def _strided(items: Flat, counts: Sequence[int], steps: Sequence[int]) -> npt.NDArray[Any]:
    return as_strided(items, counts, [step * items.itemsize for step in steps])
