"""An array in chunks: where they lie, and which part of its source each is."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any, ClassVar, Final, NamedTuple, Protocol, Self

import numpy as np

from stager.reader.samples.computed.grid import Places, Sides, sides_in
from stager.reader.samples.computed.spans import Pages, Pieces, Run
from stager.reader.values import Absent, Enclosed, Inner, ObjectInfo, Part, Unlisted, Unpacked, is_number

SIDES: Final = ("chunk", "group", "scale", "shape", "shard")  # of what JSON has, these are sides


class Lies(Protocol):
    """Where the chunks of an array lie."""

    kind: ClassVar[str]

    def part(self, at: Sides, size_bytes: int) -> Part:
        """The chunk at these numbers, which has about so many bytes."""

    def cost(self, chunks: int, chunk_bytes: int) -> tuple[int, int]:
        """How many requests it takes to have so many chunks, and how many bytes, or so."""

    def to_json(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Objects:
    """Each chunk is an object, or in one with others behind an index, under a key that follows: Zarr."""

    kind: ClassVar[str] = "objects"

    witness: str  # the key of the metadata
    version: str  # of them
    keys: str  # of chunks: what stands in front of the numbers
    separator: str  # between them
    shard: Sides  # of an object with several chunks, in chunks; (): each is an object
    is_index_last: bool
    has_checksum: bool  # the index

    def part(self, at: Sides, size_bytes: int) -> Part:
        if not self.shard:
            return Part(self._object(at, size_bytes, None))
        inside = [number % count for number, count in zip(at, self.shard, strict=True)]
        number = int(np.ravel_multi_index(inside, self.shard))
        inner = Inner(number, math.prod(self.shard), self.is_index_last, self.has_checksum)
        at = tuple(n // count for n, count in zip(at, self.shard, strict=True))
        return Part(self._object(at, size_bytes, inner))

    def as_listed(self, part: Part, found: tuple[int, str] | None) -> Part:
        """The same, of an object that was listed with this size and version; None: there was none."""
        info = part.info
        if found is None:
            return Part(Absent(info.key, 0, ""))
        listed = ObjectInfo(info.key, *found)
        if not isinstance(info, Unlisted) or info.inner is None:
            return Part(listed)
        return Part(Enclosed(info.key, info.size, listed.version, listed, info.inner))

    def place_of(self, key: str) -> Sides | None:
        """Which object a key names, as numbers on each side; None: it names none."""
        numbers = key.removeprefix(self.keys).split(self.separator)
        if not key.startswith(self.keys) or not all(map(is_number, numbers)):
            return None
        return tuple(map(int, numbers))

    def _object(self, at: Sides, size_bytes: int, inner: Inner | None) -> Unlisted:
        key = self.keys + self.separator.join(map(str, at))
        return Unlisted(key, size_bytes, self.version, self.witness, inner)

    def cost(self, chunks: int, chunk_bytes: int) -> tuple[int, int]:
        """As if all chunks were there, and not compressed: nobody has looked at them."""
        return chunks, chunks * chunk_bytes

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def lies_in(value: Mapping[str, Any]) -> Lies:
    """What `to_json` made, with the kind's name as `lies`; without one it is Objects."""
    rest = dict(value)
    return LIES[rest.pop("lies", Objects.kind)](**rest)


def _pieces(of: Mapping[str, Any], **rest: Any) -> Pieces:
    return Pieces(
        of=lies_in({name: sides_in(at) if name in SIDES else at for name, at in of.items()}), **rest
    )


LIES: Final[Mapping[str, Callable[..., Lies]]] = {
    Objects.kind: Objects,
    Run.kind: Run,
    Pages.kind: Pages,
    Pieces.kind: _pieces,
}


class Taken(NamedTuple):
    """What a brick takes of a chunk on one side."""

    chunk: int
    start: int  # in the chunk
    size: int


@dataclass(frozen=True, slots=True)
class Chunked:
    """An array of a volume, which lies in chunks of one size, and what opens them."""

    field: str
    chunk: Sides
    item_bytes: int
    opens: str  # what the opener is told: JSON
    lies: Lies
    shape: Sides = ()  # (): the volume's
    scale: Sides = ()  # how many voxels of the volume one of it covers, on each side; (): one
    group: Sides = ()  # what of it is to be staged together; (): a chunk

    @property
    def chunk_bytes(self) -> int:
        """Decoded; compressed it has fewer."""
        return math.prod(self.chunk) * self.item_bytes

    @property
    def scales(self) -> Sides:
        """For each side, how many voxels of the volume one of it covers."""
        return self.scale or (1,) * len(self.chunk)

    def part(self, at: Sides) -> Part:
        """The chunk at these numbers."""
        return self.lies.part(at, self.chunk_bytes)

    def object_sides(self) -> Sides:
        """How many voxels of it an object has on each side."""
        shard = self.lies.shard if isinstance(self.lies, Objects) else ()
        return tuple(c * n for c, n in zip(self.chunk, shard or (1,) * len(self.chunk), strict=True))

    def taken(self, place: list[int], brick: Sides, shape: Sides) -> list[list[Taken]]:
        """Which chunks a brick of a volume lies in, side by side, and what it takes of each."""
        sides = zip(place, brick, self.scales, self.shape or shape, self.chunk, strict=True)
        return [_taken(at, voxels // scale, side, chunk) for at, voxels, scale, side, chunk in sides]

    @property
    def is_packed(self) -> bool:
        """Whether chunks are parts of something that is unpacked first."""
        return isinstance(self.part((0,) * len(self.chunk)).info, Unpacked)

    def unpacked(self, places: Places, brick: Sides, shape: Sides) -> set[Unpacked]:
        """What has to be unpacked for bricks at these places, if it is packed."""
        per = self.lies.per_packed if isinstance(self.lies, Pieces) else ()
        found: set[Unpacked] = set()
        known: set[Sides] = set()
        for place in places.tolist():
            for at in product(
                *(dict.fromkeys(t.chunk for t in side) for side in self.taken(place, brick, shape))
            ):
                packed = tuple(n // count for n, count in zip(at, per, strict=True)) if per else ()
                if packed not in known:
                    known.add(packed)
                    info = self.part(at).info
                    assert isinstance(info, Unpacked)
                    found.add(info)
        return found

    def to_json(self) -> dict[str, Any]:
        told = {name: getattr(self, name) for name in ("field", "chunk", "item_bytes", "opens")}
        more = {name: value for name in ("shape", "scale", "group") if (value := getattr(self, name))}
        kind = {} if self.lies.kind == Objects.kind else {"lies": self.lies.kind}
        return {**told, **more, **kind, **self.lies.to_json()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        rest: dict[str, Any] = {name: sides_in(of) if name in SIDES else of for name, of in value.items()}
        names = ("field", "chunk", "item_bytes", "opens", "shape", "scale", "group")
        own = {name: rest.pop(name) for name in names if name in rest}
        return cls(lies=lies_in(rest), **own)


def _taken(at: int, brick: int, side: int, chunk: int) -> list[Taken]:
    """Nothing, if the array ends before the brick: a companion may have a voxel less than fits."""
    first, end = at * brick, min((at + 1) * brick, side)
    if first >= end:
        return []
    taken = []
    for number in range(first // chunk, -(-end // chunk)):
        start = max(first - number * chunk, 0)
        taken.append(Taken(number, start, min(end - number * chunk, chunk) - start))
    return taken
