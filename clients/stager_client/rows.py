"""Samples of open shards into a batch: index word, shard, row. Without Python where C was compiled."""

import os
from collections.abc import Sequence
from contextlib import suppress
from ctypes import Structure, addressof, byref, c_int64, c_void_p
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from stager.reader import native
from stager.reader.index import Words, is_resident, row_of, shard_of
from stager.reader.values import Numbers, Starts

NOT_MAPPED: Final = (0, 0, 0)
PIECE_BYTES: Final = 2 << 20  # a huge page
Columns = Sequence[npt.NDArray[Any]]  # an array for each field, a row for each sample


class _Shards(Structure):
    """As samples.c has it."""

    _fields_ = (
        *((name, c_int64) for name in ("columns", "count")),
        *((name, c_void_p) for name in ("shard", "starts", "row_bytes")),
        ("samples", c_int64),
        ("index", c_void_p),
    )


class Mapping:
    """A whole file, to be read through windows (windows.c). It is unmapped when nobody holds it any more.

    What is not in memory is read from disk by whole pieces: it is for files that memory has room for.
    """

    def __init__(self, descriptor: int) -> None:
        self._library, size_bytes = native.library, c_int64()
        address = self._library.stager_map(descriptor, byref(size_bytes)) if self._library else None
        self._pieces = np.zeros(size_bytes.value // PIECE_BYTES + 1, np.uint8)
        self.told = address or 0, size_bytes.value, self._pieces.ctypes.data

    def __del__(self) -> None:
        address, size_bytes, _ = self.told
        if self._library and address:
            self._library.stager_unmap(address, size_bytes)


class ReadableShard(NamedTuple):
    """A shard whose rows are of one size: for each column, where they begin."""

    descriptor: int
    starts: Sequence[Starts]
    mapping: Mapping | None


class ReadableShards:
    """Such shards, by their numbers. Their files are open as long as it is held.

    `checked`: the word under which each sample was found right.
    """

    def __init__(
        self,
        index: Words,
        checked: Words,
        row_bytes: Sequence[int],
        shards: dict[int, ReadableShard],
    ) -> None:
        assert index.flags.c_contiguous
        assert checked.flags.c_contiguous
        assert len(index) == len(checked)
        self._index, self._checked, self._shards = index, checked, dict(sorted(shards.items()))
        self._checked_at = checked.ctypes.data
        rows = [
            (
                number,
                len(shard.starts[0]),
                shard.descriptor,
                *(shard.mapping.told if shard.mapping else NOT_MAPPED),
            )
            for number, shard in self._shards.items()
        ]
        starts = [of.ctypes.data for shard in self._shards.values() for of in shard.starts]
        # What the structure points to must live as long as it does.
        self._held = np.array(rows, np.int64), np.array(starts, np.uintp), np.array(row_bytes, np.int64)
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
        for rows, row_bytes in zip(out, self._held[2].tolist(), strict=True):
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
        room = column[place : place + 1].reshape(-1).view(np.uint8).data
        came, more = 0, -1
        with suppress(OSError):
            while came < len(room) and more:
                came += (more := os.preadv(shard.descriptor, [room[came:]], int(offsets[row]) + came))
        if came < len(room):
            return False
    return True
