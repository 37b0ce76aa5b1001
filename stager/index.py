"""The index: which shard and row holds each sample. A mapped array of 64-bit words, one a sample.

The service alone writes it. It is rebuilt from the catalog at every start, so it is never synced to disk.
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
from stager.model import Numbers

Words = npt.NDArray[np.uint64]

# A word: 0 is not resident. Bit 63 present, bit 62 failed, 60-61 format, 24-55 shard, 0-23 row.
PRESENT: Final = np.uint64(1 << 63)
FAILED: Final = np.uint64(1 << 62)  # the sample cannot be had; no other bit matters
FORMAT_NAMES: Final = ("arrow", "lmdb")  # by their number in a word
ROWS_MAX: Final = 1 << 24
SHARDS_MAX: Final = 1 << 32
_STATE_SHIFT, _FORMAT_SHIFT, _SHARD_SHIFT = np.uint64(62), np.uint64(60), np.uint64(24)

MAGIC: Final = b"STGRIDX1"
FORMAT_VERSION: Final = 1
HEADER_BYTES: Final = 64
_IDENTITY: Final = struct.Struct("<8sIIQ16s16s")  # magic, version, flags, samples, manifest, recipe
_EVICTIONS_AT: Final = _IDENTITY.size  # a u64 counter: the rest of the header


def pack_words(shard: int, rows: npt.NDArray[np.integer[Any]], format: str) -> Words:
    """The words that say: these rows of this shard."""
    if not 0 <= shard < SHARDS_MAX:
        raise ValueError(f"shard number {shard} does not fit a word")
    if len(rows) and not 0 <= rows.min() <= rows.max() < ROWS_MAX:
        raise ValueError(f"row {rows.max()} does not fit a word")
    place = np.uint64(FORMAT_NAMES.index(format) << 60 | shard << 24)
    return rows.astype(np.uint64) | place | PRESENT


def is_resident(words: Words) -> npt.NDArray[np.bool_]:
    return np.asarray(words >> _STATE_SHIFT == 2)


def is_failed(words: Words) -> npt.NDArray[np.bool_]:
    return np.asarray(words & FAILED != 0)


def format_of(words: Words) -> npt.NDArray[np.int64]:
    """Positions in FORMAT_NAMES."""
    return (words >> _FORMAT_SHIFT & np.uint64(3)).astype(np.int64)


def shard_of(words: Words) -> npt.NDArray[np.int64]:
    return (words >> _SHARD_SHIFT & np.uint64(SHARDS_MAX - 1)).astype(np.int64)


def row_of(words: Words) -> npt.NDArray[np.int64]:
    return (words & np.uint64(ROWS_MAX - 1)).astype(np.int64)


class IndexReader:
    """An index as readers map it. Its words change while one looks: take a copy to decide on."""

    def __init__(self, path: Path, samples: int, manifest: str, recipe: str) -> None:
        """Raise CacheError if there is no index, or it is not of this manifest and recipe."""
        mapped = _map(path, _identity(samples, manifest, recipe), mmap.PROT_READ)
        self.words: Words = np.frombuffer(mapped, "<u8", offset=HEADER_BYTES)
        self._evictions: Words = np.frombuffer(mapped, "<u8", 1, _EVICTIONS_AT)

    @property
    def evictions(self) -> int:
        """How often words were taken away: when it moves, shards that are open may be gone from disk."""
        return int(self._evictions[0])


class IndexWriter:
    """The index as the service writes it.

    Each word is published by one aligned 8-byte store, which x86-64 and arm64 never tear. numpy makes just
    that of `words[numbers] = ...` with an array of numbers: one typed store an element. (Not of a slice:
    that is a memcpy, which promises nothing about words.) No barrier is needed either: what a word points
    to is a file, made and opened by system calls.
    """

    def __init__(self, mapped: mmap.mmap) -> None:
        self.words: Words = np.frombuffer(mapped, "<u8", offset=HEADER_BYTES)
        self._evictions: Words = np.frombuffer(mapped, "<u8", 1, _EVICTIONS_AT)

    @classmethod
    def open(cls, path: Path, samples: int, manifest: str, recipe: str, scratch_dir: Path) -> Self:
        """Open the index of this manifest and recipe; if there is none that fits, put an empty one there."""
        identity = _identity(samples, manifest, recipe)
        try:
            mapped = _map(path, identity, mmap.PROT_READ | mmap.PROT_WRITE)
        except CacheError:
            _create(path, identity, samples, scratch_dir)
            mapped = _map(path, identity, mmap.PROT_READ | mmap.PROT_WRITE)
        return cls(mapped)

    @property
    def evictions(self) -> int:
        return int(self._evictions[0])

    def publish(self, numbers: Numbers, words: Words) -> None:
        """Point samples at their rows, or at FAILED. The shard must be complete under its final name."""
        self.words[numbers] = words

    def clear(self, numbers: Numbers) -> None:
        """Take samples away; only then may their rows or their shard go."""
        self.words[numbers] = np.uint64(0)

    def tell_gone(self) -> None:
        """Shards have gone: readers look which, and let go of them, so that their space comes back."""
        self._evictions[0] += np.uint64(1)

    def replace_all(self, words: Words) -> None:
        """Make the words these, storing only what differs: readers that have it mapped go on."""
        changed = np.flatnonzero(self.words != words)
        took_away = bool(np.any(self.words[changed]))
        self.words[changed] = words[changed]
        if took_away:
            self._evictions[0] += np.uint64(1)

    def close(self) -> None:
        """Unmap the file, once nobody holds `words` any more."""
        vars(self).clear()


def _create(path: Path, identity: bytes, samples: int, scratch_dir: Path) -> None:
    """Put an empty index there, at once and whole."""
    scratch = scratch_dir / f"{path.name}.{os.getpid()}"
    try:
        with scratch.open("wb") as file:
            # Its blocks are had now: a store into a mapped hole of a full disk is a SIGBUS.
            os.posix_fallocate(file.fileno(), 0, HEADER_BYTES + 8 * samples)
            file.write(identity)
        scratch.replace(path)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise (NoSpace if full else CacheError)(f"{path}: no index made: {error.strerror}") from error
    finally:
        scratch.unlink(missing_ok=True)


def _identity(samples: int, manifest: str, recipe: str) -> bytes:
    """The header of an index, up to its counter."""
    digests = bytes.fromhex(manifest), bytes.fromhex(recipe)
    return _IDENTITY.pack(MAGIC, FORMAT_VERSION, 0, samples, *digests)


def _map(path: Path, identity: bytes, protection: int) -> mmap.mmap:
    """Map a whole index. Raise CacheError if it is missing, damaged, or of something else."""
    try:
        with path.open("r+b" if protection & mmap.PROT_WRITE else "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, prot=protection)
    except (OSError, ValueError) as error:  # ValueError: it is empty
        raise CacheError(f"{path}: no index to read: {error}", hint="is the service running?") from error
    _check(path, mapped, identity)
    return mapped


def _check(path: Path, mapped: mmap.mmap, identity: bytes) -> None:
    found = mapped[: _IDENTITY.size]
    if len(mapped) < HEADER_BYTES or found[:8] != MAGIC:
        raise CacheError(f"{path}: not an index")
    _, version, _, samples, manifest, recipe = _IDENTITY.unpack(found)
    if version != FORMAT_VERSION:
        raise CacheError(
            f"{path}: index format {version}, not {FORMAT_VERSION}",
            hint="use one version of stager on both sides, and restart the service",
        )
    if len(mapped) != HEADER_BYTES + 8 * samples:
        raise CacheError(f"{path}: {len(mapped)} bytes, not those of {samples} samples")
    if found != identity:
        raise CacheError(
            f"{path}: the index of another manifest or recipe ({manifest.hex()}, {recipe.hex()})",
            hint="open the data set again",
        )
