"""Patches at random places."""

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from stager.errors import UsageError
from stager.reader.cuts.cut import Draws, Uniforms
from stager.reader.cuts.patches.foreground import Foreground
from stager.reader.cuts.patches.patch import Patches, in_parts
from stager.reader.samples.computed.grid import Places
from stager.reader.samples.manifest import Counts
from stager.reader.values import Numbers

TRIES: Final = 16  # places that are looked at for a draw, before one is taken that is known to be right
SURE_SEEN: Final = 1 << 16  # bricks around which such places are looked for
SURE_MAX: Final = 4096  # and how many of these are kept


@dataclass(frozen=True)
class RandomPatch(Patches):
    """At random places, all as likely. Padded, at least half of each side is inside.

    `foreground`: a field whose voxels that are not 0 are at least the share `least` of each patch, as
    estimated from how many each brick has. `volumes`: how likely each volume is, instead of by its places.
    """

    kind: ClassVar[str] = "random_patch"
    _: KW_ONLY
    foreground: str | None = None
    least: float = 0.0
    volumes: tuple[float, ...] | None = None
    counted: str = ""  # the digest of what is known of the foreground
    counts: Counts | None = field(default=None, compare=False, repr=False)

    def _check_more(self) -> None:
        if (
            isinstance(self.least, bool)
            or not isinstance(self.least, int | float)
            or not 0 <= self.least <= 1
        ):
            raise UsageError(f"least is {self.least!r}", hint="a share of the patch's voxels: least=0.05")
        if self.least and not self.foreground:
            raise UsageError(
                "least goes with foreground", hint='foreground="mask": the field that says what it is'
            )
        if self.volumes is None:
            return
        weights = list(self.volumes) if not isinstance(self.volumes, str | Mapping) else [-1.0]
        if (
            not all(isinstance(of, int | float) and 0 <= of < math.inf for of in weights)
            or not sum(weights) > 0
        ):
            raise UsageError(
                f"volumes is {self.volumes!r}", hint="a weight for each volume: volumes=[1, 0.5]"
            )
        if self.grids and len(weights) != len(self.grids):
            told = f"there are {len(weights)} weights, and {len(self.grids)} volumes"
            raise UsageError(told, hint="a weight for each, in the config's order")
        self._set(volumes=tuple(float(of) for of in weights))

    def knowing(self, counts: Counts) -> "RandomPatch":
        """The same, with how much foreground each brick has. Raise UsageError if no patch has enough."""
        if self.counted not in ("", counts.digest):
            raise UsageError("the foreground was counted anew meanwhile", hint="open the data set again")
        known = replace(self, counts=counts, counted=counts.digest)
        if not known._foreground.total:
            raise UsageError(f"{self.foreground} is 0 everywhere", hint="another field, or no foreground")
        assert len(known._sure)  # else it raises
        return known

    def count(self) -> int:
        """As many as have the voxels of all volumes, unless another length is asked for."""
        voxels = sum(math.prod(grid.shape) for grid, _ in self.grids)
        length = self._check(self._smallest(), self.length or max(1, voxels // math.prod(self.size)))
        if self.lost and not self.foreground:
            assert len(self._sure)  # else it raises
        return length

    def corners(self, draws: Draws) -> tuple[Numbers, Places]:
        if not self.foreground and not self.lost:
            return self._anywhere(draws.uniforms(1 + len(self.size)))
        made = [self._choose(draws.some(np.arange(part.start, part.stop))) for part in in_parts(len(draws))]
        if not made:
            return np.zeros(0, np.int64), np.zeros((0, len(self.size)), np.int64)
        return np.concatenate([volume for volume, _ in made]), np.concatenate([corner for _, corner in made])

    def to_json(self) -> dict[str, Any]:
        about = {"foreground": self.foreground, "least": self.least, "counted": self.counted}
        weights = None if self.volumes is None else list(self.volumes)
        return {**Patches.to_json(self), **about, "volumes": weights}

    def _choose(self, draws: Draws) -> tuple[Numbers, Places]:
        """The first place of a few that is right; else one of those that are known to be."""
        columns = len(self.size) + (2 if self.foreground else 1)
        uniforms = draws.uniforms(TRIES * columns + 1)
        volume = np.zeros(len(draws), np.int64)
        corner = np.zeros((len(draws), len(self.size)), np.int64)
        left = np.arange(len(draws))
        for number in range(TRIES):
            told = uniforms[left, number * columns : (number + 1) * columns]
            found = self._at_foreground(told) if self.foreground else self._anywhere(told)
            is_right = self._is_right(*found)
            volume[left[is_right]], corner[left[is_right]] = found[0][is_right], found[1][is_right]
            left = left[~is_right]
            if not len(left):
                return volume, corner
        sure = self._sure[(uniforms[left, -1] * len(self._sure)).astype(np.int64)]
        volume[left], corner[left] = sure[:, 0], sure[:, 1:]
        return volume, corner

    def _anywhere(self, uniforms: Uniforms) -> tuple[Numbers, Places]:
        room = self._room
        shares = np.cumsum(room.prod(axis=1, dtype=np.float64) if self.volumes is None else self.volumes)
        volume = np.searchsorted(shares, uniforms[:, 0] * shares[-1], side="right")
        volume = np.minimum(volume, len(shares) - 1).astype(np.int64)
        return volume, (uniforms[:, 1:] * room[volume]).astype(np.int64) * self.step - self._before

    def _at_foreground(self, uniforms: Uniforms) -> tuple[Numbers, Places]:
        """A brick, as likely as it has foreground; and any place where a patch touches that."""
        volume, place = self._foreground.draw(uniforms[:, 0], uniforms[:, 1], self.volumes)
        step = np.asarray(self.step)
        reach = (self._brick + self._size) // step - 1  # places where it does
        first = place * self._brick - self._size + step
        return volume, self._inside(volume, first + (uniforms[:, 2:] * reach).astype(np.int64) * step)

    def _inside(self, volume: Numbers, corner: Places) -> Places:
        """The nearest places that may be."""
        last = (self._room[volume] - 1) * np.asarray(self.step) - self._before
        return np.asarray(np.clip(corner, -self._before, last), np.int64)

    def _is_right(self, volume: Numbers, corner: Places) -> npt.NDArray[np.bool_]:
        is_right = np.asarray(self._is_whole(volume, corner))
        if self.foreground:
            need = max(1, math.ceil(self.least * math.prod(self.size)))
            bricks = self._bricks(volume, corner)
            begins, corners = bricks.place * self._brick, corner[bricks.box]
            shape = self._shapes[volume[bricks.box]]
            ends = np.minimum(np.minimum(begins + self._brick, corners + self._size), shape)
            voxels = (ends - np.maximum(begins, corners)).prod(axis=1)
            has = self._foreground.within(volume[bricks.box], bricks.place, voxels)
            sums = np.concatenate([[0], np.cumsum(has)])
            is_right &= np.diff(sums[np.concatenate([[0], bricks.ends])]) >= need
        return is_right

    @property
    def _before(self) -> Numbers:
        """How far before a volume patches may begin: padded, by half. As far behind it may they end."""
        step = np.asarray(self.step)
        return self._size // 2 // step * step if self.borders == "pad" else self._size * 0

    @cached_property
    def _room(self) -> Places:
        """How many places each volume has on each side."""
        room = np.maximum(self._shapes + 2 * self._before - self._size, 0)
        return np.asarray(room // np.asarray(self.step) + 1, np.int64)

    @cached_property
    def _foreground(self) -> Foreground:
        if self.counts is None:
            raise UsageError("nothing is known of the foreground", hint="open the data set again")
        return Foreground(self.counts, self.grids)

    @cached_property
    def _sure(self) -> Places:
        """Volume and corner of places that are right, around bricks from all over the volumes."""
        step = np.asarray(self.step)
        found: list[Places] = []
        total = self._foreground.total if self.foreground else self.bricks
        tries = min(total, SURE_SEEN)
        middles = (np.arange(tries, dtype=np.float64) + 0.5) / tries  # spread over all of them
        for part in in_parts(tries):
            volume, place = self._nth(middles[part])
            corner = (place * self._brick + self._brick // 2 - self._size // 2) // step * step
            corner = self._inside(volume, corner)
            is_right = self._is_right(volume, corner)
            if self.volumes is not None:
                is_right &= np.asarray(self.volumes)[volume] > 0
            found.append(np.concatenate([volume[:, None], corner], axis=1)[is_right])
            if sum(map(len, found)) >= SURE_MAX:
                break
        sure = np.unique(np.concatenate(found), axis=0)[:SURE_MAX]
        if not len(sure):
            told = f"no patch of {list(self.size)} was found that " + (
                f"has {self.least:.1%} of {self.foreground}"
                if self.foreground
                else "touches no brick that is lost"
            )
            raise UsageError(
                told, hint="a smaller share, or other patches: stager ls --failed tells what is lost"
            )
        return sure

    def _nth(self, shares: npt.NDArray[np.float64]) -> tuple[Numbers, Places]:
        """The bricks that come after these shares of all, by foreground if there is one."""
        if self.foreground:
            return self._foreground.at(shares)
        positions = np.minimum((shares * self.bricks).astype(np.int64), self.bricks - 1)
        firsts = np.asarray([volume.first for volume in self.grids])
        volume = np.searchsorted(firsts, positions, side="right").astype(np.int64) - 1
        place = np.zeros((len(positions), len(self.size)), np.int64)
        for number, (grid, first) in enumerate(self.grids):
            here = volume == number
            place[here] = grid.places(positions[here] - first)
        return volume, place
