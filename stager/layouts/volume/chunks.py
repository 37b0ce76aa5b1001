"""Which chunks of some volumes there are, and of what version: one listing tells it of all."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from stager.errors import UsageError
from stager.interfaces import Listing
from stager.reader.samples.computed.bricks import Bricks
from stager.reader.samples.computed.chunked import Objects
from stager.reader.samples.computed.grid import Sides
from stager.reader.samples.computed.listed import Listed, OfArray
from stager.reader.values import ObjectInfo

HINT: Final = "leave listing out: it is for Zarr arrays of chunks below 64 MB; other files are noticed anyway"


def list_chunks(rules: Sequence[Bricks], listing: Listing) -> list[Bricks]:
    """The same, with what a listing of the source says of their chunks. Raise UsageError if none can."""
    arrays = [[_Array.of(rule, number) for number in range(len(rule.arrays))] for rule in rules]
    by_folder: dict[str, list[_Array]] = {}
    for of_one in (of_one for of_rule in arrays for of_one in of_rule):
        by_folder.setdefault(of_one.lies.keys, []).append(of_one)
    for info in listing.objects():
        for folder, here in by_folder.items():
            if info.key.startswith(folder):
                for of_one in here:
                    of_one.add(info)
    return [
        replace(rule, listed=Listed.of([of_one.found for of_one in of_rule]))
        for rule, of_rule in zip(rules, arrays, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class _Array:
    """One array, and its objects as they are found."""

    lies: Objects
    sides: Sides  # how many objects there can be
    found: OfArray

    @classmethod
    def of(cls, rule: Bricks, number: int) -> "_Array":
        lies = rule.arrays[number].lies
        if not isinstance(lies, Objects):
            raise UsageError(f"the chunks of {rule.arrays[number].field} are no objects to list", hint=HINT)
        return cls(lies, rule.objects(number), OfArray(array("q"), array("q"), []))

    def add(self, info: ObjectInfo) -> None:
        """One more, if it is a chunk of this array, or a shard."""
        place = self.lies.place_of(info.key)
        is_one = place is not None and len(place) == len(self.sides)
        if is_one and all(at < count for at, count in zip(place or (), self.sides, strict=True)):
            self.found.numbers.append(int(np.ravel_multi_index(place or (), self.sides)))
            self.found.sizes.append(info.size)
            self.found.versions.append(info.version)
