"""Flips and quarter turns of a box: which of its sides each side of the output shows, and which way round."""

from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from stager.errors import UsageError

WAYS_MAX: Final = 384  # all there are of four sides
COLUMN: Final = 1 << 16  # of a draw's random numbers: those before it say where it is

Way = tuple[
    tuple[int, ...], tuple[bool, ...]
]  # for each side of the output: which side it shows, and if back to front


class Ways(NamedTuple):
    """A line for each way to turn a box."""

    sides: npt.NDArray[np.int64]  # which side of the box each side of the output shows
    is_flipped: npt.NDArray[np.bool_]  # each side of the output


def flips_in(told: Any, sides: int) -> tuple[int, ...]:
    """Sides that may be flipped: those that are named, or with True all."""
    named = (
        range(sides) if told is True else told if isinstance(told, Iterable) else (() if not told else None)
    )
    found = None if named is None or isinstance(named, str) else list(named)
    if found is None or not all(type(side) is int and 0 <= side < sides for side in found):
        raise UsageError(f"flips is {told!r}", hint=f"True, or sides from 0 to {sides - 1}: flips=(1, 2)")
    return tuple(sorted(set(found)))


def turns_in(told: Any, size: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Pairs of sides that a patch may be turned in: those that are named; with True all that are as long."""
    count = len(size)
    pairs = [(a, b) for a in range(count) for b in range(a + 1, count)]
    if told is True:
        return tuple((a, b) for a, b in pairs if size[a] == size[b])
    try:
        found = sorted({(min(pair), max(pair)) for pair in ([int(s) for s in pair] for pair in told or ())})
    except (TypeError, ValueError):
        found = [(-1, -1)]
    if not all(pair in pairs for pair in found):
        raise UsageError(f"turns is {told!r}", hint="True, or pairs of sides: turns=[(1, 2)]")
    if uneven := next((pair for pair in found if size[pair[0]] != size[pair[1]]), None):
        told = f"turned by 90 degrees in {uneven}, a patch of {list(size)} would have another shape"
        raise UsageError(told, hint="name sides that are as long as one another")
    return tuple(found)


def ways_of(sides: int, flips: Sequence[int], turns: Sequence[tuple[int, int]]) -> Ways:
    """All that come of these flips and quarter turns, one after the other; the first leaves all as it is."""
    order, no = tuple(range(sides)), (False,) * sides
    steps: list[Way] = [(order, tuple(side == flipped for side in order)) for flipped in flips]
    for a, b in turns:
        swapped = tuple({a: b, b: a}.get(side, side) for side in order)
        steps.append((swapped, tuple(side == a for side in order)))
    found: set[Way] = {(order, no)}
    new = list(found)
    while new:
        new = list({_after(way, step) for way, step in product(new, steps)} - found)
        found |= set(new)
        if len(found) > WAYS_MAX:
            raise UsageError(
                f"there are more than {WAYS_MAX} ways to turn a patch so", hint="fewer flips or turns"
            )
    ways = sorted(found)
    return Ways(np.array([way[0] for way in ways], np.int64), np.array([way[1] for way in ways], np.bool_))


def _after(way: Way, step: Way) -> Way:
    """What comes of a step after what came before."""
    sides, flipped = way
    return tuple(sides[side] for side in step[0]), tuple(
        flipped[side] != is_flipped for side, is_flipped in zip(*step, strict=True)
    )
