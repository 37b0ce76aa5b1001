"""Segments of clips: of one length, from samples of any length."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar, Final, Self

import numpy as np

from stager.errors import UsageError, nearest
from stager.reader.cuts.clips import PADS, Starts, even_starts, random_starts, room_of, segments
from stager.reader.cuts.cut import Draws, NoSuchPart, Rows, Sides
from stager.reader.cuts.pieces import Pieces, runs
from stager.reader.values import Field, Numbers, Shape

FRAMES_MAX: Final = 2**31
COUNT_MAX: Final = 4096  # segments a clip


@dataclass(frozen=True, slots=True)
class Segments:
    """`count` segments of each clip, of so many `seconds` or `frames`; None: one, and no side for it.

    They are cut of the first side of the fields on which samples differ there; `fields`: of these only. `pad`
    fills up clips that are too short: "wrap" repeats them, "zero" has zeros at both ends.
    """

    kind: ClassVar[str]

    count: int | None = None
    _: KW_ONLY
    seconds: float | None = None
    frames: int | None = None
    pad: str = "wrap"
    fields: Sequence[str] = ()

    def __post_init__(self) -> None:
        if (self.seconds is None) == (self.frames is None):
            raise UsageError("a segment has one length", hint="seconds=2.0, or frames=32_000")
        if self.seconds is not None and not (_is_number(self.seconds) and 0 < self.seconds < math.inf):
            raise UsageError(f"a segment of {self.seconds!r} seconds makes no sense", hint="as seconds=2.0")
        for name, most in (("frames", FRAMES_MAX), ("count", COUNT_MAX)):
            value = getattr(self, name)
            if value is not None and not (type(value) is int and 0 < value <= most):
                raise UsageError(f"segments with {name}={value!r} make no sense", hint=f"1 to {most:,}")
        if self.pad not in PADS:
            raise UsageError(f"pad is {self.pad!r}", hint="use one of " + ", ".join(PADS))
        if isinstance(self.fields, str) or not all(isinstance(name, str) for name in self.fields):
            raise UsageError(f"a cut of the fields {self.fields!r} makes no sense", hint="a list of names")
        object.__setattr__(self, "fields", tuple(self.fields))

    def starts(self, draws: Draws, room: Numbers) -> Starts:
        """Where in each clip its segments begin: a number from 0 to its room."""
        raise NotImplementedError

    def for_fields(self, fields: Mapping[str, Field]) -> Self:
        for name in self.fields:
            if name not in fields:
                raise UsageError(f"there is no field {name!r} to cut", hint=nearest(name, fields))
        told = ", ".join(str(field) for field in fields.values())
        taken = [name for name, field in fields.items() if self._takes(field)]
        if not taken:
            raise UsageError(f"no field has samples of any length: {told}", hint="RandomCrop cuts others")
        if any(None in fields[name].shape[1:] for name in taken):
            raise UsageError(f"samples differ on several sides: {told}", hint="name others in fields=")
        frames = self._frames({fields[name].rate for name in taken})
        return replace(self, seconds=None, frames=frames, fields=taken)

    def rows(self, draws: Draws) -> Rows:
        return Rows(draws.positions)

    def shapes(self, shapes: Mapping[str, Shape]) -> dict[str, Shape]:
        sides = (self.frames,) if self.count is None else (self.count, self.frames)
        return {name: (*sides, *of[1:]) if name in self.fields else of for name, of in shapes.items()}

    def pieces(self, draws: Draws, rows: Rows, sides: Mapping[str, Sides]) -> dict[str, Pieces]:
        return {name: self._pieces(name, draws, of) for name, of in sides.items()}

    def to_json(self) -> dict[str, Any]:
        of = {name: getattr(self, name) for name in ("count", "seconds", "frames", "pad")}
        said = {name: value for name, value in of.items() if value is not None}
        return {"kind": self.kind, **said, **({"fields": list(self.fields)} if self.fields else {})}

    def _takes(self, field: Field) -> bool:
        return field.name in self.fields if self.fields else field.shape[:1] == (None,)

    def _frames(self, rates: set[int]) -> int:
        if self.frames is not None:
            return self.frames
        if 0 in rates:
            raise UsageError(
                f"how many frames {self.seconds} seconds are is not known: no rate is said",
                hint="give the recipe a rate, as rate = 16000; or the cut frames= in the place of seconds=",
            )
        if len(rates) > 1:
            raise UsageError(f"fields have different rates: {sorted(rates)}", hint="name one in fields=")
        return max(round((self.seconds or 0) * max(rates)), 1)

    def _pieces(self, name: str, draws: Draws, sides: Sides) -> Pieces:
        row, items = np.arange(len(draws)), int(np.prod(sides[0, 1:]))
        if name not in self.fields:
            whole = int(sides[0, 0]) * items if sides.shape[1] else 1
            return runs(row, np.zeros_like(row), draws.places * whole, np.full_like(row, whole))
        assert self.frames is not None
        lengths = sides[:, 0]
        if not lengths.all():
            raise NoSuchPart(int(lengths.argmin()), f"{name} has no samples", "leave it out by where")
        starts = self.starts(draws, room_of(lengths, self.frames, self.pad))
        return segments(lengths, starts, self.frames, self.pad, draws.places, items)


@dataclass(frozen=True, slots=True)
class RandomSegment(Segments):
    """A segment at a random place; or `count` of them."""

    kind: ClassVar[str] = "random_segment"

    def starts(self, draws: Draws, room: Numbers) -> Starts:
        return random_starts(draws.uniforms(self.count or 1), room)


@dataclass(frozen=True, slots=True)
class GridSegments(Segments):
    """`count` segments, from the beginning of the clip to its end, as far apart: to evaluate on."""

    kind: ClassVar[str] = "grid_segments"

    def starts(self, draws: Draws, room: Numbers) -> Starts:
        return even_starts(self.count or 1, room)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
