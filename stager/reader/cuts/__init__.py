"""What a loader takes of a sample at read time: a part that is drawn anew at each read.

A cut is pure, and the same in the service and in all clients: a function of (seed, epoch, draw), where a draw
is a place in the epoch's order of all ranks together. So it does not depend on how many ranks there are, or
on a resume. It is made of integer arithmetic that no library version changes.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from stager.errors import UsageError, nearest
from stager.reader.cuts.crop import RandomCrop
from stager.reader.cuts.cut import Cut
from stager.reader.cuts.patches.centred_patch import CentredPatch
from stager.reader.cuts.patches.grid_patch import GridPatch
from stager.reader.cuts.patches.patch import Patches
from stager.reader.cuts.patches.random_patch import RandomPatch
from stager.reader.cuts.segment import GridSegments, RandomSegment

CUTS: Final[dict[str, Callable[..., Cut]]] = {
    "random_crop": RandomCrop,
    RandomSegment.kind: RandomSegment,
    GridSegments.kind: GridSegments,
    RandomPatch.kind: RandomPatch,
    GridPatch.kind: GridPatch,
    CentredPatch.kind: CentredPatch,
}


def length_of(cut: Cut | None, samples: int) -> int:
    """How many draws an epoch has of a data set with so many samples."""
    return cut.length if isinstance(cut, Patches) else samples


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
