"""The volumes that patches are cut of, and which of their bricks a box lies in."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from stager.errors import UsageError
from stager.reader.samples.computed.grid import Grid, Places, places_between, sides_in
from stager.reader.samples.computed.rules import Rule
from stager.reader.values import Numbers


class Volume(NamedTuple):
    """A volume of a data set: its bricks, and the position of the first of them."""

    grid: Grid
    first: int

    def to_json(self) -> list[Any]:
        return [self.grid.shape, self.grid.brick, self.grid.cell, self.first]


class Bricks(NamedTuple):
    """The bricks that some boxes lie in, box by box."""

    box: Numbers  # which of the boxes
    place: Places  # of the brick, in its volume
    ends: Numbers  # of each box: where its bricks end


def bricks_between(first: Places, last: Places) -> Bricks:
    """All bricks from the first to the last on each side, of each box."""
    return Bricks(*places_between(first, last))


def positions_of(volumes: Sequence[Volume], volume: Numbers, place: Places) -> Numbers:
    """Where bricks are in the data set. `volume`: which one each is of."""
    if len(volumes) == 1:
        return volumes[0].first + volumes[0].grid.rows(place)
    positions = np.empty(len(place), np.int64)
    for number, (grid, first) in enumerate(volumes):
        here = volume == number
        positions[here] = first + grid.rows(place[here])
    return positions


def volumes_of(rules: Sequence[Rule]) -> tuple[Volume, ...]:
    """Those of a data set. Raise UsageError if it has others than volumes."""
    volumes = []
    first = 0
    for rule in rules:
        grid = getattr(rule, "grid", None)
        if not isinstance(grid, Grid):
            raise UsageError("patches are cut of volumes only", hint='stage it with layout = "volume"')
        volumes.append(Volume(grid, first))
        first += len(grid)
    return tuple(volumes)


def volumes_in(told: Any) -> tuple[Volume, ...]:
    """Volumes as JSON has them. Raise UsageError if they make no sense."""
    made: list[Volume] = []
    try:
        for shape, brick, cell, first in (of.to_json() if isinstance(of, Volume) else of for of in told):
            made.append(Volume(Grid(sides_in(shape), sides_in(brick), sides_in(cell)), int(first)))
        expected = np.cumsum([0, *(len(grid) for grid, _ in made)])[: len(made)].tolist()
        is_right = [first for _, first in made] == expected and all(
            grid.brick == made[0].grid.brick and grid.is_right for grid, _ in made
        )
    except (TypeError, ValueError, ArithmeticError):
        is_right = False
    if not is_right:
        raise UsageError("the volumes of a cut make no sense", hint="use one version of stager on both sides")
    return tuple(made)
