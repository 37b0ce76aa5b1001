"""Patches around points of a table."""

from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from os import PathLike
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from stager.errors import UsageError
from stager.reader.cuts.cut import Draws
from stager.reader.cuts.patches.patch import Patches, which
from stager.reader.samples.computed.grid import Places
from stager.reader.settings import ORDER_NUMBERS_MAX
from stager.reader.values import Numbers, pack_numbers, unpack_numbers

VOLUME: Final = "volume"  # the column that says which one, counted from 0
HINT: Final = "a line for each: where it is in voxels; or the number of its volume, and that"


@dataclass(frozen=True)
class CentredPatch(Patches):
    """Around each of `centres` once an epoch, moved by up to `jitter` voxels a side, anew at each draw.

    `centres`: an array with a line for each, or a CSV or Parquet file with a column for each side; the
    number of the volume comes first, or in a column `volume`, if there are several. With borders="inside",
    a centre whose patch reaches out is left out.
    """

    kind: ClassVar[str] = "centred_patch"
    centres: Any = field(default=None, compare=False, repr=False)
    _: KW_ONLY
    jitter: Any = 0
    points: str = ""  # volume and centre of each, packed

    def _check_more(self) -> None:
        sides = len(self.size)
        jitter = (self.jitter,) * sides if isinstance(self.jitter, int) else tuple(self.jitter)
        if len(jitter) != sides or not all(type(by) is int and by >= 0 for by in jitter):
            raise UsageError(f"a jitter of {self.jitter!r} makes no sense", hint="voxels, or voxels a side")
        points = self.points or pack_numbers(_lines(self.centres, sides).reshape(-1))
        self._set(jitter=jitter, points=points, centres=None)
        if self.grids:
            self._check_centres()

    def count(self) -> int:
        found = self._check(self._smallest(), len(self._kept))
        if not found:
            raise UsageError(
                f"no patch of {list(self.size)} around these {len(self._lines)} centres is whole",
                hint='borders="pad" keeps those that reach out; stager ls --failed tells what is lost',
            )
        if self.length not in (0, found):
            raise UsageError(f"there are {found} such patches, not {self.length}", hint="no length")
        return found

    def corners(self, draws: Draws) -> tuple[Numbers, Places]:
        volume, corner = self._around(self._kept[draws.positions])
        if not any(self.jitter):
            return volume, corner
        by = np.asarray(self.jitter)
        moved = (draws.uniforms(len(by)) * (2 * by + 1)).astype(np.int64) - by
        moved = corner + moved // np.asarray(self.step) * np.asarray(self.step)
        if self.borders == "inside":
            moved = np.clip(moved, 0, self._shapes[volume] - self._size)
        else:
            moved = self._reaching(volume, moved)
        return volume, np.where(self._is_whole(volume, moved)[:, None], moved, corner)

    def to_json(self) -> dict[str, Any]:
        return {**Patches.to_json(self), "jitter": list(self.jitter), "points": self.points}

    def _around(self, numbers: Numbers) -> tuple[Numbers, Places]:
        lines, step = self._lines[numbers], np.asarray(self.step)
        corner = (lines[:, 1:] - self._size // 2) // step * step
        if self.borders == "pad":
            corner = self._reaching(lines[:, 0], corner)
        return lines[:, 0], corner

    def _reaching(self, volume: Numbers, corner: Places) -> Places:
        """The nearest places at which at least a voxel of each field is inside."""
        return np.asarray(np.clip(corner, self.step - self._size, self._shapes[volume] - self.step), np.int64)

    def _check_centres(self) -> None:
        """Raise UsageError if one is in no volume."""
        volume, centre = self._lines[:, 0], self._lines[:, 1:]
        is_out = volume >= len(self.grids)
        shapes = np.asarray([grid.shape for grid, _ in self.grids])
        if shapes.shape[1] == centre.shape[1]:  # else `count` says so
            is_out |= (centre >= shapes[np.minimum(volume, len(shapes) - 1)]).any(axis=1)
        if is_out.any():
            line = int(np.argmax(is_out))
            raise UsageError(
                f"centre {line} is {centre[line].tolist()} of volume {volume[line]}, where no volume is",
                hint=f"there are {len(shapes)} volumes, of {', '.join(map(str, shapes.tolist()))}",
            )

    def _is_kept(self, part: slice) -> npt.NDArray[np.bool_]:
        volume, corner = self._around(np.arange(part.start, part.stop))
        is_kept = np.asarray(self._is_whole(volume, corner))
        if self.borders == "inside":
            is_kept &= ((corner >= 0) & (corner + self._size <= self._shapes[volume])).all(axis=1)
        return is_kept

    @cached_property
    def _kept(self) -> Numbers:
        """The centres whose patches can be had."""
        return which(len(self._lines), self._is_kept)

    @cached_property
    def _lines(self) -> Places:
        try:
            return unpack_numbers(self.points).reshape(-1, 1 + len(self.size))
        except ValueError:
            raise UsageError("the centres of a cut make no sense", hint=HINT) from None


def _lines(told: Any, sides: int) -> Places:
    """Volume and centre of each. Raise UsageError if that is not what was given."""
    table = _read(told) if isinstance(told, str | PathLike) else told
    try:
        lines = np.asarray(table, np.float64)
    except (TypeError, ValueError):
        lines = np.zeros(0)
    if lines.ndim != 2 or lines.shape[1] not in (sides, 1 + sides) or not len(lines):
        raise UsageError(f"centres of patches with {sides} sides have {sides} numbers each", hint=HINT)
    if not np.isfinite(lines).all() or lines.min() < 0 or lines.max() >= 2**32:
        raise UsageError("centres are voxels of a volume: from 0 on", hint=HINT)
    if lines.size > ORDER_NUMBERS_MAX:
        raise UsageError(
            f"{len(lines):,} centres are too many", hint=f"{ORDER_NUMBERS_MAX:,} numbers at most"
        )
    whole = lines.astype(np.int64)  # the voxel that a point lies in
    return whole if whole.shape[1] > sides else np.concatenate([whole[:, :1] * 0, whole], axis=1)


def _read(path: Any) -> npt.NDArray[Any]:
    """A table's columns of numbers: that of the volume first, if it is there."""
    from pyarrow import ArrowException, csv, parquet

    try:
        is_csv = str(path).endswith(".csv")
        table = csv.read_csv(path) if is_csv else parquet.read_table(path)
    except (OSError, ArrowException) as error:
        raise UsageError(f"{path} cannot be read: {error}", hint="a .csv or .parquet file") from None
    names = sorted(table.column_names, key=lambda name: name != VOLUME)  # the others as they are
    try:
        return np.stack([table[name].to_numpy().astype(np.float64) for name in names], axis=1)
    except (TypeError, ValueError, ArrowException):
        raise UsageError(
            f"{path} has {', '.join(names)}, and not all are numbers",
            hint="a column for each side, and volume",
        ) from None
