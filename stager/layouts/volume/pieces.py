"""What is staged together, and which chunks are decoded to scratch for that: those that make it too large."""

import math
from dataclasses import replace
from typing import Final

from stager.layouts.volume.formats.array import raw, run_of
from stager.reader.samples.computed.bricks import Bricks
from stager.reader.samples.computed.chunked import Chunked
from stager.reader.samples.computed.grid import Sides
from stager.reader.samples.computed.spans import Pages, Pieces, Run
from stager.reader.values import Unpacked

GROUP_BYTES_MAX: Final = (
    64 << 20
)  # of bricks of one array that share chunks: of more, several shards are made


def in_groups(rule: Bricks, dtypes: dict[str, str]) -> Bricks:
    """The same bricks, grouped by chunks that the source is asked for.

    Chunks whose bricks are more than a shard are decoded once, to files, and these are read in pieces, as
    often as need be. So they decide what is staged together only if no other array does.
    """
    arrays = [_in_pieces(array, rule, dtypes[array.field]) for array in rule.arrays]
    is_local = [isinstance(array.part((0,) * len(rule.shape)).info, Unpacked) for array in arrays]
    if not all(is_local):
        arrays = [
            replace(array, group=_brick(array, rule)) if local else array
            for array, local in zip(arrays, is_local, strict=True)
        ]
    return Bricks(rule.name, rule.shape, rule.brick, tuple(arrays))


def _in_pieces(array: Chunked, rule: Bricks, dtype: str) -> Chunked:
    """Its chunks in pieces, if bricks of them are many, and pieces cannot be had of the source."""
    brick, shape = _brick(array, rule), array.shape or rule.shape
    cell = tuple(map(min, map(math.lcm, brick, array.chunk), shape))
    is_in_pieces = isinstance(array.lies, Run) or (isinstance(array.lies, Pages) and array.lies.piece)
    if is_in_pieces or math.prod(cell) * array.item_bytes <= GROUP_BYTES_MAX:
        return array
    sides = zip(run_of(array.chunk, brick, array.item_bytes), array.chunk, brick, shape, strict=True)
    cut = tuple(
        piece if whole % piece == 0 or whole >= side else math.gcd(whole, own)
        for piece, whole, own, side in sides
    )
    padded: Sides = tuple(-(-side // whole) * whole for side, whole in zip(shape, array.chunk, strict=True))
    return replace(
        array,
        chunk=cut,
        lies=Pieces(array.lies, array.chunk, cut, array.item_bytes, array.opens),
        group=array.chunk,
        opens=raw(dtype, padded, cut),
    )


def _brick(array: Chunked, rule: Bricks) -> Sides:
    return tuple(side // by for side, by in zip(rule.brick, array.scales, strict=True))
