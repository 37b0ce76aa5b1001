"""The index: which shard and row holds each sample. A mapped array of 64-bit words, one a sample's number.

There is one file for each recipe of a data set. The service alone writes it, and brings it in line with the
catalog at every start, so it is never synced to disk. Readers map it for as long as they like: so the file is
never replaced and never shrinks. It only grows, in place; and before its name goes, its words are cleared and
it says that it is retired.
"""

import errno
import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stager.errors import CacheError
from stager.reader.values import Mask, Numbers

Words = npt.NDArray[np.uint64]

# A word: 0 is not resident. Bit 63 present, bit 62 failed, 60 format, 59 parity, 24-55 shard, 0-23 row. All
# bits together are even: a word with one flipped bit is damaged, and neither resident nor failed.
FORMAT_NAMES: Final = ("arrow", "lmdb")  # by their number in a word
ROWS_MAX: Final = 1 << 24
SHARDS_MAX: Final = 1 << 32
PARITY: Final = np.uint64(1 << 59)
FAILED: Final = np.uint64(1 << 62) | PARITY  # the sample cannot be had
_PRESENT: Final = 1 << 63
_TOP_SHIFT, _FORMAT_SHIFT, _SHARD_SHIFT = np.uint64(56), np.uint64(60), np.uint64(24)
_TOP_MASK, _TOP_PRESENT = np.uint64(0xE7), np.uint64(0x80)  # of the highest byte, without format and parity

MAGIC: Final = b"STGRIDX2"
FORMAT_VERSION: Final = 2
HEADER_BYTES: Final = 128
RETIRED: Final = 1  # a flag
IDENTITY: Final = struct.Struct("<8sI16s16s")  # magic, version, lineage, recipe
FLAGS_AT, COUNT_AT, EVICTIONS_AT, SHARDS_AT = 48, 56, 64, 72  # each a u64


def pack_words(shard: int, rows: npt.NDArray[np.integer[Any]], format: str) -> Words:
    """The words that say: these rows of this shard."""
    if not 0 <= shard < SHARDS_MAX:
        raise ValueError(f"shard number {shard} does not fit a word")
    if len(rows) and not 0 <= rows.min() <= rows.max() < ROWS_MAX:
        raise ValueError(f"row {rows.max()} does not fit a word")
    words = rows.astype(np.uint64) | np.uint64(_PRESENT | FORMAT_NAMES.index(format) << 60 | shard << 24)
    return np.where(_is_odd(words), words | PARITY, words)


def is_resident(words: Words) -> Mask:
    """Words that point to a row. A damaged one does not."""
    return np.asarray((words >> _TOP_SHIFT & _TOP_MASK == _TOP_PRESENT) & ~_is_odd(words))


def is_failed(words: Words) -> Mask:
    """Words of samples that cannot be staged."""
    return np.asarray(words == FAILED)


def is_damaged(words: Words) -> Mask:
    """Which words are none that was ever written."""
    return np.asarray((words != 0) & (words != FAILED) & ~is_resident(words))


def format_of(words: Words) -> npt.NDArray[np.int64]:
    """Positions in FORMAT_NAMES."""
    return (words >> _FORMAT_SHIFT & np.uint64(1)).astype(np.int64)


def shard_of(words: Words) -> npt.NDArray[np.int64]:
    """The shard's number, of words that are resident."""
    return (words >> _SHARD_SHIFT & np.uint64(SHARDS_MAX - 1)).astype(np.int64)


def row_of(words: Words) -> npt.NDArray[np.int64]:
    """The row in the shard, of words that are resident."""
    return (words & np.uint64(ROWS_MAX - 1)).astype(np.int64)


def _is_odd(words: Words) -> Mask:
    """Whether the number of set bits is odd."""
    if hasattr(np, "bitwise_count"):
        return np.asarray(np.bitwise_count(words) & 1 != 0)
    for shift in (32, 16, 8, 4, 2, 1):  # NumPy 1
        words = words ^ (words >> np.uint64(shift))
    return np.asarray(words & np.uint64(1) != 0)


class IndexReader:
    """An index as readers map it. Its words change while one looks: take a copy to decide on."""

    def __init__(self, path: Path, lineage: str, recipe: str) -> None:
        """Raise CacheError if there is no index, or it is not of this list of samples and recipe."""
        self._path = path
        mapped = map_file(path, mmap.PROT_READ)
        count = _check(path, mapped, identity_of(lineage, recipe))
        self.words: Words = np.frombuffer(mapped, "<u8", count, HEADER_BYTES)
        self._evictions: Words = np.frombuffer(mapped, "<u8", 1, EVICTIONS_AT)
        self._flags: Words = np.frombuffer(mapped, "<u8", 1, FLAGS_AT)

    @property
    def evictions(self) -> int:
        """How often words were taken away: when it moves, shards that are open may be gone from disk."""
        return int(self._evictions[0])

    def used(self) -> Numbers:
        """The numbers of all samples that it says anything of."""
        return used_words(self._path, self.words)

    def failed(self) -> Numbers:
        """The numbers of all samples that cannot be had."""
        used = self.used()
        return used[is_failed(self.words[used])]

    @property
    def is_retired(self) -> bool:
        """Nothing will ever be resident here again: whoever wants more opens the data set again."""
        return bool(self._flags[0] & np.uint64(RETIRED))


def identity_of(lineage: str, recipe: str) -> bytes:
    """What says whose index it is."""
    return IDENTITY.pack(MAGIC, FORMAT_VERSION, bytes.fromhex(lineage), bytes.fromhex(recipe))


def used_words(path: Path, words: Words) -> Numbers:
    """The numbers of all words of an index that are not 0. Where its file has a hole, nobody looks."""
    found: list[npt.NDArray[np.int64]] = [np.zeros(0, dtype=np.int64)]
    with path.open("rb") as file:
        for start, stop in data_ranges(file.fileno(), HEADER_BYTES, HEADER_BYTES + words.nbytes):
            first, end = (start - HEADER_BYTES) // 8, -(-(stop - HEADER_BYTES) // 8)
            found.append(first + np.flatnonzero(words[first:end]))
    return np.concatenate(found)


def data_ranges(fd: int, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """The parts of a file, between two offsets, that are no holes; all of it, where that cannot be told."""
    while start < stop:
        try:
            begin = os.lseek(fd, start, os.SEEK_DATA)
            end = min(os.lseek(fd, begin, os.SEEK_HOLE), stop)
        except OSError as error:
            if error.errno != errno.ENXIO:  # that says: there is nothing but holes
                yield start, stop
            return
        if begin < stop:
            yield begin, end
        start = end


def map_file(path: Path, protection: int) -> mmap.mmap:
    """Map a whole file. Raise CacheError if it is missing or empty."""
    try:
        with path.open("r+b" if protection & mmap.PROT_WRITE else "rb") as file:
            return mmap.mmap(file.fileno(), 0, prot=protection)
    except (OSError, ValueError) as error:  # ValueError: it is empty
        raise CacheError(f"{path}: no index to read: {error}", hint="is the service running?") from error


def _check(path: Path, mapped: mmap.mmap, identity: bytes) -> int:
    """How many words a reader may look at. Raise CacheError if this is not the index that is wanted."""
    found = mapped[: IDENTITY.size]
    if len(mapped) < HEADER_BYTES or found[:8] != MAGIC:
        raise CacheError(f"{path}: not an index", hint="restart the service: it mends its indexes")
    _, version, lineage, recipe = IDENTITY.unpack(found)
    if version != FORMAT_VERSION:
        raise CacheError(
            f"{path}: index format {version}, not {FORMAT_VERSION}",
            hint="use one version of stager on both sides, and restart the service",
        )
    if found != identity:
        raise CacheError(
            f"{path}: the index of other samples or another recipe ({lineage.hex()}, {recipe.hex()})",
            hint="open the data set again",
        )
    (count,) = struct.unpack_from("<Q", mapped, COUNT_AT)
    if len(mapped) < HEADER_BYTES + 8 * count:
        raise CacheError(
            f"{path}: {len(mapped)} bytes, not those of {count} samples",
            hint="restart the service: it mends its indexes",
        )
    return int(count)
