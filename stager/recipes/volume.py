"""The recipe for volumes: bricks of one size, voxels as they are stored."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stager.errors import SampleError, UsageError, nearest
from stager.interfaces import Data, Kind, Needs
from stager.reader.samples.predicate import COLUMNS
from stager.reader.values import Arrays, Field, canonical_json, digest_of
from stager.recipes.kind import RecipeKind

VERSION: Final = "volume/2"  # to be raised when the same keys come to give other values
BRICK: Final = (32, 32, 32)
BRICK_VOXELS_MAX: Final = 1 << 24
KINDS_OF_DTYPE: Final = "biuf"
KEYS: Final = ("fields", "brick", "patch", "scale")
ROW_VOXELS: Final = (
    1 << 14
)  # a brick of fewer is made longer, if the patch is: small rows cost as much as these


@dataclass(frozen=True, slots=True)
class VolumeRecipe:
    """A box of each array of a volume. What reaches out of the volume is zero."""

    dtypes: tuple[tuple[str, str], ...]  # of each field, in the order of their names
    brick: tuple[int, ...]
    scales: tuple[tuple[str, tuple[int, ...]], ...] = ()  # voxels that one of a field covers, if not one

    takes = Kind("volume", "volumes", ())
    inputs = ()

    @property
    def digest(self) -> str:
        keys = {"version": VERSION, "fields": self.dtypes, "brick": self.brick, "scale": self.scales}
        return digest_of(canonical_json(keys).encode())

    @property
    def fields(self) -> tuple[Field, ...]:
        return tuple(Field(name, dtype, self._shape(name)) for name, dtype in self.dtypes)

    def needs(self, columns: Sequence[str], field: str = "") -> Needs:
        raise UsageError("a table has no volumes", hint='the recipe volume goes with layout = "volume"')

    def prepare(self, data: Sequence[Data], inputs: tuple[Any, ...]) -> Arrays:
        """`inputs`: how many boxes there are on each side, for each field; `data`: the boxes, in order."""
        arrays: Arrays = {}
        rest = iter(data)
        if len(data) != sum(math.prod(blocks) for blocks in inputs) or len(inputs) != len(self.dtypes):
            raise UsageError("bricks are made of volumes only", hint='set layout = "volume"')
        for (name, dtype), blocks in zip(self.dtypes, inputs, strict=True):
            boxes = [_array(next(rest), dtype) for _ in range(math.prod(blocks))]
            arrays[name] = _brick(boxes, blocks, self._shape(name), dtype)
        return arrays

    def _shape(self, name: str) -> tuple[int, ...]:
        """Of a field's bricks."""
        scale = dict(self.scales).get(name, (1,) * len(self.brick))
        return tuple(side // by for side, by in zip(self.brick, scale, strict=True))


def _brick(
    boxes: list[npt.NDArray[Any]], blocks: Sequence[int], shape: tuple[int, ...], dtype: str
) -> npt.NDArray[Any]:
    """Boxes side by side, each as large as it is."""
    if len(boxes) == 1 and boxes[0].shape == shape:
        return np.ascontiguousarray(boxes[0])
    brick = np.zeros(shape, dtype)
    behind: dict[tuple[int, int], int] = {}  # of a side and a box's number on it: where the next one begins
    for at, box in zip(np.ndindex(*blocks), boxes, strict=True):
        starts = [behind.get((side, number - 1), 0) for side, number in enumerate(at)]
        ends = [start + size for start, size in zip(starts, box.shape, strict=True)]
        behind.update({(side, number): end for side, (number, end) in enumerate(zip(at, ends, strict=True))})
        brick[tuple(map(slice, starts, ends))] = box
    return brick


def _array(data: Data, dtype: str) -> npt.NDArray[Any]:
    if not isinstance(data, np.ndarray) or data.dtype != np.dtype(dtype):
        told = data.dtype if isinstance(data, np.ndarray) else "no array"
        raise SampleError("unknown_format", f"it is {told}, the recipe says {dtype}")
    return data


def check_volume(keys: Mapping[str, Any]) -> dict[str, Any]:
    """All keys of a volume recipe, checked, with defaults for those that are not given."""
    for key in keys:
        if key not in KEYS:
            raise UsageError(f"unknown key {key} in the recipe", hint=nearest(key, KEYS))
    fields, brick = keys.get("fields"), _brick_of(keys)
    if not isinstance(fields, Mapping) or not fields:
        raise UsageError(
            "the volume recipe has no fields", hint='write the dtype of each: fields = { scan = "uint8" }'
        )
    if not isinstance(brick, list | tuple) or not brick or not all(type(n) is int and n > 0 for n in brick):
        raise UsageError(f"recipe brick is {brick!r}", hint="a number of voxels a side: brick = [32, 32, 32]")
    if math.prod(brick) > BRICK_VOXELS_MAX:
        raise UsageError(f"recipe brick is {list(brick)}: too large", hint="bricks of 32 a side are usual")
    return {
        "fields": {name: _dtype(name, fields[name]) for name in sorted(fields)},
        "brick": tuple(brick),
        "patch": tuple(keys.get("patch", ())),
        "scale": _scales(keys.get("scale", {}), fields, brick),
    }


def _brick_of(keys: Mapping[str, Any]) -> Any:
    """The brick that is given, or that is right for patches of the size that is given."""
    patch = keys.get("patch", ())
    if not isinstance(patch, list | tuple) or not all(type(n) is int and n > 0 for n in patch):
        raise UsageError(f"recipe patch is {patch!r}", hint="voxels a side: patch = [72, 136, 136]")
    if not patch:
        return keys.get("brick", BRICK)
    chosen = brick_for(patch)
    if "brick" in keys and keys["brick"] not in (chosen, list(chosen)):
        raise UsageError("the recipe has a brick and a patch", hint="a patch chooses the brick: write one")
    return chosen


def brick_for(patch: Sequence[int]) -> tuple[int, ...]:
    """Bricks that patches of this size are read in: at most half of each side, so little is read in vain.

    They are powers of two, as most chunks are. Where a patch is flat, they are longer on its other sides.
    """
    half = [1 << max(side // 2, 1).bit_length() - 1 for side in patch]
    brick = [min(side, max(BRICK)) for side in half]
    while math.prod(brick) < ROW_VOXELS and brick != half:
        longer = [side for side in range(len(brick)) if brick[side] < half[side]]
        brick[min(longer, key=brick.__getitem__)] *= 2
    return tuple(brick)


def _scales(told: Any, fields: Mapping[str, Any], brick: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """How many voxels of the volume one of a field covers on each side, for those where it is not one."""
    if not isinstance(told, Mapping):
        raise UsageError(f"recipe scale is {told!r}", hint="of a mask of half the resolution: { mask = 2 }")
    found: dict[str, tuple[int, ...]] = {}
    for name in sorted(told):
        if name not in fields:
            raise UsageError(f"scale has no field {name!r}", hint=nearest(name, fields))
        by = told[name]
        sides = [by] * len(brick) if type(by) is int else by
        if not isinstance(sides, list | tuple) or not all(type(n) is int and n > 0 for n in sides):
            raise UsageError(f"the scale of {name} is {by!r}", hint="a number, or one a side: [1, 2, 2]")
        if len(sides) != len(brick) or any(side % n for side, n in zip(brick, sides, strict=True)):
            told_brick = f"the scale of {name} is {list(sides)}, a brick is {list(brick)}"
            raise UsageError(told_brick, hint="it divides the brick, side by side")
        if any(n > 1 for n in sides):
            found[name] = tuple(sides)
    if len(found) == len(fields):
        raise UsageError("all fields have a scale", hint="the finest one has none: others go by its voxels")
    return found


def _dtype(name: str, told: Any) -> str:
    if name in COLUMNS or not name.isidentifier():
        raise UsageError(f"a field cannot be called {name!r}", hint="use a name such as scan or mask")
    try:
        dtype = np.dtype(told if isinstance(told, str) and told else "V")
    except TypeError:
        dtype = np.dtype("V")
    if dtype.kind not in KINDS_OF_DTYPE:
        raise UsageError(f"the dtype of {name} is {told!r}", hint=f'as it is stored: {name} = "uint16"')
    return dtype.newbyteorder("<").name


VOLUME: Final = RecipeKind(
    check_volume,
    lambda keys: VolumeRecipe(
        tuple(keys["fields"].items()), tuple(keys["brick"]), tuple(keys["scale"].items())
    ),
    VolumeRecipe.takes,
    {"zarr": "zarr"},
    extra="volume",
)
