"""A worker process: tasks come in as JSON lines on stdin, answers go out as JSON lines on stdout.

It owns no state, no lock and no socket: it can be killed at any moment, and dies when its stdin ends.
"""

import gc
import json
import logging
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

from stager import recipes
from stager.cache.budget import check_free
from stager.cache.scan import NOTHING_KNOWN, Known, write_manifest
from stager.errors import known_error
from stager.interfaces import LeftOut, Recipe, Scanning, Source
from stager.layouts import open_layout, open_opener
from stager.reader.manifest import Manifest
from stager.reader.record import DatasetSpec
from stager.reader.sample_list import SampleList
from stager.reader.values import ObjectInfo, canonical_json
from stager.recipes import check_ready, open_recipe
from stager.shards import FORMATS
from stager.sources import open_source
from stager.worker.build import PlaceInLine, build_shard
from stager.worker.listing import SourceListing
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
        self._lists: dict[tuple[str, str], SampleList] = {}  # by directory and lineage
        self._turn = PlaceInLine()  # of the last shard
        self._turn.leave()
        self.pools = Pools(prepare_threads, self._load)

    def start(self, task: Mapping[str, Any]) -> None:
        """Begin one task: scan, build, or open (a source that is likely to be asked for)."""
        do: Callable[[], None]
        if task["kind"] == "open":
            do = partial(self._open_ahead, task)
        elif task["kind"] == "scan":
            do = partial(self._run, task, self._scan)
        else:
            self._turn = PlaceInLine(self._turn)
            do = partial(self._run, task, partial(self._build, self._turn))
        threading.Thread(target=do, daemon=True).start()

    def _run(self, task: Mapping[str, Any], do: Callable[..., dict[str, Any]]) -> None:
        """Do one task and answer: {"task", "kind": "done" | "failed", ...}."""
        try:
            result = do(task, DatasetSpec.from_json(task["dataset"]))
            self.say({"task": task["task"], "kind": "done", **result})
        except Exception as error:
            told = known_error(error, task.get("path", ""))
            about = {"error": type(told).__name__, "message": told.message, "hint": told.hint}
            self.say({"task": task["task"], "kind": "failed", **about})

    def _load(self) -> None:
        load_libraries()
        self.say({"kind": "native", "native": recipes.describe()})

    def _open_ahead(self, task: Mapping[str, Any]) -> None:
        with suppress(Exception):  # the first task that needs it tells
            self._opened(DatasetSpec.from_json(task["dataset"]))

    def _scan(self, task: Mapping[str, Any], spec: DatasetSpec) -> dict[str, Any]:
        told = _ScanProgress(
            lambda scanned: self.say({"task": task["task"], "kind": "progress", "done": scanned})
        )
        source, recipe = self._opened(spec)
        scanning, left_out = Scanning(told.went_on), LeftOut(recipe.takes)
        known = NOTHING_KNOWN
        if before := task["known"]:
            records = self._records(before)
            newest = Manifest.open(Path(before["manifest"]), records)
            known = Known(records, newest, before["relist"])
        layout = open_layout(spec.layout, spec.options, recipe, left_out)
        listing = SourceListing(source, scanning, told.passed)
        write_manifest(Path(task["path"]), layout, listing, known, told.scanned)
        left_out.add(scanning.left_out)
        if line := left_out.line():
            log.warning("%s: %s", spec.name, line)
        return {"left_out": line}

    def _build(self, turn: PlaceInLine, task: Mapping[str, Any], spec: DatasetSpec) -> dict[str, Any]:
        began = time.perf_counter()
        done, said_at = 0, began

        def progress(more: int) -> None:
            nonlocal done, said_at
            done += more
            if time.perf_counter() - said_at > PROGRESS_EVERY_S:
                said_at = time.perf_counter()
                self.say({"task": task["task"], "kind": "progress", "done": done})

        scratch = Path(task["scratch"]) if task["scratch"] else None
        try:
            check_ready(spec.recipe)
            source, recipe = self._opened(spec)
            if scratch is not None:
                check_free(scratch.parent, task["free_before"])
            built = build_shard(
                scratch,
                FORMATS[task["format"]],
                spec.name,
                source,
                recipe,
                open_opener(spec.layout, spec.options),
                task["manifest"],
                self._records(task["list"]),
                task["samples"],
                self.pools,
                progress,
                task.get("urgent", False),
                turn,
                task["room_bytes"],
            )
            if scratch is not None and built.samples:
                scratch.replace(task["path"])
        except BaseException:
            if scratch is not None:
                scratch.unlink(missing_ok=True)
            raise
        finally:
            turn.leave()
        return {**asdict(built), "seconds": time.perf_counter() - began}

    def _opened(self, spec: DatasetSpec) -> tuple[Source, Recipe]:
        name = canonical_json(spec.to_json())
        if name not in self._open:
            self._open[name] = open_source(spec.source), open_recipe(spec.recipe)
        return self._open[name]

    def _records(self, told: Mapping[str, Any]) -> SampleList:
        name = (told["directory"], told["lineage"])
        known = self._lists.get(name)
        if known is None or not set(told["segments"]) <= set(known.names):
            known = self._lists[name] = SampleList.open(
                Path(told["directory"]), told["lineage"], told["segments"]
            )
        return known

    def say(self, message: Mapping[str, Any]) -> None:
        with self._lock:
            self._answers.write(json.dumps(message) + "\n")
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
        self._worker.say({"kind": "log", "level": record.levelno, "event": record.getMessage()})


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the owner, who ends us
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints must not look like an answer
    worker = Worker(int(sys.argv[1]), answers)
    logging.basicConfig(handlers=[_ToOwner(worker)])
    for line in sys.stdin:
        worker.start(json.loads(line))
    os._exit(0)  # the owner is gone: what is under way is worth nothing


if __name__ == "__main__":
    main()
