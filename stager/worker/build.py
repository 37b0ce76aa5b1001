"""The way of the samples of one shard: fetch many parts at once, prepare on all threads, write one file."""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from statistics import fmean, median
from typing import Final

import numpy as np

from stager.config import OBJECT_BYTES_MAX
from stager.errors import SampleError, SourceBusy, SourceError, shown
from stager.functions.children import CHILDREN
from stager.functions.made import MadeSamples
from stager.interfaces import (
    Data,
    Fetched,
    Made,
    Opened,
    Opener,
    Recipe,
    ShardFormat,
    ShardWriter,
    Source,
)
from stager.reader.samples.sample_list import SampleList
from stager.reader.values import Absent, Arrays, Part, Prepared, SampleInfo, ShardHeader, checksum_of
from stager.worker.messages import Built
from stager.worker.pools import Pools
from stager.worker.reads import Span, plan_reads

TELL_EVERY_S: Final = 1.0
# Sources end each read. If one does not, we fall silent, and are given up.
FETCH_PATIENCE_S: Final = 600.0  # without a sample more, of ordinary size
MEASURED: Final = 64  # samples of a shard, about: a look at a thread's clock takes up to 2 us
SLOWEST_BYTES_PER_S: Final = 50_000  # a large object is waited for longer, whatever tries it takes


class PlaceInLine:
    """A place in a line: whoever has it goes on when all before it have left.

    Shards are given out in the order of need, each on a thread of its own; so they are fetched in that order.
    """

    def __init__(self, before: "PlaceInLine | None" = None) -> None:
        self._before = before
        self._left = threading.Event()

    def wait(self) -> None:
        """Until whoever came before has left."""
        if self._before is not None:
            self._before._left.wait()
            self._before = None  # or all that ever were would be held

    def leave(self) -> None:
        """Let the next one go on; more than once is fine."""
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
        made: MadeSamples | None = None,
    ) -> None:
        """`is_plain`: each sample is one whole object, which no other one needs. `made`: those of before."""
        self._source, self._recipe, self._opener, self._is_plain = source, recipe, opener, is_plain
        self.numbers, self._tags, self.infos = numbers, tags, infos
        self._shard, self._header, self.progress, self.is_urgent = shard, header, progress, is_urgent
        # Lists and dicts: to append to one is safe in threads, `+=` is not.
        self._made, self.is_made = made, made is not None
        self.rows: list[tuple[int, int, int]] = []  # row, sample, size in bytes
        self.errors: dict[int, SampleError | SourceError] = {}
        self.broken: OSError | None = None  # the file cannot be written: nobody's single sample
        self.fetch_s: list[float] = []
        # Seconds on a core, without waits for one: a few samples say little of those. And bytes, where plain.
        self.prepared: list[tuple[float, int]] = []
        self._measured_every = 1 + len(infos) // MEASURED
        self.made_s: list[float] = []  # by a person's function
        self.read_bytes: list[int] = []
        self.ended = 0
        self.all_done = threading.Event()
        self._lock = threading.Lock()
        self._plan_parts()

    def _plan_parts(self) -> None:
        """What several samples need is fetched once for all of them, and what lies together in one read."""
        count = len(self.infos)
        self._needs: list[tuple[int, ...]]  # the reads of each sample, by their numbers
        self._users: list[tuple[int, ...]]  # the samples that need a read
        if self._is_plain:  # one whole object each: a part has the number of its sample
            self.parts = [info.parts[0] for info in self.infos]
            self.sizes = [part.info.size for part in self.parts]
            self._needs = self._users = [(at,) for at in range(count)]
            self._missing = self._left = []
        else:
            self.parts, self._span_of = plan_reads([part for info in self.infos for part in info.parts])
            self._needs = [
                tuple({self._span_of[part].read: None for part in info.parts}) for info in self.infos
            ]
            users: list[list[int]] = [[] for _ in self.parts]
            for at, needs in enumerate(self._needs):
                for number in needs:
                    users[number].append(at)
            self._users = [tuple(of_one) for of_one in users]
            self.sizes = [part.size for part in self.parts]
            self._missing = [len(needs) for needs in self._needs]  # reads that a sample still lacks
            self._left = [len(of_one) for of_one in users]  # samples that a read is still kept for
        needed = (sum(self.sizes[number] for number in needs) for needs in self._needs)
        self.most_bytes = max(needed, default=0)
        self._held: list[memoryview | None] = [None] * len(self.parts)
        opened = 0 if self._is_plain else len(self.parts)
        self._opened: list[dict[tuple[int, Span], _OpenedOnce]] = [{} for _ in range(opened)]

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
            if isinstance(result, memoryview) and not isinstance(part.info, Absent):
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
        for number in self._needs[at]:
            self._left[number] -= 1
            if not self._left[number] and self._held[number] is not None:
                self._held[number] = None
                self._opened[number].clear()
                free += self.sizes[number]
        return free

    def _make(self, at: int) -> None:
        row = len(self.rows)
        is_measured = row % self._measured_every == 0
        began = time.thread_time() if is_measured else 0.0
        info = self.infos[at]
        whole = self._held[at] if self._is_plain else None
        data = self._data_of(at) if whole is None else [whole]
        arrays = self._recipe.prepare(data, info.inputs) if self._made is None else self._made_once(at, data)
        checksum = checksum_of(self._tags[at], self._header.recipe, self._header.fields, arrays)
        if self._shard is not None:
            try:
                row = self._shard.add(Prepared(info.key, info.version, arrays, checksum))
            except OSError as error:
                self.broken = error
        self.rows.append((row, self.numbers[at], sum(array.nbytes for array in arrays.values())))
        if is_measured:
            self.prepared.append((time.thread_time() - began, self.sizes[at] if self._is_plain else 0))
        if isinstance(arrays, Made):
            self.made_s.append(arrays.seconds)

    def _made_once(self, at: int, data: Sequence[Data]) -> Arrays:
        """A sample that a function has made before, even if its shard was lost; else made now, and kept."""
        assert self._made is not None
        found = self._made.find(self._tags[at])
        if found is not None:
            return found
        arrays = self._recipe.prepare(data, self.infos[at].inputs)
        if isinstance(arrays, Made):
            with suppress(OSError):  # a full disk, most likely: then it is made again after a crash
                self._made.keep(self._tags[at], arrays)
        return arrays

    def _data_of(self, at: int) -> Sequence[Data]:
        """What the recipe is given of a sample: the bytes of its parts, or what is taken from them."""
        info = self.infos[at]
        spans = [self._span_of[part] for part in info.parts]
        if self._opener is None or info.at is None:
            return [self._bytes(span) for span in spans]
        opened = [self._open(self._opener, number, span) for number, span in enumerate(spans)]
        try:
            return self._opener.take(opened, info.at)
        except SampleError as error:
            if error.part is None:
                raise
            key = shown(info.parts[error.part].info.key)
            raise SampleError(error.reason, f"{key}: {error.message}") from None

    def _bytes(self, span: Span) -> memoryview:
        held = self._held[span.read]
        assert held is not None
        return held[span.start : span.stop]

    def _open(self, opener: Opener, number: int, span: Span) -> Opened:
        with self._lock:
            opened = self._opened[span.read].setdefault((number, span), _OpenedOnce())
        return opened.get(opener, number, self._bytes(span))


class _OpenedOnce:
    """A part that is opened by the first thread that needs it; the others wait for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_open = False
        self._opened: Opened = None

    def get(self, opener: Opener, number: int, data: memoryview) -> Opened:
        with self._lock:
            if not self._is_open:
                self._opened, self._is_open = opener.open(number, data), True
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
    made: Path | None = None,
) -> Built:
    """Read and prepare these samples and write them to `path`; with no path, only measure.

    A sample that cannot be had is left out and told. Only if the source failed for all of them, it raises.
    The first sample is asked for in its `turn`, which is left then. `room_bytes` are reserved for the file.
    `made`: where samples are kept that a function has made.
    """
    turn = turn or PlaceInLine()
    header = ShardHeader(dataset, manifest, recipe.digest, recipe.fields)
    with ExitStack() as stack:
        shard = path and stack.enter_context(shard_format.begin(path, header, len(samples), room_bytes))
        infos = records.infos(samples)
        tags = records.values("tag", np.asarray(samples, dtype=np.int64)).tolist()
        about = samples, tags, infos, shard or None, header, progress, is_urgent
        kept = MadeSamples(made, recipe.digest, recipe.fields) if made else None
        work = _Work(source, recipe, opener, *about, records.is_plain, kept)
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
        *_cost(work.prepared[len(work.prepared) // 4 :]),
        sum(work.made_s),
        sum(seconds * seconds for seconds in work.made_s),
    )


def _cost(prepared: Sequence[tuple[float, int]]) -> tuple[float, float]:
    """The mean of a sample's seconds, and the median of its seconds a byte.

    A few samples may have one that is ten times as large as most, or that met with memory never used before:
    the mean of so few is off by a half then, and the median is not.
    """
    seconds = fmean([seconds for seconds, _ in prepared] or [0.0])
    return seconds, median([seconds / size for seconds, size in prepared if size] or [0.0])


def _wait_for(work: _Work, pools: Pools) -> None:
    """Until all is done. While objects or functions are under way, say so: each has a deadline."""
    patience_s = FETCH_PATIENCE_S + max((info.size for info in work.infos), default=0) / SLOWEST_BYTES_PER_S
    ended, since_s = -1, 0.0
    while not work.all_done.wait(TELL_EVERY_S):
        if ended != work.ended:
            ended, since_s = work.ended, time.monotonic()
        if (pools.is_fetching and time.monotonic() - since_s < patience_s) or CHILDREN.making:
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
