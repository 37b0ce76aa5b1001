"""What a cut promises, and the draws that it is asked about."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from stager.reader.cuts.pieces import Pieces
from stager.reader.samples.subset import mix
from stager.reader.values import Field, Numbers, Shape

CUTS_SALT: Final = 0x5354_4147_4552_4355  # sets these numbers apart from those of orders and augmentations

Uniforms = npt.NDArray[np.float64]  # for each draw: a row of random numbers in [0, 1)
Sides = npt.NDArray[np.int64]  # of some rows of a field: a line each


@dataclass(frozen=True, slots=True)
class Draws:
    """Some draws of an epoch: places in the order of all ranks, and the sample that it has there."""

    seed: int
    epoch: int
    draws: Numbers
    positions: Numbers  # of the samples, in the subset
    places: Numbers  # in the output: where what is drawn goes
    made: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)  # what a cut keeps of them

    @classmethod
    def of(cls, seed: int, epoch: int, draws: Numbers, positions: Numbers) -> "Draws":
        """What is drawn goes to the output in this order."""
        return cls(seed, epoch, draws, positions, np.arange(len(draws)))

    def __len__(self) -> int:
        return len(self.draws)

    def some(self, which: Numbers) -> "Draws":
        """A part of these draws, whose places in the output stay."""
        if len(which) == len(self) and np.array_equal(which, np.arange(len(self))):
            return self
        return Draws(self.seed, self.epoch, self.draws[which], self.positions[which], self.places[which])

    def uniforms(self, count: int) -> Uniforms:
        """So many random numbers in [0, 1) for each draw: a row each."""
        return draw_uniforms(self.draws, self.seed, self.epoch, count)


class Rows(NamedTuple):
    """The samples that draws need, in the order in which they are read."""

    positions: Numbers
    ends: Numbers | None = None  # of each draw: where its rows end; None: it has one

    def draw_of(self) -> Numbers:
        """Which of the draws each row is of."""
        if self.ends is None:
            return np.arange(len(self.positions))
        return np.repeat(np.arange(len(self.ends)), np.diff(self.ends, prepend=0))

    def some(self, which: Numbers) -> tuple[Numbers, "Rows"]:
        """The places of the rows of some draws, and those draws' rows."""
        if self.ends is None:
            return which, Rows(self.positions[which])
        counts = np.diff(self.ends, prepend=0)[which]
        ends = np.cumsum(counts)
        places = np.repeat(self.ends[which] - ends, counts) + np.arange(int(counts.sum()))
        return places, Rows(self.positions[places], ends)

    def before(self, draw: int) -> int:
        """How many rows the first draws have together."""
        return draw if self.ends is None or draw < 1 else int(self.ends[min(draw, len(self.ends)) - 1])


class NoSuchPart(Exception):
    """A row has no such part, or none can be made of it. `row`: which of those that were given."""

    def __init__(self, row: int, message: str, hint: str) -> None:
        super().__init__(message)
        self.row, self.message, self.hint = row, message, hint


class Cut(Protocol):
    """It has no state, and may be used by any number of threads."""

    def for_fields(self, fields: Mapping[str, Field]) -> "Cut":
        """The same for these fields, by which all else goes: seconds are so many of its items.

        Raise UsageError if it can make nothing of them.
        """

    def rows(self, draws: Draws) -> Rows:
        """The samples that these draws need: without data, so that they can be staged ahead."""

    def shapes(self, shapes: Mapping[str, Shape]) -> dict[str, Shape]:
        """What a draw makes of fields of these shapes. Raise UsageError if they are too small."""

    def pieces(self, draws: Draws, rows: Rows, sides: Mapping[str, Sides]) -> dict[str, Pieces]:
        """Which bytes of these fields' rows go where in the output, which has a row for each draw.

        Raise NoSuchPart if a row is too small. It is asked about fields of which `shapes` says all sides.
        """

    def to_json(self) -> dict[str, Any]: ...


def draw_uniforms(draws: Numbers, seed: int, epoch: int, count: int, first: int = 0) -> Uniforms:
    """So many random numbers in [0, 1) for each draw of an epoch: a row each. `first`: of all that it has."""
    of_draw = mix(mix(draws.astype(np.uint64), seed), epoch)
    salts = mix(np.arange(first, first + count, dtype=np.uint64), CUTS_SALT)
    numbers = mix(of_draw[:, None] ^ salts, CUTS_SALT) >> np.uint64(11)
    return np.asarray(numbers * 2.0**-53)
