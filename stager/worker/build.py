"""The way of the samples of one shard: fetch many parts at once, prepare on all threads, write one file."""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np

from stager.config import OBJECT_BYTES_MAX
from stager.errors import SampleError, SourceBusy, SourceError
from stager.interfaces import Data, Fetched, Opened, Opener, Recipe, ShardFormat, ShardWriter, Source
from stager.reader.samples.sample_list import SampleList
from stager.reader.values import Part, Prepared, SampleInfo, ShardHeader, checksum_of
from stager.worker.messages import Built
from stager.worker.pools import Pools

TELL_EVERY_S: Final = 1.0
# Sources end each read. If one does not, we fall silent, and are given up.
FETCH_PATIENCE_S: Final = 600.0  # without a sample more, of ordinary size
SLOWEST_BYTES_PER_S: Final = 50_000  # a large object is waited for longer, whatever tries it takes


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


class _Work:
    """The samples of one shard on their way. A sample is in the hands of one thread at a time."""

    def __init__(
        self,
        source: Source,
        recipe: Recipe,
        opener: Opener | None,
        numbers: Sequence[int],
        tags: Sequence[int],
        infos: Sequence[SampleInfo],
        shard: ShardWriter | None,
        header: ShardHeader,
        progress: Callable[[int], None],
        is_urgent: bool,
        is_plain: bool,
    ) -> None:
        """`is_plain`: each sample is one whole object, which no other one needs."""
        self._source, self._recipe, self._opener, self._is_plain = source, recipe, opener, is_plain
        self.numbers, self._tags, self.infos = numbers, tags, infos
        self._shard, self._header, self.progress, self.is_urgent = shard, header, progress, is_urgent
        # Lists and dicts: to append to one is safe in threads, `+=` is not.
        self.rows: list[tuple[int, int, int]] = []  # row, sample, size in bytes
        self.errors: dict[int, SampleError | SourceError] = {}
        self.broken: OSError | None = None  # the file cannot be written: nobody's single sample
        self.fetch_s: list[float] = []
        self.prepare_s: list[float] = []
        self.read_bytes: list[int] = []
        self.ended = 0
        self.all_done = threading.Event()
        self._lock = threading.Lock()
        self._plan_parts()

    def _plan_parts(self) -> None:
        """What several samples need is fetched once for all of them."""
        count = len(self.infos)
        self._needs: list[tuple[int, ...]]  # the parts of each sample, by their numbers
        self._users: list[tuple[int, ...]]  # the samples that need a part
        if self._is_plain:  # one whole object each: a part has the number of its sample
            self.parts = [info.parts[0] for info in self.infos]
            self.sizes = [part.info.size for part in self.parts]
            self._needs = self._users = [(at,) for at in range(count)]
            self._missing = self._left = []
        else:
            number_of: dict[Part, int] = {}
            self._needs = [
                tuple(number_of.setdefault(part, len(number_of)) for part in info.parts)
                for info in self.infos
            ]
            self.parts = list(number_of)
            users: list[list[int]] = [[] for _ in self.parts]
            for at, needs in enumerate(self._needs):
                for number in set(needs):
                    users[number].append(at)
            self._users = [tuple(of_one) for of_one in users]
            self.sizes = [part.size for part in self.parts]
            self._missing = [len(set(needs)) for needs in self._needs]  # parts that a sample still lacks
            self._left = [len(of_one) for of_one in users]  # samples that a part is still kept for
        self._held: list[memoryview | None] = [None] * len(self.parts)
        self._opened: dict[int, _OpenedOnce] = {}

    def without_parts(self) -> list[int]:
        """The samples that need none."""
        return [at for at, needs in enumerate(self._needs) if not needs]

    def refusal(self, number: int) -> Exception | None:
        """Why a part is not even asked for."""
        if self.broken is not None:
            return SourceError("its shard cannot be written")
        if self.sizes[number] > OBJECT_BYTES_MAX:
            key, size = self.parts[number].info.key, self.sizes[number]
            return SampleError("too_large", f"{key}: {size} bytes are more than {OBJECT_BYTES_MAX}")
        return None

    def fetch(self, part: Part, done: Callable[[Fetched], None]) -> None:
        began = time.perf_counter()

        def fetched(result: Fetched) -> None:
            if isinstance(result, memoryview):
                self.fetch_s.append(time.perf_counter() - began)
                self.read_bytes.append(len(result))
            done(result)

        self._source.start(part, fetched)

    def arrived(self, number: int, fetched: Fetched) -> Sequence[int]:
        """A part is there, or cannot be had. Return the samples that have all they need now."""
        users = self._users[number]
        if self._is_plain:  # nobody else has to do with it
            if isinstance(fetched, memoryview):
                self._held[number] = fetched
            else:
                self.errors[number] = _known(self, number, fetched)
            return users
        with self._lock:
            if isinstance(fetched, memoryview):
                self._held[number] = fetched
            for at in users:
                self._missing[at] -= 1
                if not isinstance(fetched, memoryview):
                    self.errors.setdefault(at, _known(self, at, fetched))
            return [at for at in users if not self._missing[at]]

    def prepare(self, at: int) -> int:
        """Make one sample, unless it cannot be had. Return the bytes that nobody needs any more."""
        error: Exception | None = None
        if at not in self.errors:
            try:
                self._make(at)
            except Exception as caught:
                error = caught
        with self._lock:
            if error is not None:
                self.errors[at] = _known(self, at, error)
            free = self._let_go(at)
            self.ended += 1
            is_last = self.ended == len(self.infos)
        self.progress(1)
        if is_last:
            self.all_done.set()
        return free

    def _let_go(self, at: int) -> int:
        """One sample less needs its parts. Return the bytes of those that nobody needs any more."""
        if self._is_plain:
            held, self._held[at] = self._held[at], None
            return self.sizes[at] if held is not None else 0
        free = 0
        for number in set(self._needs[at]):
            self._left[number] -= 1
            if not self._left[number] and self._held[number] is not None:
                self._held[number] = None
                self._opened.pop(number, None)
                free += self.sizes[number]
        return free

    def _make(self, at: int) -> None:
        began = time.perf_counter()
        info = self.infos[at]
        whole = self._held[at] if self._is_plain else None
        data = self._data_of(at) if whole is None else [whole]
        arrays = self._recipe.prepare(data, info.inputs)
        checksum = checksum_of(self._tags[at], self._header.recipe, self._header.fields, arrays)
        row = len(self.rows)
        if self._shard is not None:
            try:
                row = self._shard.add(Prepared(info.key, info.version, arrays, checksum))
            except OSError as error:
                self.broken = error
        self.rows.append((row, self.numbers[at], sum(array.nbytes for array in arrays.values())))
        self.prepare_s.append(time.perf_counter() - began)

    def _data_of(self, at: int) -> list[Data]:
        """All parts of a sample. Its place is inside of the first."""
        places = (self.infos[at].at, *[None] * len(self._needs[at]))
        return [self._data(number, place) for number, place in zip(self._needs[at], places, strict=False)]

    def _data(self, number: int, at: Any) -> Data:
        """A part as the recipe is given it: its bytes, or what is at a place inside of it."""
        data = self._held[number]
        assert data is not None
        if self._opener is None or at is None:
            return data
        with self._lock:
            opened = self._opened.setdefault(number, _OpenedOnce())
        return self._opener.take(opened.get(self._opener, data), at)


class _OpenedOnce:
    """An object that is opened by the first thread that needs it; the others wait for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_open = False
        self._opened: Opened = None

    def get(self, opener: Opener, data: memoryview) -> Opened:
        with self._lock:
            if not self._is_open:
                self._opened, self._is_open = opener.open(data), True
            return self._opened


def build_shard(
    path: Path | None,
    shard_format: ShardFormat,
    dataset: str,
    source: Source,
    recipe: Recipe,
    opener: Opener | None,
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
        about = samples, tags, infos, shard or None, header, progress, is_urgent
        work = _Work(source, recipe, opener, *about, records.is_plain)
        turn.wait()
        pools.begin(work, work.without_parts())
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
