"""The way of the samples of one shard: read many at once, prepare on all threads, write one file."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from statistics import median
from typing import Final, Generic, TypeVar

import numpy as np

from stager.config import FETCH_BYTES_IN_FLIGHT, FETCHES_IN_FLIGHT, OBJECT_BYTES_MAX
from stager.errors import SampleError, SourceBusy, SourceError
from stager.interfaces import Fetched, Recipe, ShardFormat, ShardWriter, Source
from stager.reader.sample_list import SampleList
from stager.reader.values import ObjectInfo, Prepared, ShardHeader, checksum_of
from stager.worker.messages import Built

TELL_EVERY_S: Final = 1.0
# Sources end each read. If one does not, we fall silent, and are given up.
FETCH_PATIENCE_S: Final = 600.0  # without a sample more, of ordinary size
SLOWEST_BYTES_PER_S: Final = 50_000  # a large object is waited for longer, whatever tries it takes


T = TypeVar("T")


class Lanes(Generic[T]):
    """A queue of two lanes: what is urgent is taken first. Any thread may put and take."""

    def __init__(self) -> None:
        self._lanes: tuple[deque[T], deque[T]] = deque(), deque()
        self._tokens: SimpleQueue[None] = SimpleQueue()  # one for each item, in whichever lane

    def put(self, item: T, urgent: bool) -> None:
        self._lanes[0 if urgent else 1].append(item)
        self._tokens.put(None)

    def take(self) -> T:
        self._tokens.get()
        while True:
            for lane in self._lanes:
                try:
                    return lane.popleft()
                except IndexError:  # another thread had it, so there is one in the other lane
                    continue


class PlaceInLine:
    """A place in a line: whoever has it goes on when all before it have left.

    Shards are given out in the order of need, each on a thread of its own; so they are fetched in that order.
    """

    def __init__(self, before: "PlaceInLine | None" = None) -> None:
        self._before = before
        self._left = threading.Event()

    def wait(self) -> None:
        if self._before is not None:
            self._before._left.wait()
            self._before = None  # or all that ever were would be held

    def leave(self) -> None:
        self._left.set()


class Pools:
    """What one worker process has under way: objects that come, and threads that prepare them.

    All shards share it, and samples are taken in the order in which they came: the next shard is fetched
    while the last samples of the one before are prepared. `load` is run first by whoever prepares.
    """

    def __init__(
        self,
        prepare_threads: int,
        load: Callable[[], None] = lambda: None,
        bytes_max: int = FETCH_BYTES_IN_FLIGHT,
    ) -> None:
        """`bytes_max`: of what is fetched and not yet prepared. One object always gets in."""
        # what is urgent, and the rest
        self._to_fetch: tuple[deque[tuple[_Work, int]], deque[tuple[_Work, int]]] = deque(), deque()
        self._to_prepare: Lanes[tuple[_Work, int, ObjectInfo, memoryview]] = Lanes()
        self._lock = threading.Lock()
        self._bytes_max, self._bytes, self._fetches = bytes_max, 0, 0
        self._load = load
        for number in range(prepare_threads):
            threading.Thread(target=self._prepare_on, name=f"prepare-{number}", daemon=True).start()

    def begin(self, work: "_Work") -> None:
        """Have all fetched, and each prepared as soon as it is there. Its last one sets `all_done`."""
        with self._lock:
            self._to_fetch[0 if work.is_urgent else 1].extend((work, at) for at in range(len(work.samples)))
        self._fetch_more()

    def _fetch_more(self) -> None:
        while (admitted := self._admit()) is not None:
            work, at, info = admitted
            if refused := work.refusal(info):
                self._end_fetch()
                self._leave(work, at, info, refused)
            else:
                work.fetch(info, partial(self._fetched, work, at, info))

    def _admit(self) -> "tuple[_Work, int, ObjectInfo] | None":
        """The next to fetch, if there is one and room for it."""
        with self._lock:
            lane = self._to_fetch[0] or self._to_fetch[1]
            if not lane or self._fetches >= FETCHES_IN_FLIGHT:
                return None
            work, at = lane[0]
            info = work.infos[at]
            if self._bytes and self._bytes + info.size > self._bytes_max:
                return None
            lane.popleft()
            self._bytes += info.size
            self._fetches += 1
            return work, at, info

    def _fetched(self, work: "_Work", at: int, info: ObjectInfo, fetched: Fetched) -> None:
        self._end_fetch()
        if isinstance(fetched, memoryview):
            self._to_prepare.put((work, at, info, fetched), work.is_urgent)
        else:
            self._leave(work, at, info, fetched)
        self._fetch_more()

    @property
    def is_fetching(self) -> bool:
        return self._fetches > 0

    def _end_fetch(self) -> None:
        with self._lock:
            self._fetches -= 1

    def _prepare_on(self) -> None:
        self._load()
        while True:
            work, at, info, data = self._to_prepare.take()
            error: Exception | None = None
            try:
                work.prepare(at, info, data)
            except Exception as caught:
                error = caught
            del data
            self._leave(work, at, info, error)
            self._fetch_more()
            del work

    def _leave(self, work: "_Work", at: int, info: ObjectInfo, error: Exception | None) -> None:
        with self._lock:
            self._bytes -= info.size
        work.end(at, error)


@dataclass(slots=True)
class _Work:
    """The samples of one shard on their way. Each is in the hands of one thread at a time."""

    source: Source
    recipe: Recipe
    samples: Sequence[int]
    tags: Sequence[int]
    infos: Sequence[ObjectInfo]
    shard: ShardWriter | None
    progress: Callable[[int], None]
    is_urgent: bool
    header: ShardHeader
    # Lists and dicts: to append to one is safe in threads, `+=` is not.
    rows: list[tuple[int, int, int]] = field(default_factory=list)  # row, sample, size in bytes
    errors: dict[int, SampleError | SourceError] = field(default_factory=dict)
    broken: OSError | None = None  # the file cannot be written: nobody's single sample
    fetch_s: list[float] = field(default_factory=list)
    prepare_s: list[float] = field(default_factory=list)
    read_bytes: list[int] = field(default_factory=list)
    ended: int = 0
    all_done: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def refusal(self, info: ObjectInfo) -> Exception | None:
        """Why an object is not even asked for."""
        if self.broken is not None:
            return SourceError("its shard cannot be written")
        if info.size > OBJECT_BYTES_MAX:
            told = f"{info.key}: {info.size} bytes are more than {OBJECT_BYTES_MAX}"
            return SampleError("too_large", told)
        return None

    def fetch(self, info: ObjectInfo, done: Callable[[Fetched], None]) -> None:
        began = time.perf_counter()

        def fetched(result: Fetched) -> None:
            if isinstance(result, memoryview):
                self.fetch_s.append(time.perf_counter() - began)
                self.read_bytes.append(len(result))
            done(result)

        self.source.start(info, fetched)

    def prepare(self, at: int, info: ObjectInfo, data: memoryview) -> None:
        began = time.perf_counter()
        number = self.samples[at]
        arrays = self.recipe.prepare(data)
        checksum = checksum_of(self.tags[at], self.header.recipe, self.header.fields, arrays)
        row = len(self.rows)
        if self.shard is not None:
            try:
                row = self.shard.add(Prepared(info.key, info.version, arrays, checksum))
            except OSError as error:
                self.broken = error
        self.rows.append((row, number, sum(array.nbytes for array in arrays.values())))
        self.prepare_s.append(time.perf_counter() - began)

    def end(self, at: int, error: Exception | None) -> None:
        with self.lock:
            if error is not None:
                self.errors[at] = _known(self, at, error)
            self.ended += 1
            is_last = self.ended == len(self.samples)
        self.progress(1)
        if is_last:
            self.all_done.set()


def build_shard(
    path: Path | None,
    shard_format: ShardFormat,
    dataset: str,
    source: Source,
    recipe: Recipe,
    manifest: str,
    records: SampleList,
    samples: Sequence[int],
    pools: Pools,
    progress: Callable[[int], None],
    is_urgent: bool = False,
    turn: PlaceInLine | None = None,
    room_bytes: int = 0,
) -> Built:
    """Read and prepare these samples and write them to `path`; with no path, only measure.

    A sample that cannot be had is left out and told. Only if the source failed for all of them, it raises.
    The first sample is asked for in its `turn`, which is left then. `room_bytes` are reserved for the file.
    """
    turn = turn or PlaceInLine()
    header = ShardHeader(dataset, manifest, recipe.digest, recipe.fields)
    with ExitStack() as stack:
        shard = path and stack.enter_context(shard_format.begin(path, header, len(samples), room_bytes))
        infos = records.infos(samples)
        tags = records.values("tag", np.asarray(samples, dtype=np.int64)).tolist()
        work = _Work(source, recipe, samples, tags, infos, shard or None, progress, is_urgent, header)
        turn.wait()
        pools.begin(work)
        turn.leave()
        _wait_for(work, pools)
        if work.broken is not None:
            raise work.broken
        errors = [work.errors[at] for at in sorted(work.errors)]
        if not work.rows and all(isinstance(error, SourceError) for error in errors):
            raise errors[0]
        if shard and work.rows:
            shard.finish()
    sizes = [size for _, _, size in work.rows]
    return Built(
        [number for _, number, _ in sorted(work.rows)],
        [(samples[at], *_reason(error)) for at, error in sorted(work.errors.items())],
        path.stat().st_size if path and work.rows else sum(sizes),
        sum(size * size for size in sizes),
        sum(work.read_bytes),
        len(work.read_bytes),
        median(work.fetch_s or [0.0]),
        median(work.prepare_s or [0.0]),
    )


def _wait_for(work: _Work, pools: Pools) -> None:
    """Until all is done. While objects are on their way, say so: each has a deadline, which may be long."""
    patience_s = FETCH_PATIENCE_S + max((info.size for info in work.infos), default=0) / SLOWEST_BYTES_PER_S
    ended, since_s = -1, 0.0
    while not work.all_done.wait(TELL_EVERY_S):
        if ended != work.ended:
            ended, since_s = work.ended, time.monotonic()
        if pools.is_fetching and time.monotonic() - since_s < patience_s:
            work.progress(0)


def _known(work: _Work, at: int, error: BaseException) -> SampleError | SourceError:
    """What went wrong with one sample. A bug of ours is that sample's failure, not the job's."""
    if isinstance(error, SampleError | SourceError):
        return error
    lacks = isinstance(error, MemoryError | ImportError | OSError)  # this machine, and not the sample
    told = f"{work.infos[at].key}: {type(error).__name__}: {error}"
    return SampleError("unprepared" if lacks else "corrupt", told)


def _reason(error: SampleError | SourceError) -> tuple[str, str]:
    if isinstance(error, SampleError):
        return error.reason, error.message
    return ("unreadable" if isinstance(error, SourceBusy) else "forbidden"), error.message
