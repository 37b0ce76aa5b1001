"""A worker process: tasks come in as JSON lines on stdin, answers go out as JSON lines on stdout.

It owns no state, no lock and no socket: it can be killed at any moment, and dies when its stdin ends.
"""

import gc
import logging
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TextIO

from stager import recipes
from stager.cache.budget import check_free
from stager.errors import known_error
from stager.interfaces import LeftOut, Recipe, Scanning, Source
from stager.layouts import open_layout, open_opener
from stager.reader.record import DatasetSpec
from stager.reader.samples.manifest import Manifest
from stager.reader.samples.sample_list import SampleList
from stager.reader.values import ObjectInfo, canonical_json
from stager.recipes import check_ready, open_recipe
from stager.scan.scan import NOTHING_KNOWN, Known, write_manifest
from stager.shards import FORMATS
from stager.sources import open_source
from stager.worker.build import PlaceInLine, build_shard
from stager.worker.listing import SourceListing
from stager.worker.messages import (
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
    ShardBuilt,
    ToWorker,
    line_of,
    read_by_worker,
)
from stager.worker.pools import Pools

log = logging.getLogger(__name__)

PROGRESS_EVERY_S = 0.2
SCAN_TOLD_EVERY_S = 1.0
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
        self._lists: dict[tuple[Path, str], SampleList] = {}  # by directory and lineage
        self._turn = PlaceInLine()  # of the last shard
        self._turn.leave()
        self.pools = Pools(prepare_threads, self._load)

    def start(self, message: ToWorker) -> None:
        """Begin what the service asks for."""
        do: Callable[[], None]
        if isinstance(message, OpenSource):
            do = partial(self._open_ahead, message)
        elif isinstance(message, ScanSource):
            do = partial(self._run, message.task, str(message.path), partial(self._scan, message))
        else:
            self._turn = PlaceInLine(self._turn)
            path = str(message.file.path) if message.file else ""
            do = partial(self._run, message.task, path, partial(self._build, message, self._turn))
        threading.Thread(target=do, daemon=True).start()

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
        told = _ScanProgress(lambda scanned: self.say(Progress(task.task, scanned)))
        spec = task.dataset
        source, recipe = self._opened(spec)
        scanning, left_out = Scanning(told.went_on), LeftOut(recipe.takes)
        known = NOTHING_KNOWN
        if before := task.known:
            records = self._records(before.records)
            known = Known(records, Manifest.open(before.manifest, records), before.relist)
        layout = open_layout(spec.layout, spec.options, recipe, left_out)
        listing = SourceListing(source, scanning, told.passed)
        write_manifest(task.path, layout, listing, known, told.scanned)
        left_out.add(scanning.left_out)
        if line := left_out.line():
            log.warning("%s: %s", spec.name, line)
        return Scanned(task.task, line)

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
            if file is not None:
                check_free(file.scratch.parent, file.free_before)
            built = build_shard(
                file.scratch if file else None,
                FORMATS[task.format],
                spec.name,
                source,
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
            )
            if file is not None and built.samples:
                file.scratch.replace(file.path)
        except BaseException:
            if file is not None:
                file.scratch.unlink(missing_ok=True)
            raise
        finally:
            turn.leave()
        return ShardBuilt(task.task, built)

    def _opened(self, spec: DatasetSpec) -> tuple[Source, Recipe]:
        name = canonical_json(spec.to_json())
        if name not in self._open:
            self._open[name] = open_source(spec.source), open_recipe(spec.recipe)
        return self._open[name]

    def _records(self, place: ListPlace) -> SampleList:
        name = (place.directory, place.lineage)
        known = self._lists.get(name)
        if known is None or not set(place.segments) <= set(known.names):
            known = self._lists[name] = SampleList.open(place.directory, place.lineage, place.segments)
        return known

    def say(self, message: FromWorker) -> None:
        with self._lock:
            self._answers.write(line_of(message))
            self._answers.flush()


class _ScanProgress:
    """Says how far a scan is: a slow one, which goes on, is no silent one."""

    def __init__(self, say: Callable[[int], None]) -> None:
        self._say = say
        self._scanned = 0
        self._said_at = time.monotonic()

    def scanned(self, scanned: int) -> None:
        self._scanned, self._said_at = scanned, time.monotonic()
        self._say(scanned)

    def went_on(self) -> None:
        """Something was heard of the source. Any thread may tell."""
        if time.monotonic() - self._said_at > SCAN_TOLD_EVERY_S:
            self.scanned(self._scanned)

    def passed(self, objects: Iterable[ObjectInfo]) -> Iterator[ObjectInfo]:
        for info in objects:
            self.went_on()
            yield info


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
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the owner, who ends us
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints must not look like an answer
    worker = Worker(int(sys.argv[1]), answers)
    logging.basicConfig(handlers=[_ToOwner(worker)])
    for line in sys.stdin:
        worker.start(read_by_worker(line))
    os._exit(0)  # the owner is gone: what is under way is worth nothing


if __name__ == "__main__":
    main()
