"""Objects that are read by ranges once they are unpacked: each is asked for once, and waits in scratch."""

import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from stager.errors import SampleError
from stager.interfaces import Fetched, Scanning, Source
from stager.reader.values import ObjectInfo, Part, SourceSpec, Unpacked
from stager.sources.keys import shown

AT_ONCE: Final = 8  # objects that are unpacked, or files that are read
PIECE_BYTES: Final = 8 << 20  # of a packed object, fetched at once
AHEAD: Final = 2  # pieces that are asked for before they are needed
FAILURES_KEPT: Final = 1024
DAMAGED: Final = ("corrupt", "truncated", "too_large")

Unpack = Callable[[Unpacked, Iterator[memoryview]], Iterator[memoryview]]


class UnpackedSource:
    """Any source, for whom a part may be of an object that is unpacked first. Workers share the files.

    Whoever comes first unpacks, and the others wait for it, in this process and in others. Files have room
    that was reserved for them, and are removed by who reserved it.
    """

    def __init__(
        self, inner: Source, spec: SourceSpec, unpack: Unpack, scratch: Path, begin: str = ""
    ) -> None:
        """`spec`: of the source; `begin`: how the names of the files begin."""
        self.inner, self._spec, self._unpack = inner, spec, unpack
        self._scratch, self._begin = scratch, begin
        self._threads = ThreadPoolExecutor(AT_ONCE, "unpack")
        self._lock = threading.Lock()
        self._failed: dict[Unpacked, SampleError] = {}  # what cannot be unpacked: it is not asked for again
        self._reads: list[int] = []  # bytes of each request

    def scan(self, scanning: Scanning | None = None) -> Iterator[ObjectInfo]:
        return self.inner.scan(scanning)

    def start(self, part: Part, done: Callable[[Fetched], None]) -> None:
        if isinstance(part.info, Unpacked):
            self._threads.submit(self._serve, part, part.info, done)
        else:
            self.inner.start(part, done)

    def take_reads(self) -> list[int]:
        """How many bytes came of each request since this was asked last."""
        with self._lock:
            reads, self._reads = self._reads, []
        return reads

    def _serve(self, part: Part, info: Unpacked, done: Callable[[Fetched], None]) -> None:
        try:
            fetched: Fetched = self._read(part, info)
        except Exception as error:
            fetched = error
        done(fetched)

    def _read(self, part: Part, info: Unpacked) -> memoryview:
        path = self._scratch / f"{self._begin}{info.file_name(self._spec)}"
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            self._unpack_once(info, path)
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.pread(file, part.size, part.start)
        finally:
            os.close(file)
        if len(data) != part.size:
            raise SampleError(
                "truncated", f"{shown(info.key)}: {len(data)} of {part.size} bytes are there, unpacked"
            )
        return memoryview(data)

    def _unpack_once(self, info: Unpacked, path: Path) -> None:
        """Have the file there, whoever makes it."""
        with path.with_name(f"{path.name}.part").open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if path.exists():  # another one has made it meanwhile
                return
            if (known := self._failed.get(info)) is not None:
                raise SampleError(known.reason, known.message)
            file.truncate(0)
            try:
                for piece in self._unpack(info, self._pieces(info.packed)):
                    file.write(piece)
                file.flush()
            except SampleError as error:
                file.truncate(0)
                raise self._known(info, error) from None
            except BaseException:
                file.truncate(0)
                raise
            Path(file.name).rename(path)

    def _known(self, info: Unpacked, error: SampleError) -> SampleError:
        """Remember what is wrong with the bytes: they would be as wrong again."""
        if error.reason not in DAMAGED:
            return error
        told = SampleError(error.reason, f"{shown(info.key)}: {error.message}")
        with self._lock:
            if len(self._failed) < FAILURES_KEPT:
                self._failed[info] = told
        return told

    def _pieces(self, packed: Part) -> Iterator[memoryview]:
        """The bytes of a packed part, piece by piece, the next ones asked for meanwhile."""
        parts = list(_cut(packed)) if type(packed.info) is ObjectInfo else [packed]  # a chunk comes whole
        asked: list[SimpleQueue[Fetched]] = []
        for number in range(len(parts)):
            while len(asked) < min(number + 1 + AHEAD, len(parts)):
                came: SimpleQueue[Fetched] = SimpleQueue()
                self.inner.start(parts[len(asked)], came.put)
                asked.append(came)
            fetched = asked[number].get()
            if not isinstance(fetched, memoryview):
                raise fetched
            with self._lock:
                self._reads.append(len(fetched))
            yield fetched
            del fetched


def _cut(part: Part) -> Iterator[Part]:
    stop = part.start + part.size
    if part.size <= PIECE_BYTES:
        yield part
        return
    for start in range(part.start, stop, PIECE_BYTES):
        yield Part(part.info, start, min(start + PIECE_BYTES, stop))
