"""The index as the service writes it: extended in place, cleared, retired. Its words: reader/index.py."""

import errno
import mmap
import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Self

import numpy as np

from stager.errors import CacheError, NoSpace
from stager.reader.index import (
    COUNT_AT,
    EVICTIONS_AT,
    FLAGS_AT,
    HEADER_BYTES,
    IDENTITY,
    MAGIC,
    RETIRED,
    SHARDS_AT,
    SHARDS_MAX,
    Words,
    data_ranges,
    identity_of,
    is_resident,
    map_file,
    shard_of,
    used_words,
)
from stager.reader.samples.by_number import ByNumber
from stager.reader.values import Numbers

BLOCK_BYTES: Final = mmap.PAGESIZE  # that a sparse index grows by, at least


class IndexWriter:
    """The index as the service writes it.

    Each word is published by one aligned 8-byte store, which x86-64 and arm64 never tear. numpy makes just
    that of `words[numbers] = ...` with an array of numbers: one typed store an element. (Not of a slice:
    that is a memcpy, which promises nothing about words.) No barrier is needed either: what a word points
    to is a file, made and opened by system calls.
    """

    def __init__(self, path: Path, count: int, lineage: str, recipe: str, is_sparse: bool = False) -> None:
        """Open an index that is there, whatever its header says: what is damaged is mended in place.

        `is_sparse`: it has blocks only for words that somebody made room for, of a data set that may have
        millions of samples, few of which are ever staged.
        """
        self.path, self._is_sparse = path, is_sparse
        self._has_room = ByNumber(np.bool_)  # which blocks of a sparse one
        self._identity = identity_of(lineage, recipe)
        self._map(count)
        self._mapped[: IDENTITY.size] = self._identity

    @classmethod
    def open(
        cls, path: Path, count: int, lineage: str, recipe: str, scratch_dir: Path, is_sparse: bool = False
    ) -> Self:
        """Open the index of these samples and recipe; if there is none, put an empty one there."""
        if not path.exists():
            _create(path, identity_of(lineage, recipe), count, is_sparse, scratch_dir)
        return cls(path, count, lineage, recipe, is_sparse)

    def _map(self, count: int) -> None:
        """Map the file with room for so many words; then say in its header how many there are."""
        _allocate_words(self.path, count, self._is_sparse)
        self._mapped = map_file(self.path, mmap.PROT_READ | mmap.PROT_WRITE)
        self.words: Words = np.frombuffer(self._mapped, "<u8", count, HEADER_BYTES)
        self._header: Words = np.frombuffer(self._mapped, "<u8", HEADER_BYTES // 8)
        self._header[[FLAGS_AT // 8, COUNT_AT // 8]] = 0, count

    @property
    def evictions(self) -> int:
        """How often words were cleared: readers that cache what they found compare it."""
        return int(self._header[EVICTIONS_AT // 8])

    @property
    def highest_shard(self) -> int:
        """The highest number of a shard that it ever named."""
        return min(int(self._header[SHARDS_AT // 8]), SHARDS_MAX // 2)

    def extend(self, count: int, is_sparse: bool = False) -> None:
        """Have words for more samples. Readers that have it mapped go on with those they know."""
        self._is_sparse |= is_sparse
        if count > len(self.words):
            self._map(count)

    def make_room(self, numbers: Numbers) -> None:
        """Have the blocks of these samples' words. Raise NoSpace if the disk has none."""
        if not self._is_sparse or not len(numbers):
            return
        blocks = np.unique((HEADER_BYTES + 8 * numbers) // BLOCK_BYTES)
        blocks = blocks[~self._has_room[blocks]]
        if len(blocks):
            ends = np.flatnonzero(np.diff(blocks) != 1) + 1
            runs = [(int(run[0]), len(run)) for run in np.split(blocks, ends)]
            ranges = [(first * BLOCK_BYTES, count * BLOCK_BYTES) for first, count in runs]
            _allocate(self.path, ranges, 0)
            self._has_room[blocks] = True

    def used(self) -> Numbers:
        """The numbers of all samples that it says anything of."""
        return used_words(self.path, self.words)

    def publish(self, numbers: Numbers, words: Words) -> None:
        """Point samples at their rows, or at FAILED. The shard must be complete under its final name."""
        self.words[numbers] = words
        highest = int(shard_of(words[is_resident(words)]).max(initial=0))
        if highest > int(self._header[SHARDS_AT // 8]):
            self._header[SHARDS_AT // 8] = highest

    def clear(self, numbers: Numbers) -> None:
        """Take samples away; only then may their rows or their shard go."""
        self.words[numbers] = np.uint64(0)

    def tell_gone(self) -> None:
        """Shards have gone: readers look which, and let go of them, so that their space comes back."""
        self._header[EVICTIONS_AT // 8] += np.uint64(1)

    def replace_all(self, numbers: Numbers, words: Words) -> None:
        """Make the words of these samples, which rise, these, and all others 0.

        Only what differs is stored: readers that have it mapped go on.
        """
        self.make_room(numbers)
        strange = np.setdiff1d(self.used(), numbers, assume_unique=True)
        changed = self.words[numbers] != words
        took_away = len(strange) > 0 or bool(np.any(self.words[numbers[changed]]))
        self.clear(strange)
        self.publish(numbers[changed], words[changed])
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
                        struct.pack_into("<Q", mapped, FLAGS_AT, RETIRED)
                    for start, stop in data_ranges(file.fileno(), head, size_bytes):
                        mapped[start:stop] = bytes(stop - start)
    except OSError as error:
        raise CacheError(
            f"{path}: not cleared: {error.strerror}", hint="check the disk of the cache"
        ) from None
    path.unlink(missing_ok=True)


def highest_shard(path: Path) -> int:
    """The highest shard number that an index of this version ever named; 0 if that cannot be told."""
    try:
        mapped = map_file(path, mmap.PROT_READ)
    except CacheError:
        return 0
    if len(mapped) < HEADER_BYTES or mapped[:8] != MAGIC:
        return 0
    every: Words = np.frombuffer(mapped, "<u8", (len(mapped) - HEADER_BYTES) // 8, HEADER_BYTES)
    words = every[used_words(path, every)]
    named = int(shard_of(words[is_resident(words)]).max(initial=0))
    told = int(np.frombuffer(mapped, "<u8", 1, SHARDS_AT)[0])
    return max(named, told if told < SHARDS_MAX else 0)


def _create(path: Path, identity: bytes, count: int, is_sparse: bool, scratch_dir: Path) -> None:
    """Put an empty index there, at once and whole."""
    scratch = scratch_dir / f"{path.name}.{os.getpid()}"
    try:
        scratch.write_bytes(identity.ljust(HEADER_BYTES, b"\0"))
        _allocate_words(scratch, count, is_sparse)
        scratch.replace(path)
    except OSError as error:
        raise _refused(path, error) from error
    finally:
        scratch.unlink(missing_ok=True)


def _allocate_words(path: Path, count: int, is_sparse: bool) -> None:
    """Have a file for so many words, with the blocks of all of them; of a sparse one, of its header."""
    size_bytes = HEADER_BYTES + 8 * count
    _allocate(path, [(0, HEADER_BYTES if is_sparse else size_bytes)], size_bytes)


def _allocate(path: Path, ranges: Iterable[tuple[int, int]], size_bytes: int) -> None:
    """Have blocks for ranges of (offset, bytes), and so large a file.

    A store into a mapped hole of a full disk would be a SIGBUS.
    """
    try:
        with path.open("r+b") as file:
            if os.fstat(file.fileno()).st_size < size_bytes:
                os.ftruncate(file.fileno(), size_bytes)
            for offset, count in ranges:
                os.posix_fallocate(file.fileno(), offset, count)
    except OSError as error:
        raise _refused(path, error) from error


def _refused(path: Path, error: OSError) -> CacheError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    hint = "free some disk, or stager evict DATASET" if full else "check the disk of the cache"
    return (NoSpace if full else CacheError)(f"{path}: no index made: {error.strerror}", hint)
