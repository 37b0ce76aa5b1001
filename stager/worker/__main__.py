"""A worker process: tasks come in as JSON lines on stdin, answers go out as JSON lines on stdout.

It owns no state, no lock and no socket: it can be killed at any moment, and dies when its stdin ends.
"""

import gc
import logging
import math
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TextIO

from stager import recipes
from stager.cache.budget import check_free
from stager.errors import known_error
from stager.functions.children import CHILDREN
from stager.interfaces import Recipe, Source
from stager.layouts import LAYOUTS, open_opener
from stager.lines import line_of
from stager.parent import die_with
from stager.reader.record import DatasetSpec
from stager.reader.samples.manifest import Manifest
from stager.reader.samples.sample_list import SampleList
from stager.reader.values import SourceSpec, canonical_json
from stager.recipes import check_ready, is_code, keyed, open_recipe
from stager.scan.scan import NOTHING_KNOWN, Known
from stager.shards import FORMATS
from stager.sources import open_source
from stager.sources.chunks import ChunkSource
from stager.sources.limit import LimitedSource, Limits, Rate
from stager.sources.mount.asked import Asked
from stager.sources.unpacked import UnpackedSource
from stager.worker.build import PlaceInLine, build_shard
from stager.worker.heap import keep_freed
from stager.worker.messages import (
    BACKGROUND,
    BUCKETS_MOST,
    Answer,
    BuildShard,
    Failed,
    FromWorker,
    ListPlace,
    Logged,
    NativeTold,
    OpenSource,
    Progress,
    Scanned,
    ScanSource,
    SetLimits,
    ShardBuilt,
    SilenceTold,
    ToWorker,
    read_by_worker,
)
from stager.worker.pools import Pools
from stager.worker.priority import give_way
from stager.worker.scanning import ScanProgress, scan

PROGRESS_EVERY_S = 0.2
SILENCE_LOOK_S, SILENCE_TOLD_S = 1.0, 5.0
LIBRARIES = (
    *("stager.sources.s3.curl", "stager.shards.arrow"),
    *("pyarrow.compute", "numpy.ma"),  # which pyarrow imports when it needs them first
)


class Worker:
    """Runs each task on a thread of its own; all share the fetch and prepare threads."""

    def __init__(self, prepare_threads: int, answers: TextIO) -> None:
        self._answers = answers
        self._lock = threading.Lock()
        self._open: dict[str, tuple[Source, Recipe]] = {}
        self._asked: dict[SourceSpec, Asked] = {}
        self._unpackers: dict[tuple[str, Path], UnpackedSource] = {}
        self._lists: dict[tuple[Path, str], SampleList] = {}  # by directory and lineage
        self._limits = Limits()
        self._turn = PlaceInLine()  # of the last shard
        self._turn.leave()
        self.pools = Pools(prepare_threads, self._load)

    def start(self, message: ToWorker) -> None:
        """Begin what the service asks for."""
        do: Callable[[], None]
        if isinstance(message, SetLimits):
            self._set_limits(message)
            return
        if isinstance(message, OpenSource):
            do = partial(self._open_ahead, message)
        elif isinstance(message, ScanSource):
            do = partial(self._run, message.task, str(message.path), partial(self._scan, message))
        else:
            self._turn = PlaceInLine(self._turn)
            path = str(message.file.path) if message.file else ""
            do = partial(self._run, message.task, path, partial(self._build, message, self._turn))
        threading.Thread(target=do, daemon=True).start()

    def _set_limits(self, told: SetLimits) -> None:
        of_all = Rate(*told.of_all) if told.of_all else None
        of = {name: Rate(*rate) for name, rate in told.of.items()}
        self._limits.set(told.buckets, BUCKETS_MOST, of_all, of)
        self.pools.share.cores = told.cores

    def _run(self, task: int, path: str, do: Callable[[], Answer]) -> None:
        """Do one task and answer."""
        try:
            self.say(do())
        except Exception as error:
            self.say(Failed.by(task, known_error(error, path)))

    def _load(self) -> None:
        load_libraries()
        self.say(NativeTold(recipes.describe()))

    def _open_ahead(self, message: OpenSource) -> None:
        with suppress(Exception):  # the first task that needs it tells
            self._opened(message.dataset)

    def _scan(self, task: ScanSource) -> Scanned:
        keyed_recipe = keyed(task.dataset.recipe) if is_code(task.dataset.recipe) else None
        source, recipe = self._opened(task.dataset)
        known = NOTHING_KNOWN
        if before := task.known:
            records = self._records(before.records)
            known = Known(records, Manifest.open(before.manifest, records), before.relist)
        progress = ScanProgress(lambda scanned: self.say(Progress(task.task, scanned)))
        asked = self._asked[task.dataset.source]
        scratch, begin = task.path.parent, f"{task.path.name}."
        if (unpack := LAYOUTS[task.dataset.layout].unpack) is not None:
            source = UnpackedSource(source, task.dataset.source, unpack, scratch, begin)
        try:
            return replace(scan(task, source, recipe, known, progress, asked), recipe=keyed_recipe)
        finally:
            for path in scratch.glob(f"{begin}unpacked-*"):
                path.unlink()

    def _build(self, task: BuildShard, turn: PlaceInLine) -> ShardBuilt:
        done, said_at = 0, time.perf_counter()

        def progress(more: int) -> None:
            nonlocal done, said_at
            done += more
            if time.perf_counter() - said_at > PROGRESS_EVERY_S:
                said_at = time.perf_counter()
                self.say(Progress(task.task, done))

        spec, file = task.dataset, task.file
        try:
            check_ready(spec.recipe)
            source, recipe = self._opened(spec)
            unpacked = self._unpacked(spec, source, task.unpacked) if task.unpacked else None
            if file is not None:
                check_free(file.scratch.parent, file.free_before)
            built = build_shard(
                file.scratch if file else None,
                FORMATS[task.format],
                spec.name,
                unpacked or source,
                recipe,
                open_opener(spec.layout, spec.options),
                task.manifest,
                self._records(task.records),
                task.samples,
                self.pools,
                progress,
                task.is_urgent,
                turn,
                file.room_bytes if file else 0,
                task.made,
            )
            if file is not None and built.samples:
                file.scratch.replace(file.path)
        except BaseException:
            if file is not None:
                file.scratch.unlink(missing_ok=True)
            raise
        finally:
            turn.leave()
        if unpacked is not None:
            reads = unpacked.take_reads()
            built = replace(built, reads=len(reads), read_bytes=sum(reads))
        return ShardBuilt(task.task, built)

    def _unpacked(self, spec: DatasetSpec, source: Source, scratch: Path) -> UnpackedSource:
        """A source whose objects are unpacked there: one for all tasks of a data set."""
        name, unpack = canonical_json(spec.to_json()), LAYOUTS[spec.layout].unpack
        assert unpack is not None, "nothing of other layouts is unpacked"
        return self._unpackers.setdefault(
            (name, scratch), UnpackedSource(source, spec.source, unpack, scratch)
        )

    def _opened(self, spec: DatasetSpec) -> tuple[Source, Recipe]:
        name = canonical_json(spec.to_json())
        if name not in self._open:
            asked = self._asked.setdefault(spec.source, Asked())
            source: Source = LimitedSource(open_source(spec.source, asked), spec.name, self._limits)
            if LAYOUTS[spec.layout].has_chunks:
                source = ChunkSource(source)
            self._open[name] = source, open_recipe(spec.recipe)
        return self._open[name]

    def tell_silences(self) -> None:
        """Say of each source that does not answer, as long as it does not, and once that it does again."""
        told_at: dict[SourceSpec, float] = {}
        while True:
            time.sleep(SILENCE_LOOK_S)
            for source, asked in list(self._asked.items()):
                silence = asked.silence()
                if silence and time.monotonic() - told_at.get(source, -math.inf) >= SILENCE_TOLD_S:
                    told_at[source] = time.monotonic()
                    self.say(SilenceTold(source, round(silence.seconds, 1), silence.what))
                elif not silence and told_at.pop(source, None) is not None:
                    self.say(SilenceTold(source, 0.0, ""))

    def _records(self, place: ListPlace) -> SampleList:
        name = (place.directory, place.lineage)
        known = self._lists.get(name)
        if known is None or not set(place.segments) <= set(known.names):
            known = self._lists[name] = SampleList.open(place.directory, place.lineage, place.segments)
        return known

    def say(self, message: FromWorker) -> None:
        """One line to the owner. Any thread may."""
        with self._lock:
            try:
                self._answers.write(line_of(message))
                self._answers.flush()
            except BrokenPipeError:
                os._exit(0)  # the owner is gone: what is under way is worth nothing


def load_libraries() -> None:
    """Import what samples need before the first one is asked for: boto3 takes half a second."""
    for module in LIBRARIES:
        with suppress(Exception):  # what cannot be imported, the first sample tells
            import_module(module)
    recipes.load_libraries()
    gc.freeze()  # thousands of objects that stay: no collection need look at them again


class _ToOwner(logging.Handler):
    """Has the owner log it: there is one log, in one format."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(logging.WARNING)
        self._worker = worker

    def emit(self, record: logging.LogRecord) -> None:
        self._worker.say(Logged(record.levelno, record.getMessage()))


def main() -> None:
    die_with(os.getppid())  # who comes after the owner must find nothing that still writes
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the owner, who ends us
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints must not look like an answer
    threads = int(sys.argv[1])
    if sys.argv[2:] == [BACKGROUND]:
        load_libraries()  # as long as we are as good as others: that takes a second of a core
        give_way()
    CHILDREN.most = max(1, threads - 1)  # as many in all as there are cores
    keep_freed(threads)
    worker = Worker(threads, answers)
    logging.basicConfig(handlers=[_ToOwner(worker)])
    threading.Thread(target=worker.tell_silences, name="silences", daemon=True).start()
    for line in sys.stdin:
        worker.start(read_by_worker(line))
    os._exit(0)  # the owner is gone: what is under way is worth nothing


if __name__ == "__main__":
    main()
