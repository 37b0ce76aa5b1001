"""The rule of a volume: its bricks, and the chunks that each is taken from. No chunk is listed."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from stager.reader.samples.computed.chunked import Chunked, Objects
from stager.reader.samples.computed.grid import Grid, Sides, places_between, sides_in
from stager.reader.samples.computed.listed import Listed
from stager.reader.samples.runs import Runs
from stager.reader.values import Numbers, Part, SampleInfo, Unpacked, canonical_json, digest_of

if TYPE_CHECKING:
    from stager.reader.samples.computed.rules import Rule

AT_ONCE: Final = 1 << 18  # bricks that are looked at together
ORIGIN: Final = "#"  # in a key: behind it comes where the brick begins, in voxels


class Box(NamedTuple):
    """What a brick takes of the chunk at these numbers: from `start`, so many voxels a side."""

    opens: str
    at: Sides
    start: Sides
    size: Sides


@dataclass(frozen=True)
class Bricks:
    """All bricks of one volume. It may have several arrays, whose bricks are one sample.

    An array may have one voxel where the volume has several. Its bricks are
    smaller by as much, and cover the same of space.
    """

    name: str
    shape: Sides
    brick: Sides
    arrays: tuple[Chunked, ...]
    listed: Listed | None  # the objects of its arrays; None: nobody has listed them

    def __init__(self, name: str, shape: Any, brick: Any, arrays: Any, listed: Listed | None = None) -> None:
        made = tuple(of if isinstance(of, Chunked) else Chunked.from_json(of) for of in arrays)
        sides = {"shape": sides_in(shape), "brick": sides_in(brick)}
        values: dict[str, Any] = {"name": name, **sides, "arrays": made, "listed": listed}
        for attribute, value in values.items():
            object.__setattr__(self, attribute, value)

    @cached_property
    def grid(self) -> Grid:
        """Its cells are what has to be fetched together, for nothing to be fetched twice."""
        covered = [
            tuple(side * scale for side, scale in zip(array.group or array.chunk, array.scales, strict=True))
            for array in self.arrays
        ]
        return Grid(self.shape, self.brick, tuple(map(math.lcm, self.brick, *covered)))

    @property
    def count(self) -> int:
        return len(self.grid)

    @cached_property
    def identity(self) -> dict[str, Any]:
        return self._told("") if self.listed is not None else self.to_json()

    @cached_property
    def _digest(self) -> str:
        return digest_of(canonical_json(self.identity).encode())

    def keys(self, rows: Numbers) -> list[str]:
        return [self._key(place) for place in self.grid.places(rows).tolist()]

    def versions(self, rows: Numbers) -> list[str]:
        if self.listed is not None:
            return [info.version for info in self.infos(rows)]
        return [self._version(row, ()) for row in rows.tolist()]

    def find(self, key: str) -> int | None:
        name, _, origin = key.rpartition(ORIGIN)
        numbers = origin.split(",")
        if name != self.name or len(numbers) != len(self.shape):
            return None
        if not all(number.isascii() and number.isdecimal() and len(number) < 20 for number in numbers):
            return None
        place = [int(number) // side for number, side in zip(numbers, self.brick, strict=True)]
        is_inside = all(at < count for at, count in zip(place, self.grid.counts, strict=True))
        return int(self.grid.rows(np.asarray([place]))[0]) if is_inside and self._key(place) == key else None

    def infos(self, rows: Numbers) -> list[SampleInfo]:
        made = []
        parts: dict[tuple[int, Sides], Part] = {}  # of chunks that several bricks share
        for row, place in zip(rows.tolist(), self.grid.places(rows).tolist(), strict=True):
            needed: list[Part] = []
            boxes: list[Box] = []
            blocks: list[Sides] = []
            for number, array in enumerate(self.arrays):
                taken = array.taken(place, self.brick, self.shape)
                blocks.append(tuple(len(side) for side in taken))
                for one in product(*taken):
                    at = tuple(side.chunk for side in one)
                    part = parts.get((number, at))
                    if part is None:
                        part = parts[number, at] = self._part(number, at)
                    needed.append(part)
                    start, size = tuple(side.start for side in one), tuple(side.size for side in one)
                    boxes.append(Box(array.opens, at, start, size))
            version = self._version(row, needed)
            made.append(SampleInfo(self._key(place), version, tuple(needed), tuple(boxes), tuple(blocks)))
        return made

    def _version(self, row: int, parts: Sequence[Part]) -> str:
        """That of the volume's metadata; if its objects were listed, theirs, too."""
        about = f"{self._digest}{row}"
        if self.listed is not None:
            about = canonical_json([about, [part.info.version for part in parts]])
        return digest_of(about.encode())

    def _part(self, number: int, at: Sides) -> Part:
        """A chunk of an array; if its object was listed, of that version."""
        array = self.arrays[number]
        part = array.part(at)
        if self.listed is None:
            return part
        assert isinstance(array.lies, Objects), "others are not listed"
        place = np.asarray(at) * array.chunk // array.object_sides()
        found = self.listed.find(number, int(np.ravel_multi_index(tuple(place), self.objects(number))))
        return array.lies.as_listed(part, found)

    def objects(self, number: int) -> Sides:
        """How many objects an array has on each side."""
        array = self.arrays[number]
        sides = zip(array.shape or self.shape, array.object_sides(), strict=True)
        return tuple(-(-side // own) for side, own in sides)

    def changed(self, before: "Rule", rows: Runs) -> Runs:
        return self._unlike(before, rows, Listed.differing)

    def lacking(self, before: "Rule", rows: Runs) -> Runs:
        return self._unlike(before, rows, Listed.lacking)

    def _unlike(self, before: "Rule", rows: Runs, how: Callable[[Listed, Listed, int], Numbers]) -> Runs:
        """Of these rows, those that take something of objects which differ in this way."""
        if self.listed is None:
            return Runs(())
        assert isinstance(before, Bricks)
        assert before.listed is not None
        found = Runs(())
        known = self._objects_of(rows)
        for number, array in enumerate(self.arrays):
            objects = how(self.listed, before.listed, number)
            objects = objects if known is None else np.intersect1d(objects, known[number])
            sides = zip(array.object_sides(), self._brick_of(array), strict=True)
            at_once = max(AT_ONCE // math.prod(side // brick + 2 for side, brick in sides), 1)
            for start in range(0, len(objects), at_once):
                bricks = self._bricks_of(number, objects[start : start + at_once])
                found = found.either(Runs.of_rising(bricks))
        return found.both(rows)

    def narrowed(self, rows: Runs) -> "Bricks":
        wanted = self._objects_of(rows)
        if self.listed is None or wanted is None:
            return self
        return replace(self, listed=self.listed.only(wanted))

    @property
    def table(self) -> pa.Table | None:
        return None if self.listed is None else self.listed.table

    def alone(self, number: int) -> "Bricks":
        """The same bricks of one array alone, by a grid of its own."""
        listed = None if self.listed is None else self.listed.alone(number)
        return replace(self, arrays=(self.arrays[number],), listed=listed)

    def mates(self, rows: Numbers) -> Numbers:
        return self.grid.mates(rows) if len(rows) else rows

    def firsts(self, rows: Numbers) -> Numbers:
        return self.grid.firsts(rows)

    def cost(self, samples: int) -> tuple[int, int]:
        """As far as the metadata tell: nobody has looked at chunks."""
        grid = self.grid
        cell = tuple(map(min, grid.cell, (n * b for n, b in zip(grid.counts, grid.brick, strict=True))))
        cells = math.ceil(samples * math.prod(self.brick) / math.prod(cell))
        requests = size_bytes = 0
        for array in self.arrays:
            shape = array.shape or self.shape
            sides = zip(shape, cell, array.scales, array.chunk, strict=True)
            chunks = cells * math.prod(
                math.ceil(min(side, covered / scale) / chunk) for side, covered, scale, chunk in sides
            )
            more = array.lies.cost(chunks, array.chunk_bytes)
            requests, size_bytes = requests + more[0], size_bytes + more[1]
        return requests, size_bytes

    def unpacked(self, rows: Numbers) -> list[Unpacked]:
        """What has to be unpacked for these bricks, and lies in scratch until they are staged."""
        packed = [array for array in self.arrays if array.is_packed]
        if not packed:
            return []
        places = np.unique(self.grid.places(rows), axis=0)
        found = (array.unpacked(places, self.brick, self.shape) for array in packed)
        return list(dict.fromkeys(info for of in found for info in of))

    def to_json(self) -> dict[str, Any]:
        return self._told(self.listed.digest if self.listed is not None else None)

    def _told(self, listed: str | None) -> dict[str, Any]:
        arrays = [array.to_json() for array in self.arrays]
        return {
            "kind": "bricks",
            "name": self.name,
            "shape": self.shape,
            "brick": self.brick,
            "arrays": arrays,
            **({} if listed is None else {"listed": listed}),
        }

    def _bricks_of(self, number: int, objects: Numbers) -> Numbers:
        """The bricks that take something of these objects of an array, in rising order."""
        array, sides = self.arrays[number], np.asarray(self.arrays[number].object_sides())
        shape, brick = np.asarray(array.shape or self.shape), self._brick_of(array)
        place = np.stack(np.unravel_index(objects, self.objects(number)), axis=1)
        last = np.minimum((place + 1) * sides, shape) - 1
        rows: Numbers = np.unique(self.grid.rows(places_between(place * sides // brick, last // brick)[1]))
        return rows

    def _objects_of(self, rows: Runs) -> list[Numbers] | None:
        """The objects of each array that these bricks take something of; None: all."""
        if len(rows) == self.count:
            return None
        found = [np.zeros(0, np.int64) for _ in self.arrays]
        for start in range(0, len(rows), AT_ONCE):
            places = self.grid.places(rows[start : start + AT_ONCE])
            for number, array in enumerate(self.arrays):
                shape, brick = np.asarray(array.shape or self.shape), self._brick_of(array)
                first, last = places * brick, np.minimum((places + 1) * brick, shape) - 1
                has_some = (first <= last).all(axis=1)  # a companion may end before
                sides = np.asarray(array.object_sides())
                between = places_between(first[has_some] // sides, last[has_some] // sides)[1]
                objects = np.ravel_multi_index(tuple(between.T), self.objects(number))
                found[number] = np.union1d(found[number], objects)
        return found

    def _brick_of(self, array: Chunked) -> Numbers:
        """The sides of a brick in an array's own voxels."""
        return np.asarray(np.asarray(self.brick) // np.asarray(array.scales), np.int64)

    def _key(self, place: list[int]) -> str:
        origin = (at * side for at, side in zip(place, self.brick, strict=True))
        return f"{self.name}{ORIGIN}{','.join(map(str, origin))}"
