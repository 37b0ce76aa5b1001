"""Chunks of volumes: those that are not there are empty, and those that lie in others are found there."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt

from stager.errors import SampleError
from stager.interfaces import Fetched, Scanning, Source
from stager.reader.values import Absent, Enclosed, Inner, ObjectInfo, Part, Unlisted
from stager.sources.keys import shown

WITNESS_S: Final = 1.0  # what was there so short a time ago is there
INDEX_BYTES_MAX: Final = 32 << 20  # of indexes that are kept
WITNESS_BYTES: Final = 4096
ENTRY_BYTES: Final = 16  # where a chunk begins, and how long it is
NOWHERE: Final = 2**64 - 1  # of a chunk that is not there
EMPTY: Final = memoryview(b"")

Index = npt.NDArray[np.uint64]  # of each chunk: offset, size
Done = Callable[[Fetched], None]
Inside = Unlisted | Enclosed  # what may lie in an object with others


class ChunkSource:
    """Any source, for whom a chunk that is not there is empty.

    But if the object that says so of all chunks is gone too, the volume is: a mount that dropped out, say.
    An index is read once, for all chunks that lie in its object. Where chunks were listed, nothing is asked
    for one that was not there, and one that was comes in the version that was listed, or not at all.
    """

    def __init__(self, inner: Source, clock: Callable[[], float] = time.monotonic) -> None:
        self.inner, self._clock = inner, clock
        self._lock = threading.Lock()
        self._seen: dict[str, float] = {}  # witnesses, and when each was there
        self._looking: dict[str, list[Done]] = {}  # for a witness
        self._indexes: OrderedDict[tuple[str, str], Index] = OrderedDict()
        self._waiting: dict[tuple[str, str], list[tuple[Inside, Done]]] = {}  # for an index

    def scan(self, scanning: Scanning | None = None) -> Iterator[ObjectInfo]:
        return self.inner.scan(scanning)

    def start(self, part: Part, done: Done) -> None:
        info = part.info
        if isinstance(info, Absent):
            done(EMPTY)
        elif isinstance(info, Unlisted) and not info.witness:  # metadata
            self.inner.start(part, done)
        elif isinstance(info, Unlisted | Enclosed) and info.inner is not None:
            self._find(info, info.inner, done)
        else:
            self.inner.start(part, partial(self._came, info, done))

    def _came(self, info: ObjectInfo, done: Done, fetched: Fetched) -> None:
        fetched = _some(info, fetched)
        if isinstance(info, Unlisted) and isinstance(fetched, SampleError) and fetched.reason == "missing":
            self._empty(info, done)
        else:
            done(fetched)

    def _empty(self, info: Unlisted, done: Done) -> None:
        """A chunk is not there: is the volume?"""
        witness = info.witness
        with self._lock:
            is_there = self._clock() - self._seen.get(witness, -WITNESS_S) < WITNESS_S
            is_first = not is_there and witness not in self._looking
            if not is_there:
                self._looking.setdefault(witness, []).append(done)
        if is_there:
            done(EMPTY)
        elif is_first:
            part = Part(Unlisted(witness, WITNESS_BYTES, info.version, ""))
            self.inner.start(part, partial(self._looked, witness))

    def _looked(self, witness: str, fetched: Fetched) -> None:
        is_there = isinstance(fetched, memoryview)
        with self._lock:
            if is_there:
                self._seen[witness] = self._clock()
            looking = self._looking.pop(witness)
        for done in looking:
            done(EMPTY if is_there else fetched)

    def _find(self, info: Inside, inner: Inner, done: Done) -> None:
        name = info.key, info.version
        with self._lock:
            index = self._indexes.get(name)
            if index is not None:
                self._indexes.move_to_end(name)
            is_first = index is None and name not in self._waiting
            if index is None:
                self._waiting.setdefault(name, []).append((info, done))
        if index is not None:
            self._read(info, inner, index, done)
        elif is_first:
            self._read_index(info, inner)

    def _read_index(self, info: Inside, inner: Inner) -> None:
        size = inner.places * ENTRY_BYTES + 4 * inner.has_checksum
        bounds: tuple[int, int | None] = (-size, None) if inner.is_index_last else (0, size)
        if isinstance(info, Enclosed):  # of a listed object it is known where it ends
            start = max(info.object.size - size, 0) if inner.is_index_last else 0
            bounds = start, min(start + size, info.object.size)
        self.inner.start(Part(_plain(info, size), *bounds), partial(self._indexed, info, inner))

    def _indexed(self, info: Inside, inner: Inner, fetched: Fetched) -> None:
        """An index is there, or cannot be had: all who wait for it go on."""
        index: Index | Exception | None = None
        if isinstance(fetched, memoryview):
            try:
                index = _parsed(info, inner, fetched)
            except SampleError as error:
                index = error
        elif (
            not isinstance(fetched, SampleError) or fetched.reason != "missing" or isinstance(info, Enclosed)
        ):
            index = fetched
        name = info.key, info.version
        with self._lock:
            if isinstance(index, np.ndarray):
                self._indexes[name] = index
                while sum(kept.nbytes for kept in self._indexes.values()) > INDEX_BYTES_MAX:
                    self._indexes.popitem(last=False)
            waiting = self._waiting.pop(name)
        for waits, done in waiting:
            if index is None:
                assert isinstance(waits, Unlisted)
                self._empty(waits, done)
            elif isinstance(index, Exception):
                done(index)
            else:
                assert waits.inner is not None
                self._read(waits, waits.inner, index, done)

    def _read(self, info: Inside, inner: Inner, index: Index, done: Done) -> None:
        offset, size = index[inner.number].tolist()
        if (offset, size) == (NOWHERE, NOWHERE):
            done(EMPTY)
        else:
            part = Part(_plain(info, size), offset, offset + size)
            self.inner.start(part, lambda fetched: done(_some(info, fetched)))


def _plain(info: Inside, size: int) -> ObjectInfo:
    """The object that it lies in, to read bytes of."""
    if isinstance(info, Enclosed):
        return info.object
    return Unlisted(info.key, size, info.version, "")


def _some(info: ObjectInfo, fetched: Fetched) -> Fetched:
    """The same, but for a chunk that is there and has no bytes: nothing means that it is not there."""
    if isinstance(fetched, memoryview) and not len(fetched):
        return SampleError("truncated", f"{shown(info.key)}: it is there, and has no bytes")
    return fetched


def _parsed(info: Inside, inner: Inner, data: memoryview) -> Index:
    body = data[: inner.places * ENTRY_BYTES]
    where = shown(info.key)
    if len(data) != len(body) + 4 * inner.has_checksum or len(body) != inner.places * ENTRY_BYTES:
        raise SampleError("truncated", f"{where}: it is shorter than its index")
    if inner.has_checksum:
        from awscrt import checksums

        if checksums.crc32c(body) != int.from_bytes(data[len(body) :], "little"):
            raise SampleError("corrupt", f"{where}: its index does not match its checksum")
    return np.frombuffer(body, "<u8").astype(np.uint64).reshape(-1, 2)
