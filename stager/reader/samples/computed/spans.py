"""Chunks that lie in objects with others: where each begins follows from a few values, or a table."""

import base64
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Final, Protocol

import numpy as np
import numpy.typing as npt

from stager.reader.samples.computed.grid import Sides, sides_in
from stager.reader.values import ObjectInfo, Part, Unpacked

Told = tuple[str, int, str]  # of an object: key, size, version
Table = npt.NDArray[np.int64]  # a line for each page: which object it is in, where it begins, its bytes
TABLE_BYTES_MAX: Final = 1 << 28  # of what a table becomes when it is read


@dataclass(frozen=True)
class Run:
    """One object has all voxels, one after the other, not compressed; or does so once it is unpacked."""

    kind: ClassVar[str] = "run"

    told: Told
    offset: int  # of the first voxel
    sides: Sides  # of the array
    cut: Sides  # of a chunk: each lies in one piece
    item: int  # bytes
    is_fortran: bool  # the first side is the fastest
    packed: int = 0  # bytes of the object, if it is packed
    by: str = ""  # what unpacks it

    def __post_init__(self) -> None:
        _put(self, told=_told(self.told), sides=sides_in(self.sides), cut=sides_in(self.cut))

    @cached_property
    def _info(self) -> ObjectInfo:
        key, size, version = self.told
        if not self.by:
            return ObjectInfo(key, size, version)
        return Unpacked(key, size, version, Part(ObjectInfo(key, self.packed, version)), self.by)

    def part(self, at: Sides, size_bytes: int) -> Part:
        begin = [number * side for number, side in zip(at, self.cut, strict=True)]
        size = [min(c, side - b) for c, side, b in zip(self.cut, self.sides, begin, strict=True)]
        first = self.offset + _index(begin, self.sides, self.is_fortran) * self.item
        return Part(self._info, first, first + math.prod(size) * self.item)

    def cost(self, chunks: int, chunk_bytes: int) -> tuple[int, int]:
        return (1, self.packed) if self.by else (chunks, chunks * chunk_bytes)

    def to_json(self) -> dict[str, Any]:
        packed = {"packed": self.packed, "by": self.by} if self.by else {}
        names = ("told", "offset", "sides", "cut", "item", "is_fortran")
        return {**{name: getattr(self, name) for name in names}, **packed}


@dataclass(frozen=True)
class Pages:
    """Each page or tile has a place in one of some objects: TIFF. A page may be cut into equal pieces."""

    kind: ClassVar[str] = "pages"

    objects: tuple[Told, ...]
    table: str  # of each page, as `packed_table` has it
    counts: Sides  # how many chunks there are on each side
    pieces: int = 1  # of a page
    piece: int = 0  # bytes of each but the last; 0: a page is one
    lines: int = 1  # of the table that a page has: strips, which come in one part

    def __post_init__(self) -> None:
        _put(self, objects=tuple(map(_told, self.objects)), counts=sides_in(self.counts))

    @cached_property
    def _infos(self) -> list[ObjectInfo]:
        return [ObjectInfo(*told) for told in self.objects]

    @cached_property
    def _table(self) -> Table:
        return unpacked_table(self.table)

    def part(self, at: Sides, size_bytes: int) -> Part:
        page, number = divmod(_index(at, self.counts, is_fortran=False), self.pieces)
        which, first, size = self._table[page * self.lines].tolist()
        if self.lines > 1:
            strips = self._table[page * self.lines : (page + 1) * self.lines, 1:]
            strips = strips[strips[:, 1] > 0]
            first = int(strips[:, 0].min()) if len(strips) else 0
            size = int(strips.sum(axis=1).max()) - first if len(strips) else 0
        start, stop = first + number * self.piece, first + size
        return Part(self._infos[which], start, min(start + self.piece, stop) if self.piece else stop)

    def cost(self, chunks: int, chunk_bytes: int) -> tuple[int, int]:
        each = self.piece or int(self._table[:, 2].mean() * self.lines)
        return chunks, chunks * each

    def to_json(self) -> dict[str, Any]:
        names = ("objects", "table", "counts", "pieces", "piece", "lines")
        return {name: getattr(self, name) for name in names}


class _Chunks(Protocol):
    kind: ClassVar[str]

    def part(self, at: Sides, size_bytes: int) -> Part: ...

    def cost(self, chunks: int, chunk_bytes: int) -> tuple[int, int]: ...

    def to_json(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Pieces:
    """Chunks that are large: each is decoded once, to a file, and read in pieces, which are our chunks."""

    kind: ClassVar[str] = "pieces"

    of: _Chunks  # where the large ones lie
    whole: Sides  # of a large one
    cut: Sides  # of a piece: each lies in one piece of its file
    item: int
    by: str  # what opens the large ones

    def __post_init__(self) -> None:
        _put(self, whole=sides_in(self.whole), cut=sides_in(self.cut))

    @property
    def per_packed(self) -> Sides:
        """How many pieces a large one has on each side."""
        return tuple(-(-whole // cut) for whole, cut in zip(self.whole, self.cut, strict=True))

    @property
    def _bytes(self) -> int:
        return math.prod(self.whole) * self.item

    def part(self, at: Sides, size_bytes: int) -> Part:
        per = self.per_packed
        which = tuple(number // count for number, count in zip(at, per, strict=True))
        packed = self.of.part(which, self._bytes)
        info = Unpacked(packed.info.key, self._bytes, packed.info.version, packed, self.by, which)
        sides = list(zip(at, per, self.cut, self.whole, strict=True))
        begin = [number % count * cut for number, count, cut, _ in sides]
        size = [min(cut, whole - b) for (_, _, cut, whole), b in zip(sides, begin, strict=True)]
        first = _index(begin, self.whole, is_fortran=False) * self.item
        return Part(info, first, first + math.prod(size) * self.item)

    def cost(self, chunks: int, chunk_bytes: int) -> tuple[int, int]:
        return self.of.cost(-(-chunks // math.prod(self.per_packed)), self._bytes)

    def to_json(self) -> dict[str, Any]:
        of = {"lies": self.of.kind, **self.of.to_json()}
        return {"of": of, "whole": self.whole, "cut": self.cut, "item": self.item, "by": self.by}


def packed_table(table: Table) -> str:
    """A table as JSON can carry it: what most lines have in common takes no room."""
    steps = np.diff(table, axis=0, prepend=0).astype("<i8")
    return base64.b64encode(zlib.compress(np.ascontiguousarray(steps.T).tobytes())).decode()


def unpacked_table(text: str) -> Table:
    """Raise ValueError if it is not what `packed_table` made."""
    data = zlib.decompressobj().decompress(base64.b64decode(text, validate=True), TABLE_BYTES_MAX)
    return np.cumsum(np.frombuffer(data, "<i8").reshape(3, -1).T.astype(np.int64), axis=0)


def _index(at: Sequence[int], sides: Sides, is_fortran: bool) -> int:
    """The number of a voxel, of whole numbers of any size."""
    index = 0
    pairs = list(zip(at, sides, strict=True))
    for number, side in reversed(pairs) if is_fortran else pairs:
        index = index * side + number
    return index


def _told(value: Sequence[Any]) -> Told:
    key, size, version = value
    return str(key), int(size), str(version)


def _put(of: Any, **values: Any) -> None:
    """What JSON has as lists."""
    for name, value in values.items():
        object.__setattr__(of, name, value)
