"""What a loader takes of a sample at read time: a part that is drawn anew at each read.

A cut is pure, and the same in the service and in all clients: a function of (seed, epoch, draw), where a draw
is a place in the epoch's order of all ranks together. So it does not depend on how many ranks there are, or
on a resume. It is made of integer arithmetic that no library version changes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np

from stager.errors import UsageError, nearest
from stager.reader.samples.subset import mix
from stager.reader.values import Numbers, Shape, Shapes, Window, Windows

SIDES_MAX: Final = 8
SIDE_MAX: Final = 2**40
CUTS_SALT: Final = 0x5354_4147_4552_4355  # sets these numbers apart from those of orders and augmentations


class Cut(Protocol):
    """It has no state, and may be used by any number of threads."""

    @property
    def numbers(self) -> int:
        """How many random numbers it needs for a draw."""

    def rows(self, order: Numbers) -> Numbers:
        """The samples that draws in this order need, in the order in which they are read."""

    def shapes(self, shapes: Mapping[str, Shape]) -> dict[str, Shape]:
        """What becomes of the shapes of fields. Raise UsageError if it can make nothing of them."""

    def windows(self, uniforms: Sequence[float], shapes: Shapes) -> Windows:
        """Which part of each field of a sample is taken. Raise UsageError if the sample is too small."""

    def to_json(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class RandomCrop:
    """A window of `size` at a random place, over the first sides of every field that has so many.

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

    @property
    def numbers(self) -> int:
        return len(self.size)

    def rows(self, order: Numbers) -> Numbers:
        return order

    def shapes(self, shapes: Mapping[str, Shape]) -> dict[str, Shape]:
        for name in self.fields:
            if name not in shapes:
                raise UsageError(f"there is no field {name!r} to cut", hint=nearest(name, shapes))
        if not any(self._takes(name, shape) for name, shape in shapes.items()):
            told = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
            raise UsageError(f"no field has {len(self.size)} sides to cut: {told}", hint="cut fewer sides")
        return {name: self._cut_shape(name, shape) for name, shape in shapes.items()}

    def windows(self, uniforms: Sequence[float], shapes: Shapes) -> Windows:
        return {name: self._window(name, sides, uniforms) for name, sides in shapes.items()}

    def to_json(self) -> dict[str, Any]:
        about: dict[str, Any] = {"kind": "random_crop", "size": list(self.size)}
        return {**about, "fields": list(self.fields)} if self.fields else about

    def _takes(self, name: str, shape: Sequence[int | None]) -> bool:
        return len(shape) >= len(self.size) and (not self.fields or name in self.fields)

    def _cut_shape(self, name: str, shape: Shape) -> Shape:
        if not self._takes(name, shape):
            return shape
        self._check(name, shape)
        return (*self.size, *shape[len(self.size) :])

    def _window(self, name: str, sides: Sequence[int], uniforms: Sequence[float]) -> Window:
        if not self._takes(name, sides):
            return ()
        self._check(name, sides)
        window = []
        for uniform, side, size in zip(uniforms, sides, self.size, strict=False):
            start = int(uniform * (side - size + 1))
            window.append(slice(start, start + size))
        return tuple(window)

    def _check(self, name: str, sides: Sequence[int | None]) -> None:
        for side, size in zip(sides, self.size, strict=False):
            if side is not None and side < size:
                raise UsageError(
                    f"a cut of {list(self.size)} is larger than {name}, which is {list(sides)}",
                    hint="cut less, cut other fields, or leave small samples out by where",
                )


CUTS: Final = {"random_crop": RandomCrop}


def open_cut(value: Mapping[str, Any]) -> Cut:
    """The cut of its `to_json`. Raise UsageError if there is no such one."""
    settings = dict(value)
    kind = str(settings.pop("kind", None))
    if kind not in CUTS:
        raise UsageError(f"there is no cut {kind!r}", hint=nearest(kind, CUTS))
    try:
        return CUTS[kind](**settings)
    except TypeError as error:
        raise UsageError(
            f"the cut {kind} has other settings: {error}", hint="what its to_json says"
        ) from None


def draw_uniforms(draws: Numbers, seed: int, epoch: int, count: int) -> list[list[float]]:
    """So many random numbers in [0, 1) for each draw of an epoch: a row each."""
    of_draw = mix(mix(draws.astype(np.uint64), seed), epoch)
    salts = mix(np.arange(count, dtype=np.uint64), CUTS_SALT)
    numbers = mix(of_draw[:, None] ^ salts, CUTS_SALT) >> np.uint64(11)
    rows: list[list[float]] = (numbers * 2.0**-53).tolist()
    return rows
