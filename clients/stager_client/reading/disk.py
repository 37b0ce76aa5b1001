"""Rows that come from the disk: the kernel is told of a batch's rows before the first of them is read."""

import os
import resource
import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Final

import numpy as np
import numpy.typing as npt

from stager.errors import ShardError
from stager.reader import native
from stager.reader.index import Words, is_resident, row_of, shard_of
from stager.reader.values import Numbers, ShardReader

STEP_BYTES: Final = 512 << 10  # of a longer span, the kernel would take only the beginning
QUIET: Final = 8  # batches in a row without the disk, and it is left alone


class ReadAhead:
    """Hints, while what is read comes from the disk: as many reads are under way as a batch has rows.

    What is in memory needs none, so they end after some batches for which the disk was not read. A hint
    takes memory of the page cache only, at most as much as the batches that are being put together.
    """

    def __init__(self) -> None:
        self._quiet = 0  # nobody knows yet
        self._threads = threading.local()

    @property
    def is_on(self) -> bool:
        return self._quiet < QUIET

    def rows(
        self,
        words: Words,
        is_checked: npt.NDArray[np.bool_],
        names: Collection[str] | None,
        shards: Mapping[int, ShardReader],
    ) -> None:
        """Of rows that were checked before these fields are read, or all if it is None; of others, all."""
        held, places = [], []  # descriptors that are held are not closed by another thread
        numbers, rows, once = shard_of(words).tolist(), row_of(words).tolist(), is_checked.tolist()
        for at in np.flatnonzero(is_resident(words)).tolist():
            shard = shards.get(numbers[at])
            descriptor = shard.held() if shard else None
            if shard is None or descriptor is None:
                continue
            with suppress(ShardError, OSError, LookupError):  # whoever reads it finds out
                stored = shard.stored(rows[at])
                for name in names if names is not None and once[at] else stored:
                    places.append((stored[name].offset, stored[name].size_bytes))
                    held.append(descriptor)
        self.hint(held, *np.array(places, np.int64).reshape(-1, 2).T)

    def hint(self, descriptors: Sequence[int] | Numbers, starts: Numbers, sizes: Numbers) -> None:
        """Have the kernel fetch these bytes. The files stay open meanwhile: the caller holds them."""
        told = [np.ascontiguousarray(of, np.int64) for of in (descriptors, starts, sizes)]
        if native.library is not None:
            native.library.stager_read_ahead(len(starts), *(of.ctypes.data for of in told))
            return
        for descriptor, start, size in zip(*(of.tolist() for of in told), strict=True):
            for at in range(start, start + size, STEP_BYTES):
                with suppress(OSError):  # whoever reads it finds out
                    length = min(STEP_BYTES, start + size - at)
                    os.posix_fadvise(descriptor, at, length, os.POSIX_FADV_WILLNEED)

    def look(self) -> None:
        """After a batch: has this thread read from the disk since it looked last?"""
        now = resource.getrusage(resource.RUSAGE_THREAD).ru_inblock
        self._quiet = self._quiet + 1 if now == getattr(self._threads, "blocks", 0) else 0
        self._threads.blocks = now
