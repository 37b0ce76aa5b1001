"""Samples of open shards into a batch: index word, shard, row. Without Python where C was compiled."""

import os
from collections.abc import Sequence
from contextlib import suppress
from ctypes import Structure, addressof, byref, c_int64, c_void_p
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from stager.reader import native
from stager.reader.cuts.cut import Sides
from stager.reader.cuts.pieces import Pieces
from stager.reader.index import Words, is_resident, row_of, shard_of
from stager.reader.values import Numbers, Shape, Starts

NOT_MAPPED: Final = (0, 0, 0)
HUGE_PAGE_BYTES: Final = 2 << 20
Columns = Sequence[npt.NDArray[Any]]  # an array for each field, a row for each sample


class _Shards(Structure):
    """As samples.c has it."""

    _fields_ = (
        *((name, c_int64) for name in ("columns", "count")),
        *((name, c_void_p) for name in ("shard", "starts", "sides", "dimensions", "row_bytes")),
        ("samples", c_int64),
        ("index", c_void_p),
    )


class _Cutting(Structure):
    """As pieces.c has it."""

    _fields_ = (
        *((name, c_int64) for name in ("item_bytes", "dimensions", "count", "is_apart")),
        *((name, c_void_p) for name in ("pieces", "starts", "out")),
    )


class Mapping:
    """A whole file, to be read through windows (windows.c). It is unmapped when nobody holds it any more.

    What is not in memory is read from disk by whole huge pages: it is for files that memory has room for.
    """

    def __init__(self, descriptor: int) -> None:
        self._library, size_bytes = native.library, c_int64()
        address = self._library.stager_map(descriptor, byref(size_bytes)) if self._library else None
        self._huge_pages = np.zeros(size_bytes.value // HUGE_PAGE_BYTES + 1, np.uint8)
        self.told = address or 0, size_bytes.value, self._huge_pages.ctypes.data

    def __del__(self) -> None:
        address, size_bytes, _ = self.told
        if self._library and address:
            self._library.stager_unmap(address, size_bytes)


class ReadableShard(NamedTuple):
    """An open shard: for each column, where its rows begin; and their sides, if they are not all of one size.

    What is not known yet of rows that differ is 0.
    """

    descriptor: int
    starts: Sequence[Starts]
    mapping: Mapping | None
    sides: Sequence[Sides | None] = ()


class FoundRows(NamedTuple):
    """Where the rows of some samples lie."""

    numbers: Numbers
    words: Words  # under which each was found; 0: it was not
    shards: Numbers  # which of the shards, counted
    starts: list[Numbers]  # of each column: where its rows begin
    sides: list[Sides]  # of each column: a line a row
    held: "ReadableShards"  # in which `shards` are counted: their files stay open as long as this is held

    def some(self, places: Numbers) -> "FoundRows":
        """Of these rows only."""
        starts, sides = ([of[places] for of in each] for each in (self.starts, self.sides))
        return FoundRows(
            self.numbers[places], self.words[places], self.shards[places], starts, sides, self.held
        )


class ReadableShards:
    """Open shards, by their numbers. Their files are open as long as it is held.

    `checked`: the word under which each sample was found right.
    """

    def __init__(
        self,
        index: Words,
        checked: Words,
        row_bytes: Sequence[int],
        shards: dict[int, ReadableShard],
        shapes: Sequence[Shape] = (),
    ) -> None:
        """`row_bytes`: of columns whose rows are of one size. `shapes`: of columns that pieces are cut of."""
        assert index.flags.c_contiguous
        assert checked.flags.c_contiguous
        assert len(index) == len(checked)
        self._index, self._checked, self._shards = index, checked, dict(sorted(shards.items()))
        self._checked_at = checked.ctypes.data
        rows: list[tuple[int, ...]] = [
            (
                number,
                len(shard.starts[0]),
                shard.descriptor,
                *(shard.mapping.told if shard.mapping else NOT_MAPPED),
            )
            for number, shard in self._shards.items()
        ]
        starts = [of.ctypes.data for shard in self._shards.values() for of in shard.starts]
        sides = [
            0 if of is None else of.ctypes.data
            for shard in self._shards.values()
            for of in shard.sides or [None] * len(shard.starts)
        ]
        self._shapes = shapes
        # What the structure points to must live as long as it does.
        self._held = (
            np.array(rows, np.int64),
            np.array(starts, np.uintp),
            np.array(sides, np.uintp),
            np.array([len(shape) for shape in shapes], np.int64),
            np.array(row_bytes, np.int64),
        )
        places = (array.ctypes.data for array in self._held)
        self._told = _Shards(len(row_bytes), len(rows), *places, len(index), index.ctypes.data)

    def read(
        self, numbers: Numbers, places: Numbers | None, out: Columns, only_checked: bool
    ) -> tuple[Words, int]:
        """Read samples to their places in `out`, an array for each column; None: in order.

        Return the word under which each was read, and which the index still had afterwards, and how many were
        not read. Those have 0: they are in none of the shards, cannot be read whole, or were not checked.
        """
        if not len(numbers):
            return np.zeros(0, np.uint64), 0
        for rows, row_bytes in zip(out, self._held[-1].tolist(), strict=True):
            assert rows.flags.c_contiguous
            assert rows.nbytes == len(rows) * row_bytes
            assert (
                len(numbers) <= len(rows) if places is None else 0 <= places.min() <= places.max() < len(rows)
            )
        numbers = np.ascontiguousarray(numbers, np.int64)  # bound to a name, or a copy would be gone
        places = None if places is None else np.ascontiguousarray(places, np.int64)
        words = np.empty(len(numbers), np.uint64)
        if native.library is None:
            return words, self._read_one_by_one(numbers, places, out, only_checked, words)
        left = native.library.stager_read_samples(
            addressof(self._told),
            len(numbers),
            native.address_of(numbers.data),
            None if places is None else native.address_of(places.data),
            self._checked_at if only_checked else None,
            (c_void_p * len(out))(*(native.address_of(rows.data) for rows in out)),
            native.address_of(words.data),
        )
        return words, left

    def find(self, numbers: Numbers) -> FoundRows:
        """Where samples lie that are in these shards, and were checked."""
        count = len(numbers)
        words, shards = np.zeros(count, np.uint64), np.zeros(count, np.int64)
        starts = [np.zeros(count, np.int64) for _ in self._shapes]
        sides = [
            np.full((count, len(shape)), [side or 0 for side in shape], np.int64) for shape in self._shapes
        ]
        found = FoundRows(np.ascontiguousarray(numbers, np.int64), words, shards, starts, sides, self)
        if native.library is None:
            self._find_one_by_one(found)
        else:
            native.library.stager_find_rows(
                addressof(self._told),
                count,
                found.numbers.ctypes.data,
                self._checked_at,
                words.ctypes.data,
                shards.ctypes.data,
                (c_void_p * len(starts))(*(of.ctypes.data for of in starts)),
                (c_void_p * len(sides))(*(of.ctypes.data for of in sides)),
            )
        return found

    def copy(self, found: FoundRows, pieces: Sequence[Pieces], out: Columns) -> Words:
        """Copy pieces of what was found, of each column to its array.

        Return the words that the index still had afterwards. Of a row that has 0 nothing is to be used.
        """
        words, cuttings = found.words.copy(), (_Cutting * len(out))()
        tables = [np.ascontiguousarray(of.table) for of in pieces]
        for at, (of, starts, sides, items) in enumerate(
            zip(pieces, found.starts, found.sides, out, strict=True)
        ):
            assert items.flags.c_contiguous
            of.check(np.prod(sides, axis=1), items.size)
            address = native.address_of(items.data)
            about = items.itemsize, of.dimensions, len(of.table), of.is_apart, tables[at].ctypes.data
            cuttings[at] = _Cutting(*about, starts.ctypes.data, address)
        if native.library is None:
            self._copy_one_by_one(found, words, pieces, out)
            return words
        native.library.stager_copy_pieces(
            addressof(self._told),
            len(words),
            found.numbers.ctypes.data,
            words.ctypes.data,
            found.shards.ctypes.data,
            len(out),
            cuttings,
        )
        return words

    def spans(self, found: FoundRows, pieces: Sequence[Pieces], out: Columns) -> list[Numbers]:
        """Of all that `copy` is going to read: from which files, the first byte, and how many."""
        parts = []
        for of, starts, items in zip(pieces, found.starts, out, strict=True):
            rows, firsts, counts = of.spans()
            is_there = found.words[rows] != 0
            rows, firsts, counts = rows[is_there], firsts[is_there], counts[is_there]
            descriptors = self._held[0][:, 2][found.shards[rows]]
            parts.append((descriptors, starts[rows] + firsts * items.itemsize, counts * items.itemsize))
        return [np.concatenate(told) for told in zip(*parts, strict=True)]

    def _find_one_by_one(self, found: FoundRows) -> None:
        place_of = {number: place for place, number in enumerate(self._shards)}
        for at, number in enumerate(found.numbers.tolist()):
            word: Any = self._index[number] if 0 <= number < len(self._index) else np.uint64(0)
            place = place_of.get(int(shard_of(word)))
            if not is_resident(word) or self._checked[number] != word or place is None:
                continue
            shard, row = self._shards[int(shard_of(word))], int(row_of(word))
            if row >= len(shard.starts[0]) or not all(of[row] > 0 for of in shard.starts):
                continue
            found.words[at], found.shards[at] = word, place
            for starts, sides, of, its in zip(
                found.starts, found.sides, shard.starts, shard.sides or [None] * len(found.sides), strict=True
            ):
                starts[at] = of[row]
                if its is not None:
                    sides[at] = its[row]

    def _copy_one_by_one(
        self, found: FoundRows, words: Words, pieces: Sequence[Pieces], out: Columns
    ) -> None:
        shards = list(self._shards.values())
        for of, starts, items in zip(pieces, found.starts, out, strict=True):

            def read(row: int, start: int, count: int, starts: Numbers = starts, out: Any = items) -> Any:
                room = np.zeros(count, out.dtype)
                at = int(starts[row]) + start * out.itemsize
                if words[row] and not _read_bytes(shards[found.shards[row]].descriptor, at, room):
                    words[row] = 0
                return room

            of.copy(items, read)
        words[self._index[found.numbers] != words] = 0

    def _read_one_by_one(
        self, numbers: Numbers, places: Numbers | None, out: Columns, only_checked: bool, words: Words
    ) -> int:
        for at, number in enumerate(numbers.tolist()):
            words[at] = 0
            word: Any = self._index[number] if 0 <= number < len(self._index) else np.uint64(0)
            if not is_resident(word) or (only_checked and self._checked[number] != word):
                continue
            shard = self._shards.get(int(shard_of(word)))
            row, place = int(row_of(word)), at if places is None else int(places[at])
            if shard and row < len(shard.starts[0]) and _read_row(shard, row, out, place):
                words[at] = word if self._index[number] == word else 0
        return int(np.count_nonzero(words == 0))


def _read_row(shard: ReadableShard, row: int, out: Columns, place: int) -> bool:
    for column, offsets in zip(out, shard.starts, strict=True):
        if not _read_bytes(shard.descriptor, int(offsets[row]), column[place : place + 1].reshape(-1)):
            return False
    return True


def _read_bytes(descriptor: int, offset: int, items: npt.NDArray[Any]) -> bool:
    """Fill an array from a file. False: it could not be read whole."""
    room = items.view(np.uint8).data
    came, more = 0, -1
    with suppress(OSError):
        while came < len(room) and more:
            came += (more := os.preadv(descriptor, [room[came:]], offset + came))
    return came == len(room)
