"""How much foreground each brick of a volume has: a scan reads its mask once, chunk by chunk."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from stager.interfaces import Listing, Opener
from stager.reader.samples.computed.bricks import Bricks
from stager.reader.samples.runs import Runs
from stager.reader.values import Numbers

Counted = npt.NDArray[np.uint32]


def count_foreground(
    rule: Bricks, rows: Runs, listing: Listing, told: Callable[[int], None], field: str, opener: Opener
) -> Counted:
    """Of each of these bricks, how many voxels of the volume are not 0 in this field.

    Raise SampleError if a chunk cannot be read: an estimate that lacks one would tell nobody. `told` is given
    how many bricks are counted, now and then.
    """
    number = next(number for number, array in enumerate(rule.arrays) if array.field == field)
    array = rule.arrays[number]
    alone = rule.alone(number)  # its own grid: bricks of one of its chunks are neighbours
    found = np.zeros(len(rows), np.uint32)

    def count(of_alone: Numbers) -> tuple[Numbers, list[int]]:
        infos = alone.infos(of_alone)
        opened: dict[Any, Any] = {}
        for part in {part: None for info in infos for part in info.parts}:
            opened[part] = opener.open(0, listing.read(part))
        boxes = (opener.take([opened[part] for part in info.parts], info.at) for info in infos)
        counted = rule.grid.rows(alone.grid.places(of_alone))
        return rows.find(counted), [sum(map(np.count_nonzero, of)) for of in boxes]

    done, most = 0, math.prod(rule.brick)
    wanted = Runs([(0, rule.count)])
    if len(rows) < rule.count:
        wanted = Runs.of_rising(np.sort(alone.grid.rows(rule.grid.places(rows[:]))))
    for places, voxels in listing.side_by_side(_cells(alone, wanted), count):
        found[places] = np.minimum(np.asarray(voxels, np.int64) * math.prod(array.scales), most)
        told(done := done + len(places))
    return found


def _cells(rule: Bricks, wanted: Runs) -> Iterator[Numbers]:
    """These bricks, those of each cell together: they are numbered one after the other."""
    at = 0
    while at < len(wanted):
        here = wanted.find(rule.mates(np.asarray([wanted[at]])))
        yield wanted[here[here >= 0]]
        at = int(here.max()) + 1
