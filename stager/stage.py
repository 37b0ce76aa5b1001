"""The way of the samples of one shard: read many at once, prepare on all threads, write one file."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np

from stager.config import FETCH_BYTES_IN_FLIGHT, FETCHES_IN_FLIGHT, OBJECT_BYTES_MAX
from stager.errors import SampleError, SourceBusy, SourceError
from stager.manifest import Manifest
from stager.model import Arrays, Recipe, Row, ShardFormat, ShardHeader, Source, checksum_of


@dataclass(frozen=True, slots=True)
class Built:
    """What came of one shard: the samples in it, in row order, and those that cannot be had."""

    samples: list[int]
    failed: list[tuple[int, str, str]]  # sample number, reason, detail
    size_bytes: int
    size_squares: int  # of the samples' sizes, for their spread
    read_bytes: int
    reads: int
    fetch_s: float  # the median of one request
    prepare_s: float  # the median of one sample: the first ones also load the decoders


class Pools:
    """The threads of one worker process: many that wait for the source, a few that prepare."""

    def __init__(self, prepare_threads: int) -> None:
        self.fetch = ThreadPoolExecutor(FETCHES_IN_FLIGHT, "fetch")
        self.prepare = ThreadPoolExecutor(prepare_threads, "prepare")
        self.room = ByteRoom(FETCH_BYTES_IN_FLIGHT)


class ByteRoom:
    """Bounds the bytes that are fetched and not yet prepared. One object always gets in."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit, self._used = limit_bytes, 0
        self._changed = threading.Condition()

    def enter(self, size_bytes: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._used == 0 or self._used + size_bytes <= self._limit)
            self._used += size_bytes

    def leave(self, size_bytes: int) -> None:
        with self._changed:
            self._used -= size_bytes
            self._changed.notify_all()


@dataclass(slots=True)
class _Work:
    """The samples of one shard on their way. Each row is touched by one thread at a time."""

    source: Source
    recipe: Recipe
    manifest: Manifest
    samples: Sequence[int]
    blocks: Arrays
    rows: list[Row | None]
    errors: dict[int, SampleError | SourceError] = field(default_factory=dict)
    fetch_s: list[float] = field(default_factory=list)
    prepare_s: list[float] = field(default_factory=list)
    read_bytes: list[int] = field(default_factory=list)  # lists: `append` is safe in threads, `+=` is not

    def fetch(self, at: int) -> memoryview:
        info = self.manifest.info(self.samples[at])
        if info.size > OBJECT_BYTES_MAX:
            raise SampleError("too_large", f"{info.key}: {info.size} bytes are more than {OBJECT_BYTES_MAX}")
        began = time.perf_counter()
        data = self.source.read(info)
        self.fetch_s.append(time.perf_counter() - began)
        self.read_bytes.append(len(data))
        return data

    def prepare(self, at: int, data: memoryview) -> None:
        began = time.perf_counter()
        number = self.samples[at]
        info = self.manifest.info(number)
        arrays = self.recipe.prepare(data)
        for name, block in self.blocks.items():
            block[at] = arrays[name]
            arrays[name] = block[at]
        checksum = checksum_of(
            int(self.manifest.tags[number]), self.recipe.digest, self.recipe.fields, arrays
        )
        self.rows[at] = Row(info.key, info.version, arrays, checksum)
        self.prepare_s.append(time.perf_counter() - began)


def build_shard(
    path: Path | None,
    shard_format: ShardFormat,
    dataset: str,
    source: Source,
    recipe: Recipe,
    manifest: Manifest,
    samples: Sequence[int],
    pools: Pools,
    progress: Callable[[int], None],
) -> Built:
    """Read and prepare these samples and write them to `path`; with no path, only measure.

    A sample that cannot be had is left out and told. Only if the source failed for all of them, it raises.
    """
    blocks = {
        spec.name: np.empty((len(samples), *(side or 0 for side in spec.shape)), spec.dtype)
        for spec in recipe.fields
        if spec.row_bytes is not None
    }
    work = _Work(source, recipe, manifest, samples, blocks, [None] * len(samples))
    _run(work, pools, progress)
    kept = [at for at, row in enumerate(work.rows) if row is not None]
    rows = [row for row in work.rows if row is not None]
    failed = [(samples[at], *_reason(error)) for at, error in sorted(work.errors.items())]
    if not kept and work.errors and all(isinstance(error, SourceError) for error in work.errors.values()):
        raise next(iter(work.errors.values()))
    sizes = [sum(array.nbytes for array in row.arrays.values()) for row in rows]
    size_bytes = sum(sizes)
    if path is not None and rows:
        header = ShardHeader(dataset, manifest.digest, recipe.digest, recipe.fields)
        shard_format.write(path, header, rows)
        size_bytes = path.stat().st_size
    return Built(
        [samples[at] for at in kept],
        failed,
        size_bytes,
        sum(size * size for size in sizes),
        sum(work.read_bytes),
        len(work.read_bytes),
        median(work.fetch_s or [0.0]),
        median(work.prepare_s or [0.0]),
    )


def _run(work: _Work, pools: Pools, progress: Callable[[int], None]) -> None:
    """Fetch all, prepare each as soon as it is there, return when the last one is done."""
    done = 0
    all_done = threading.Event()
    lock = threading.Lock()

    def finish(at: int, size: int, future: "Future[None]") -> None:
        nonlocal done
        pools.room.leave(size)
        error = future.exception()
        with lock:
            if error is not None:
                work.errors[at] = _known(work, at, error)
            done += 1
            last = done == len(work.samples)
        progress(1)
        if last:
            all_done.set()

    def fetched(at: int, size: int, future: "Future[memoryview]") -> None:
        if future.exception() is not None:
            finish(at, size, future)  # type: ignore[arg-type]
            return
        prepared = pools.prepare.submit(work.prepare, at, future.result())
        prepared.add_done_callback(lambda result: finish(at, size, result))

    for at, number in enumerate(work.samples):
        size = int(work.manifest.sizes[number])
        pools.room.enter(size)
        future = pools.fetch.submit(work.fetch, at)
        future.add_done_callback(lambda result, at=at, size=size: fetched(at, size, result))  # type: ignore[misc]
    all_done.wait()


def _known(work: _Work, at: int, error: BaseException) -> SampleError | SourceError:
    """What went wrong with one sample. A bug of ours is that sample's failure, not the job's."""
    if isinstance(error, SampleError | SourceError):
        return error
    return SampleError("corrupt", f"{work.manifest.key(work.samples[at])}: {type(error).__name__}: {error}")


def _reason(error: SampleError | SourceError) -> tuple[str, str]:
    if isinstance(error, SampleError):
        return error.reason, error.message
    return ("unreadable" if isinstance(error, SourceBusy) else "forbidden"), error.message
