"""As much of a field as asked, at a random place."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np

from stager.errors import UsageError, nearest
from stager.reader.cuts.cut import Draws, NoSuchPart, Rows, Sides, Uniforms
from stager.reader.cuts.pieces import Pieces, boxes, runs
from stager.reader.values import Field, Shape

SIDES_MAX: Final = 8
SIDE_MAX: Final = 2**40


@dataclass(frozen=True, slots=True)
class RandomCrop:
    """A crop of `size` at a random place, over the first sides of every field that has so many.

    At the same place in all fields whose first sides are alike: an image and its mask. `fields`: of these
    only; the others are handed out whole.
    """

    size: tuple[int, ...]
    fields: tuple[str, ...] = ()

    def __init__(self, size: int | Sequence[int], fields: Sequence[str] = ()) -> None:
        sides = (size,) if isinstance(size, int) else tuple(size)
        is_right = 0 < len(sides) <= SIDES_MAX and all(
            isinstance(side, int) and not isinstance(side, bool) and 0 < side <= SIDE_MAX for side in sides
        )
        if not is_right:
            raise UsageError(f"a cut of {size!r} makes no sense", hint="a number of 1 or more for each side")
        if isinstance(fields, str) or not all(isinstance(name, str) for name in fields):
            raise UsageError(f"a cut of the fields {fields!r} makes no sense", hint="a list of names")
        object.__setattr__(self, "size", sides)
        object.__setattr__(self, "fields", tuple(fields))

    def for_fields(self, fields: Mapping[str, Field]) -> Self:
        return self

    def rows(self, draws: Draws) -> Rows:
        return Rows(draws.positions)

    def shapes(self, shapes: Mapping[str, Shape]) -> dict[str, Shape]:
        for name in self.fields:
            if name not in shapes:
                raise UsageError(f"there is no field {name!r} to cut", hint=nearest(name, shapes))
        if not any(self._takes(name, shape) for name, shape in shapes.items()):
            told = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
            raise UsageError(f"no field has {len(self.size)} sides to cut: {told}", hint="cut fewer sides")
        return {name: self._cut_shape(name, shape) for name, shape in shapes.items()}

    def pieces(self, draws: Draws, rows: Rows, sides: Mapping[str, Sides]) -> dict[str, Pieces]:
        uniforms = draws.uniforms(len(self.size))
        return {name: self._pieces(name, draws, uniforms, of) for name, of in sides.items()}

    def to_json(self) -> dict[str, Any]:
        about: dict[str, Any] = {"kind": "random_crop", "size": list(self.size)}
        return {**about, "fields": list(self.fields)} if self.fields else about

    def _takes(self, name: str, shape: Sequence[int | None]) -> bool:
        return len(shape) >= len(self.size) and (not self.fields or name in self.fields)

    def _cut_shape(self, name: str, shape: Shape) -> Shape:
        if not self._takes(name, shape):
            return shape
        pairs = zip(shape, self.size, strict=False)
        if any(side is not None and side < size for side, size in pairs):
            raise UsageError(*self._too_small(name, shape))
        return (*self.size, *shape[len(self.size) :])

    def _pieces(self, name: str, draws: Draws, uniforms: Uniforms, sides: Sides) -> Pieces:
        row, size = np.arange(len(draws)), np.asarray(self.size)
        if not self._takes(name, sides[0]):
            items = int(np.prod(sides[0]))
            return runs(row, np.zeros_like(row), draws.places * items, np.full_like(row, items))
        room = sides[:, : len(size)] - size + 1
        if (room < 1).any():
            at = int((room < 1).any(axis=1).argmax())
            raise NoSuchPart(at, *self._too_small(name, sides[at].tolist()))
        rest = np.prod(sides[:, len(size) :], axis=1, keepdims=True)  # they lie together
        sides = np.concatenate([sides[:, : len(size)], rest], axis=1)
        starts, counts = np.zeros_like(sides), sides.copy()
        starts[:, :-1] = uniforms * room
        counts[:, :-1] = size
        return boxes(row, sides, starts, counts, draws.places, (*self.size, int(rest[0, 0])))

    def _too_small(self, name: str, sides: Sequence[int | None]) -> tuple[str, str]:
        told = f"a cut of {list(self.size)} is larger than {name}, which is {list(sides)}"
        return told, "cut less, cut other fields, or leave small samples out by where"
