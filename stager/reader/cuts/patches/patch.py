"""Patches of volumes: boxes that lie in several bricks, wherever they begin."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Final, Self

import numpy as np

from stager.errors import UsageError
from stager.reader.cuts.cut import Draws, Rows, Sides, draw_uniforms
from stager.reader.cuts.patches.floats import Floats, floats_in, floats_to_json
from stager.reader.cuts.patches.turns import COLUMN, Ways, flips_in, turns_in, ways_of
from stager.reader.cuts.patches.volumes import (
    Bricks,
    Volume,
    bricks_between,
    positions_of,
    volumes_in,
    volumes_of,
)
from stager.reader.cuts.pieces import ZEROS, Pieces, Turned, boxes
from stager.reader.samples.computed.grid import Places, scale_of, sides_in
from stager.reader.samples.computed.rules import Rule
from stager.reader.values import Field, Numbers, Shape, pack_numbers, unpack_numbers

ROWS_MAX: Final = 1 << 26  # bricks of an epoch, counted for each patch that needs them
SIDES_MAX: Final = 8
CHANNEL_SIDES: Final = 3  # of patches that are handed out with a channel in front
BORDERS: Final = ("inside", "pad")
AT_ONCE: Final = 4096  # draws that are looked at together

Scale = tuple[int, ...]  # voxels of the volume that one of a field takes, on each side


@dataclass(frozen=True)
class Patches:
    """Boxes of `size` voxels, alike in all fields. `borders`: "inside", or "pad" with zeros outside.

    `flips`: sides that are flipped in every other draw; `turns`: pairs of sides that it is turned in.
    `floats`: fields that become floats. What follows is of the data set, and set by the loader.
    """

    kind: ClassVar[str]
    size: tuple[int, ...]
    _: KW_ONLY
    borders: str = "inside"
    flips: Any = ()
    turns: Any = ()
    floats: Mapping[str, Floats] = field(default_factory=dict)
    length: int = 0  # patches an epoch; 0: as many as it takes
    grids: tuple[Volume, ...] = ()  # none: not of any data set yet
    step: tuple[int, ...] = ()  # patches begin at multiples of it: as its coarsest field has voxels
    lost: str = ""  # positions of bricks that are not to be had, packed: no patch touches them
    scales: Mapping[str, Scale] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        sides = self.size
        is_right = isinstance(sides, Sequence) and not isinstance(sides, str) and 0 < len(sides) <= SIDES_MAX
        if not is_right or not all(type(side) is int and side > 0 for side in sides):
            raise UsageError(f"a patch of {sides!r} makes no sense", hint="voxels a side, as (72, 136, 136)")
        if self.borders not in BORDERS:
            raise UsageError(f"borders is {self.borders!r}", hint="use one of " + ", ".join(BORDERS))
        if type(self.length) is not int or self.length < 0:
            raise UsageError(
                f"an epoch of {self.length!r} patches makes no sense", hint="a number of 1 or more"
            )
        self._set(
            size=tuple(sides),
            flips=flips_in(self.flips, len(sides)),
            turns=turns_in(self.turns, sides),
            floats=floats_in(self.floats),
            grids=volumes_in(self.grids),
            step=sides_in(self.step) or (1,) * len(sides),
        )
        assert len(self._ways.sides)  # else it raises
        self._check_more()
        if self.grids:
            self.count()

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _check_more(self) -> None:
        """Raise UsageError if what only this kind has makes no sense."""

    def on(self, rules: Sequence[Rule], fields: Mapping[str, Field], lost: Numbers | None = None) -> Self:
        """The same for the volumes of a data set. Raise UsageError if it has none, or none so large.

        `fields`: all that it has. `lost`: positions of bricks that are not to be had.
        """
        volumes = volumes_of(rules)
        if unknown := sorted(set(self.floats) - set(fields)):
            raise UsageError(f"there is no field {unknown[0]!r} to make floats of", hint=", ".join(fields))
        scales = _scales(volumes[0].grid.brick, fields) if volumes else {}
        step = tuple(math.lcm(*sides) for sides in zip(*scales.values(), strict=True))
        for a, b in self.turns:
            if any(scale[a] != scale[b] for scale in scales.values()):
                raise UsageError(
                    f"a field has voxels of other sides in {(a, b)}", hint="no turns of these sides"
                )
        if len(step) == len(self.size) and any(n % by for n, by in zip(self.size, step, strict=True)):
            told = f"a patch of {list(self.size)} has no whole number of voxels in every field"
            raise UsageError(told, hint=f"sides that are multiples of {list(step)}")
        skips = "" if lost is None or not len(lost) else pack_numbers(np.sort(lost))
        bound = replace(self, grids=volumes, step=step, lost=skips)
        return replace(bound, length=bound.count())

    @property
    def bricks(self) -> int:
        """How many the data set has."""
        return sum(len(grid) for grid, _ in self.grids)

    def count(self) -> int:
        """How many patches an epoch has."""
        raise NotImplementedError

    def corners(self, draws: Draws) -> tuple[Numbers, Places]:
        """Of each draw: which volume, and where in it the patch begins."""
        raise NotImplementedError

    def _placed(self, draws: Draws) -> tuple[Numbers, Places, Bricks]:
        """The same, and the bricks: worked out once, however often it is asked."""
        whose, *placed = draws.made.get(self.kind, (None,))
        if whose is not self:
            volume, corner = self.corners(draws)
            placed = [volume, corner, self._bricks(volume, corner)]
            draws.made[self.kind] = self, *placed
        return placed[0], placed[1], placed[2]

    def corners_in(self, draws: Draws) -> Places:
        """A line for each draw: the volume's number, and where the patch begins in it."""
        volume, corner, _ = self._placed(draws)
        return np.concatenate([volume[:, None], corner], axis=1)

    def rows(self, draws: Draws) -> Rows:
        volume, _, bricks = self._placed(draws)
        return Rows(positions_of(self.grids, volume[bricks.box], bricks.place), bricks.ends)

    def for_fields(self, fields: Mapping[str, Field]) -> Self:
        return replace(self, scales=_scales(self.grids[0].grid.brick, fields)) if self.grids else self

    def shapes(self, shapes: Mapping[str, Shape]) -> dict[str, Shape]:
        if not self.grids:
            raise UsageError("patches are cut of volumes only", hint='stage it with layout = "volume"')
        channel = (1,) if len(self.size) <= CHANNEL_SIDES else ()
        return {name: channel + _less(self.size, self.scales[name]) for name in shapes}

    def pieces(self, draws: Draws, rows: Rows, sides: Mapping[str, Sides]) -> dict[str, Pieces]:
        volume, corner, bricks = self._placed(draws)
        made = {}
        for scale in {self.scales[name] for name in sides}:
            made[scale] = self._table(draws, volume, corner, bricks, scale)
        return {name: made[self.scales[name]] for name in sides}

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "size": list(self.size),
            "borders": self.borders,
            "flips": list(self.flips),
            "turns": [list(pair) for pair in self.turns],
            "floats": floats_to_json(self.floats),
            "length": self.length,
            "grids": [volume.to_json() for volume in self.grids],
            "step": list(self.step),
            "lost": self.lost,
        }

    def _table(self, draws: Draws, volume: Numbers, corner: Places, bricks: Bricks, scale: Scale) -> Pieces:
        """Which pieces of a field's bricks go where. All that is counted is a multiple of its scale."""
        size, brick, shape = self._size, self._brick, self._shapes[volume]
        begins, corners = bricks.place * brick, corner[bricks.box]
        starts = np.maximum(corners - begins, 0)
        ends = np.minimum(brick, np.minimum(corners + size, shape[bricks.box]) - begins)
        made = [starts, ends - starts, begins + starts - corners]
        size, brick, *made = (
            (of // np.asarray(scale) for of in (size, brick, *made))
            if any(side > 1 for side in scale)
            else (size, brick, *made)
        )
        sides, to = tuple(size.tolist()), draws.places[bricks.box]
        turned = None
        if len(self._ways.sides) > 1:
            way = self._way(draws)[bricks.box]
            turned = Turned(self._ways.sides[way], self._ways.is_flipped[way])
        row = np.arange(len(begins))
        copied = boxes(row, brick[None], made[0], made[1], to, sides, made[2], turned)
        out = ((corner < 0) | (corner + self._size > shape)).any(axis=1)
        if not out.any():
            return copied._replace(is_apart=True)
        zeros = np.full(int(out.sum()), ZEROS)
        cleared = boxes(zeros, size[None], size[None] * 0, size[None], draws.places[out], sides)
        return Pieces(np.concatenate([cleared.table, copied.table]), is_apart=True)

    def _way(self, draws: Draws) -> Numbers:
        """How each draw is turned."""
        uniforms = draw_uniforms(draws.draws, draws.seed, draws.epoch, 1, COLUMN)[:, 0]
        return (uniforms * len(self._ways.sides)).astype(np.int64)

    def _bricks(self, volume: Numbers, corner: Places) -> Bricks:
        first = np.maximum(corner, 0) // self._brick
        last = (np.minimum(corner + self._size, self._shapes[volume]) - 1) // self._brick
        return bricks_between(first, last)

    def _is_whole(self, volume: Numbers, corner: Places) -> Any:
        """Which of these patches touch no brick that is lost."""
        if not len(self._lost):
            return np.ones(len(corner), np.bool_)
        bricks = self._bricks(volume, corner)
        positions = positions_of(self.grids, volume[bricks.box], bricks.place)
        at = np.searchsorted(self._lost, positions).clip(max=len(self._lost) - 1)
        is_lost = np.bincount(bricks.box, self._lost[at] == positions, minlength=len(corner))
        return is_lost == 0

    @cached_property
    def _lost(self) -> Numbers:
        try:
            return unpack_numbers(self.lost)
        except ValueError:
            raise UsageError("the bricks that a cut leaves out make no sense", hint="no `lost`") from None

    @cached_property
    def _ways(self) -> Ways:
        return ways_of(len(self.size), self.flips, self.turns)

    @cached_property
    def _size(self) -> Numbers:
        return np.asarray(self.size, np.int64)

    @cached_property
    def _brick(self) -> Numbers:
        return np.asarray(self.grids[0].grid.brick, np.int64)

    @cached_property
    def _shapes(self) -> Places:
        """Of the volumes, up to whole voxels of every field: bricks are 0 behind them."""
        step = np.asarray(self.step, np.int64)
        return -(-np.asarray([volume.grid.shape for volume in self.grids], np.int64) // step) * step

    def _check(self, smallest: Sequence[int], length: int) -> int:
        """`length`, if patches fit into the volumes, and an epoch of them into memory."""
        for grid, _ in self.grids:
            if len(grid.shape) != len(self.size):
                told = f"a patch of {list(self.size)} has {len(self.size)} sides, a volume {len(grid.shape)}"
                raise UsageError(told, hint=f"one for each of {list(grid.shape)}")
            if any(side < least for side, least in zip(grid.shape, smallest, strict=True)):
                told = f"a patch of {list(self.size)} is larger than a volume of {list(grid.shape)}"
                raise UsageError(told, hint='a smaller one, or borders="pad"')
        brick = self.grids[0].grid.brick
        most = math.prod((n - 2) // b + 2 if n > 1 else 1 for n, b in zip(self.size, brick, strict=True))
        if length * most > ROWS_MAX:
            told = f"{length:,} patches need up to {length * most:,} bricks: too many for one epoch"
            raise UsageError(told, hint=f"length={ROWS_MAX // most} patches at most, or larger bricks")
        return length

    def _smallest(self) -> tuple[int, ...]:
        """How large a volume has to be."""
        return self.size if self.borders == "inside" else (1,) * len(self.size)


def in_parts(count: int) -> Iterator[slice]:
    """So many draws, a few at a time."""
    return (slice(at, min(at + AT_ONCE, count)) for at in range(0, count, AT_ONCE))


def which(count: int, is_so: Callable[[slice], Any]) -> Numbers:
    """The numbers below a count of which it is so."""
    parts = [part.start + np.flatnonzero(is_so(part)) for part in in_parts(count)]
    return np.concatenate([np.zeros(0, np.int64), *parts])


def _scales(brick: Sequence[int], fields: Mapping[str, Field]) -> dict[str, Scale]:
    """How many voxels of the volume one voxel of each field is. Raise UsageError if it is no whole number."""
    scales = {}
    for name, about in fields.items():
        sides = [side or 0 for side in about.shape]
        if len(sides) != len(brick) or not all(n and b % n == 0 for n, b in zip(sides, brick, strict=False)):
            raise UsageError(
                f"{name} has no bricks that patches can be cut of", hint="leave it out of columns"
            )
        scales[name] = scale_of(tuple(brick), about.shape)
    return scales


def _less(sides: Sequence[int], by: Sequence[int]) -> tuple[int, ...]:
    return tuple(n // b for n, b in zip(sides, by, strict=True))
