"""What a loader takes of each sample at read time, for its `cut`."""

from stager.reader.cuts.crop import RandomCrop
from stager.reader.cuts.cut import Cut
from stager.reader.cuts.patches.centred_patch import CentredPatch
from stager.reader.cuts.patches.floats import Floats
from stager.reader.cuts.patches.grid_patch import GridPatch
from stager.reader.cuts.patches.random_patch import RandomPatch
from stager.reader.cuts.segment import GridSegments, RandomSegment

__all__ = [
    "CentredPatch",
    "Cut",
    "Floats",
    "GridPatch",
    "GridSegments",
    "RandomCrop",
    "RandomPatch",
    "RandomSegment",
]
