"""Volumes: arrays in chunks, on the source as they are. Samples are bricks, and follow from the metadata."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal

import numpy as np

from stager.errors import UsageError
from stager.interfaces import Count, LeftOut, Listing, Recipe
from stager.layouts.kind import LayoutKind
from stager.layouts.volume.chunks import list_chunks
from stager.layouts.volume.foreground import count_foreground
from stager.layouts.volume.formats.array import Array, Place, Wanted, brick_for
from stager.layouts.volume.formats.finding import find_array
from stager.layouts.volume.formats.levels import check_level
from stager.layouts.volume.guessing import guess_volumes
from stager.layouts.volume.opener import BrickOpener
from stager.layouts.volume.pieces import in_groups
from stager.layouts.volume.unpack import unpack
from stager.reader.samples.computed.bricks import Bricks
from stager.reader.samples.computed.chunked import Chunked
from stager.reader.samples.computed.grid import Sides, scale_of

HINT: Final = 'write it as volumes = { scan = "scan.zarr/0", mask = "mask.zarr/0" }, or a list of such tables'


class VolumeLayout:
    """The bricks of one or more volumes, each with the same fields: an image and its mask."""

    is_computed: Literal[True] = True

    def __init__(self, options: Mapping[str, Any], recipe: Recipe, left_out: LeftOut) -> None:
        self._volumes: list[dict[str, str]] = options["volumes"]
        self._level: int | str = options["level"]
        self._left_out = left_out
        self._fields = recipe.fields
        self._counted: tuple[str, ...] = options["foreground"]
        self._is_listed: bool = options["listing"]

    def rules(self, listing: Listing) -> Sequence[Bricks]:
        rules = [self._bricks(listing, paths) for paths in self._volumes]
        return list_chunks(rules, listing) if self._is_listed else rules

    @property
    def counters(self) -> Mapping[str, Count]:
        return {
            field: partial(count_foreground, field=field, opener=BrickOpener()) for field in self._counted
        }

    def _bricks(self, listing: Listing, paths: Mapping[str, str]) -> Bricks:
        wanted = {field.name: field for field in self._fields}
        if set(paths) != set(wanted):
            raise UsageError(
                f"a volume has {', '.join(sorted(paths))}, the recipe {', '.join(sorted(wanted))}",
                hint='give kind = "volume" a dtype for each: fields = { scan = "uint8" }',
            )

        place = Place(listing)
        bricks = {name: _sides(field.shape) for name, field in wanted.items()}
        found = {
            name: find_array(place, paths[name], self._level, Wanted(wanted[name].dtype, bricks[name]))
            for name in sorted(paths)
        }
        brick = tuple(map(max, zip(*bricks.values(), strict=True)))
        finest = next(name for name in sorted(bricks) if bricks[name] == brick)
        shape = found[finest].shape
        arrays = []
        for name, array in found.items():
            where = paths[name] or "the volume"
            _check(where, name, array, wanted[name].dtype, bricks[name])
            scale = scale_of(brick, bricks[name])
            if array.shape != shape or max(scale) > 1:
                _check_companion(where, name, array.shape, paths[finest] or "the volume", shape, scale)
            _check_nesting(where, array, bricks[name])
            if array.note:
                self._left_out.remark(array.note)
            arrays.append(_chunked(name, array, scale))
        rule = Bricks(paths[next(iter(found))], shape, brick, tuple(arrays))
        return in_groups(rule, {name: array.dtype for name, array in found.items()})


def _chunked(name: str, array: Array, scale: Sides) -> Chunked:
    """An array of a volume."""
    is_scaled = max(scale) > 1
    return Chunked(
        name,
        array.chunk,
        np.dtype(array.dtype).itemsize,
        array.opens,
        array.lies,
        array.shape if is_scaled else (),
        scale if is_scaled else (),
    )


def _check(where: str, name: str, array: Array, dtype: str, brick: Sides) -> None:
    """That an array is what the recipe says."""
    if not all((*array.shape, *array.chunk)):
        raise UsageError(f"{where} is empty: it is {list(array.shape)}, in chunks of {list(array.chunk)}")
    if array.dtype != dtype:
        raise UsageError(
            f"{where} is {array.dtype}, the recipe says {dtype}",
            hint=f'write {name} = "{array.dtype}" in its fields',
        )
    if len(brick) != len(array.shape):
        raise UsageError(
            f"{where} has {len(array.shape)} sides, its bricks {len(brick)}",
            hint=f"write brick = {brick_for(array.chunk, array.shape)} in the recipe",
        )


def _check_nesting(where: str, array: Array, brick: Sides) -> None:
    """That no brick lies across chunks of which it does not have the whole."""
    sides = zip(brick, array.chunk, array.shape, strict=True)
    if any(c % b and b % c and c < side for b, c, side in sides):
        raise UsageError(
            f"bricks of {list(brick)} do not divide the chunks of {where}, which are {list(array.chunk)}",
            hint=f"write brick = {brick_for(array.chunk, array.shape)} in the recipe",
        )


def _check_companion(where: str, name: str, shape: Sides, finest: str, whole: Sides, scale: Sides) -> None:
    """That an array covers the same of space as the finest one, at its scale; a voxel less is no matter."""
    if len(shape) == len(whole) and _covers(shape, whole, scale):
        return
    hint = "volumes that are read together have one shape, or one is so many times the other on each side"
    if len(shape) == len(whole):
        fitting = tuple(max(round(side / own), 1) for side, own in zip(whole, shape, strict=True))
        if _covers(shape, whole, fitting):
            hint = f"write scale = {{ {name} = {list(fitting)} }} in the recipe"
    by = f" at a scale of {list(scale)}" if max(scale) > 1 else ""
    raise UsageError(f"{where} is {list(shape)}, {finest} beside it {list(whole)}{by}", hint=hint)


def _covers(shape: Sides, whole: Sides, scale: Sides) -> bool:
    sides = zip(shape, whole, scale, strict=True)
    return all(own in (side // by, -(-side // by)) for own, side, by in sides)


def _sides(shape: Sequence[int | None]) -> Sides:
    return tuple(side or 0 for side in shape)


def check_volumes(options: Mapping[str, Any]) -> dict[str, Any]:
    """The paths of each volume's fields, and the level of those that have several."""
    volumes, level = options.get("volumes"), options.get("level", 0)
    volumes = [volumes] if isinstance(volumes, Mapping) else volumes
    if not isinstance(volumes, list | tuple) or not volumes:
        raise UsageError("the layout volume has no volumes", hint=HINT)
    for paths in volumes:
        if not isinstance(paths, Mapping) or not paths:
            raise UsageError(f"volumes has {paths!r}", hint=HINT)
        for name, path in paths.items():
            if not isinstance(path, str) or ".." in path.split("/"):
                raise UsageError(f"the path of the volume {name} is {path!r}", hint=HINT)
    level = check_level(level)
    told = [{name: path.strip("/") for name, path in paths.items()} for paths in volumes]
    if len({tuple(sorted(paths.items())) for paths in told}) < len(told):
        raise UsageError("a volume is named twice", hint="name each once")
    counted = options.get("foreground", ())
    counted = (counted,) if isinstance(counted, str) else counted
    names = sorted({name for paths in told for name in paths})
    if not isinstance(counted, list | tuple) or not all(name in names for name in counted):
        raise UsageError(f"foreground is {counted!r}", hint="fields of the volumes: " + ", ".join(names))
    listing = options.get("listing", False)
    if type(listing) is not bool:
        raise UsageError(f"listing is {listing!r}", hint="true: a scan lists the chunks")
    foreground = tuple(dict.fromkeys(counted))
    return {"volumes": told, "level": level, "foreground": foreground, "listing": listing}


VOLUME: Final = LayoutKind(
    ("volumes", "level", "foreground", "listing"),
    check_volumes,
    VolumeLayout,
    lambda options: BrickOpener(),
    has_chunks=True,
    unpack=unpack,
    guesses=guess_volumes,
)
