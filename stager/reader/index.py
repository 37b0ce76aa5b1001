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
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from stager.errors import CacheError, NoSpace
from stager.reader.values import Numbers

Words = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]

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
_IDENTITY: Final = struct.Struct("<8sI16s16s")  # magic, version, lineage, recipe
_FLAGS_AT, _COUNT_AT, _EVICTIONS_AT, _SHARDS_AT = 48, 56, 64, 72  # each a u64


def pack_words(shard: int, rows: npt.NDArray[np.integer[Any]], format: str) -> Words:
    """The words that say: these rows of this shard."""
    if not 0 <= shard < SHARDS_MAX:
        raise ValueError(f"shard number {shard} does not fit a word")
    if len(rows) and not 0 <= rows.min() <= rows.max() < ROWS_MAX:
        raise ValueError(f"row {rows.max()} does not fit a word")
    words = rows.astype(np.uint64) | np.uint64(_PRESENT | FORMAT_NAMES.index(format) << 60 | shard << 24)
    return np.where(_is_odd(words), words | PARITY, words)


def is_resident(words: Words) -> Mask:
    return np.asarray((words >> _TOP_SHIFT & _TOP_MASK == _TOP_PRESENT) & ~_is_odd(words))


def is_failed(words: Words) -> Mask:
    return np.asarray(words == FAILED)


def is_damaged(words: Words) -> Mask:
    """Which words are none that was ever written."""
    return np.asarray((words != 0) & (words != FAILED) & ~is_resident(words))


def format_of(words: Words) -> npt.NDArray[np.int64]:
    """Positions in FORMAT_NAMES."""
    return (words >> _FORMAT_SHIFT & np.uint64(1)).astype(np.int64)


def shard_of(words: Words) -> npt.NDArray[np.int64]:
    return (words >> _SHARD_SHIFT & np.uint64(SHARDS_MAX - 1)).astype(np.int64)


def row_of(words: Words) -> npt.NDArray[np.int64]:
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
        mapped = _map(path, mmap.PROT_READ)
        count = _check(path, mapped, _identity(lineage, recipe))
        self.words: Words = np.frombuffer(mapped, "<u8", count, HEADER_BYTES)
        self._evictions: Words = np.frombuffer(mapped, "<u8", 1, _EVICTIONS_AT)
        self._flags: Words = np.frombuffer(mapped, "<u8", 1, _FLAGS_AT)

    @property
    def evictions(self) -> int:
        """How often words were taken away: when it moves, shards that are open may be gone from disk."""
        return int(self._evictions[0])

    @property
    def is_retired(self) -> bool:
        """Nothing will ever be resident here again: whoever wants more opens the data set again."""
        return bool(self._flags[0] & np.uint64(RETIRED))


class IndexWriter:
    """The index as the service writes it.

    Each word is published by one aligned 8-byte store, which x86-64 and arm64 never tear. numpy makes just
    that of `words[numbers] = ...` with an array of numbers: one typed store an element. (Not of a slice:
    that is a memcpy, which promises nothing about words.) No barrier is needed either: what a word points
    to is a file, made and opened by system calls.
    """

    def __init__(self, path: Path, count: int, lineage: str, recipe: str) -> None:
        """Open an index that is there, whatever its header says: what is damaged is mended in place."""
        self.path = path
        self._identity = _identity(lineage, recipe)
        self._map(count)
        self._mapped[: _IDENTITY.size] = self._identity

    @classmethod
    def open(cls, path: Path, count: int, lineage: str, recipe: str, scratch_dir: Path) -> Self:
        """Open the index of these samples and recipe; if there is none, put an empty one there."""
        if not path.exists():
            _create(path, _identity(lineage, recipe), count, scratch_dir)
        return cls(path, count, lineage, recipe)

    def _map(self, count: int) -> None:
        """Map the file with room for so many words; then say in its header how many there are."""
        _allocate(self.path, count)
        self._mapped = _map(self.path, mmap.PROT_READ | mmap.PROT_WRITE)
        self.words: Words = np.frombuffer(self._mapped, "<u8", count, HEADER_BYTES)
        self._header: Words = np.frombuffer(self._mapped, "<u8", HEADER_BYTES // 8)
        self._header[[_FLAGS_AT // 8, _COUNT_AT // 8]] = 0, count

    @property
    def evictions(self) -> int:
        return int(self._header[_EVICTIONS_AT // 8])

    @property
    def highest_shard(self) -> int:
        """The highest number of a shard that it ever named."""
        return min(int(self._header[_SHARDS_AT // 8]), SHARDS_MAX // 2)

    def extend(self, count: int) -> None:
        """Have room for more samples. Readers that have it mapped go on with those they know."""
        if count > len(self.words):
            self._map(count)

    def publish(self, numbers: Numbers, words: Words) -> None:
        """Point samples at their rows, or at FAILED. The shard must be complete under its final name."""
        self.words[numbers] = words
        highest = int(shard_of(words[is_resident(words)]).max(initial=0))
        if highest > int(self._header[_SHARDS_AT // 8]):
            self._header[_SHARDS_AT // 8] = highest

    def clear(self, numbers: Numbers) -> None:
        """Take samples away; only then may their rows or their shard go."""
        self.words[numbers] = np.uint64(0)

    def tell_gone(self) -> None:
        """Shards have gone: readers look which, and let go of them, so that their space comes back."""
        self._header[_EVICTIONS_AT // 8] += np.uint64(1)

    def replace_all(self, words: Words) -> None:
        """Make the words these, storing only what differs: readers that have it mapped go on."""
        changed = np.flatnonzero(self.words != words)
        took_away = bool(np.any(self.words[changed]))
        self.publish(changed, words[changed])
        if took_away:
            self.tell_gone()

    def close(self) -> None:
        """Unmap the file, once nobody holds `words` any more."""
        vars(self).clear()


def retire(path: Path) -> None:
    """Take an index away for good, of whatever version: no reader that has it mapped finds a word in it."""
    try:
        with path.open("r+b") as file:
            size_bytes = os.fstat(file.fileno()).st_size
            head = HEADER_BYTES if file.read(8) == MAGIC else 64  # of version 1
            if size_bytes > head:
                with mmap.mmap(file.fileno(), 0) as mapped:
                    if head == HEADER_BYTES:
                        struct.pack_into("<Q", mapped, _FLAGS_AT, RETIRED)
                    mapped[head:] = bytes(size_bytes - head)
    except OSError as error:
        raise CacheError(
            f"{path}: not cleared: {error.strerror}", hint="check the disk of the cache"
        ) from None
    path.unlink(missing_ok=True)


def highest_shard(path: Path) -> int:
    """The highest shard number that an index of this version ever named; 0 if that cannot be told."""
    try:
        mapped = _map(path, mmap.PROT_READ)
    except CacheError:
        return 0
    if len(mapped) < HEADER_BYTES or mapped[:8] != MAGIC:
        return 0
    words: Words = np.frombuffer(mapped, "<u8", (len(mapped) - HEADER_BYTES) // 8, HEADER_BYTES)
    named = int(shard_of(words[is_resident(words)]).max(initial=0))
    told = int(np.frombuffer(mapped, "<u8", 1, _SHARDS_AT)[0])
    return max(named, told if told < SHARDS_MAX else 0)


def _create(path: Path, identity: bytes, count: int, scratch_dir: Path) -> None:
    """Put an empty index there, at once and whole."""
    scratch = scratch_dir / f"{path.name}.{os.getpid()}"
    try:
        scratch.write_bytes(identity.ljust(HEADER_BYTES, b"\0"))
        _allocate(scratch, count)
        scratch.replace(path)
    except OSError as error:
        raise _refused(path, error) from error
    finally:
        scratch.unlink(missing_ok=True)


def _allocate(path: Path, count: int) -> None:
    """Have the blocks for so many words: a store into a mapped hole of a full disk is a SIGBUS."""
    try:
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, HEADER_BYTES + 8 * count)
    except OSError as error:
        raise _refused(path, error) from error


def _refused(path: Path, error: OSError) -> CacheError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    hint = "free some disk, or stager evict DATASET" if full else "check the disk of the cache"
    return (NoSpace if full else CacheError)(f"{path}: no index made: {error.strerror}", hint)


def _identity(lineage: str, recipe: str) -> bytes:
    """What says whose index it is."""
    return _IDENTITY.pack(MAGIC, FORMAT_VERSION, bytes.fromhex(lineage), bytes.fromhex(recipe))


def _map(path: Path, protection: int) -> mmap.mmap:
    """Map a whole file. Raise CacheError if it is missing or empty."""
    try:
        with path.open("r+b" if protection & mmap.PROT_WRITE else "rb") as file:
            return mmap.mmap(file.fileno(), 0, prot=protection)
    except (OSError, ValueError) as error:  # ValueError: it is empty
        raise CacheError(f"{path}: no index to read: {error}", hint="is the service running?") from error


def _check(path: Path, mapped: mmap.mmap, identity: bytes) -> int:
    """How many words a reader may look at. Raise CacheError if this is not the index that is wanted."""
    found = mapped[: _IDENTITY.size]
    if len(mapped) < HEADER_BYTES or found[:8] != MAGIC:
        raise CacheError(f"{path}: not an index", hint="restart the service: it mends its indexes")
    _, version, lineage, recipe = _IDENTITY.unpack(found)
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
    (count,) = struct.unpack_from("<Q", mapped, _COUNT_AT)
    if len(mapped) < HEADER_BYTES + 8 * count:
        raise CacheError(
            f"{path}: {len(mapped)} bytes, not those of {count} samples",
            hint="restart the service: it mends its indexes",
        )
    return int(count)
