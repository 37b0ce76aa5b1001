"""What the workers do now: scans and shards, given out, watched, and given out again when a worker dies."""

import logging
import queue
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from stager import errors
from stager.cache import Cache, Dataset
from stager.config import STALL_S
from stager.dataset import DatasetSpec
from stager.errors import SourceBusy, StagerError
from stager.index import is_failed, is_resident
from stager.job import Job, Mask
from stager.model import Numbers
from stager.workers import WorkerPool, WorkerProcess

log = logging.getLogger("stager")

GUESS_ROW_BYTES: Final = 1 << 20  # for rows of unknown size, until the first ones are known
SHARD_OVERHEAD_BYTES: Final = 1 << 20


@dataclass(slots=True)
class Task:
    """A scan, or one shard. `job`: the one that is scanned for, or planned by this shard."""

    id: int
    spec: DatasetSpec
    job: Job | None = None
    dataset: Dataset | None = None  # None: a scan
    samples: Numbers = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    format: str = ""
    shard: int = 0
    path: Path | None = None  # None: only measured
    reserved_bytes: int = 0
    done: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a task ended: with a result, or with an error that is nobody's single sample."""

    task: Task
    result: Mapping[str, Any]
    error: StagerError | None = None


class Tasks:
    """Gives tasks to workers and keeps track of which samples are in one."""

    def __init__(self, cache: Cache, events: "queue.SimpleQueue[Any]") -> None:
        self.cache = cache
        self.pool = WorkerPool(events)
        self._open: dict[int, Task] = {}
        self._urgent: deque[tuple[Dataset, Numbers, str]] = deque()
        self._suspects: set[tuple[str, int]] = set()  # samples that were alone with a worker that died
        self._in_flight: dict[str, Mask] = {}  # manifest -> samples that are in a task
        self._row_bytes: dict[int, float] = {}  # data set id -> mean bytes of a stored sample, as seen
        self._last = 0

    # Giving out

    def scan(self, job: Job) -> None:
        """Have a source listed; the manifest is written to a scratch file."""
        self._last += 1
        path = self.cache.scratch / f"scan-{self._last}"
        task = Task(self._last, job.request.spec, job, path=path)
        self._send(task, {"kind": "scan", "path": str(path)})

    def build(
        self, dataset: Dataset, samples: Numbers, shard_format: str, plan_of: Job | None = None
    ) -> None:
        """Have one shard built; raise NoSpace if there is no room. A job that stops at a plan writes none."""
        self._last += 1
        task = Task(self._last, dataset.spec, plan_of, dataset, samples, shard_format)
        message: dict[str, Any] = {
            "kind": "build",
            "manifest": str(self.cache.manifest_of(dataset)),
            "samples": samples.tolist(),
            "format": shard_format,
            "scratch": "",
        }
        if plan_of is None or not plan_of.request.stop_after:
            task.reserved_bytes = int(len(samples) * self.mean_row_bytes(dataset)) + SHARD_OVERHEAD_BYTES
            self.cache.budget.take(task.reserved_bytes)
            task.shard, task.path = self.cache.next_shard(dataset, shard_format)
            message |= {"path": str(task.path), "scratch": str(self._scratch(task))}
        self.in_flight(dataset)[samples] = True
        self._send(task, message)

    def put_urgent(self, dataset: Dataset, samples: Numbers, shard_format: str) -> None:
        """Samples that come before all jobs: a reader waits for them, or a dead worker had them."""
        self._urgent.append((dataset, samples, shard_format))

    def next_urgent(self) -> tuple[Dataset, Numbers, str] | None:
        """The next urgent samples that are still missing and not in a task."""
        while self._urgent:
            dataset, samples, shard_format = self._urgent.popleft()
            words = dataset.index.words[samples]
            samples = samples[~is_resident(words) & ~is_failed(words) & ~self.in_flight(dataset)[samples]]
            if len(samples):
                return dataset, samples, shard_format
        return None

    def _send(self, task: Task, message: dict[str, Any]) -> None:
        self._open[task.id] = task
        self.pool.send({"task": task.id, "dataset": task.spec.to_json(), **message})

    # Hearing of them

    def answered(self, worker: WorkerProcess, message: Mapping[str, Any]) -> Outcome | None:
        """Take a worker's message; a task that is over has an outcome."""
        worker.heard_at = time.monotonic()
        task = self._open.get(message["task"])
        if task is None:
            return None
        if message["kind"] == "progress":
            task.done = message["done"]
            if task.dataset is None and task.job is not None:
                task.job.scanned = task.done
            return None
        worker.tasks.discard(task.id)
        self._close(task)
        if message["kind"] == "failed":
            kind = getattr(errors, message["error"])
            return Outcome(task, {}, kind(message["message"], message["hint"]))
        if task.dataset is not None and message["samples"]:
            self._row_bytes[task.dataset.id] = message["size_bytes"] / len(message["samples"])
        return Outcome(task, message)

    def worker_died(self, worker: WorkerProcess) -> list[Outcome]:
        """Its shards are built again in halves, until a sample that kills workers is alone and has failed."""
        self.pool.drop(worker)
        outcomes = []
        for task in self._take_from(worker):
            log.warning("worker died dataset=%s samples=%d", task.spec.name, len(task.samples))
            if task.dataset is None:
                died = SourceBusy(
                    f"{task.spec.source.url}: the scan's process died", hint="see the log; try again"
                )
                outcomes.append(Outcome(task, {}, died))
                continue
            failed = self._halve(task.dataset, task.samples, task.format)
            if failed or task.job is not None:
                outcomes.append(Outcome(task, {**_EMPTY, "failed": failed}))
        return outcomes

    def _halve(self, dataset: Dataset, samples: Numbers, shard_format: str) -> list[tuple[int, str, str]]:
        """Put the samples of a dead worker back; return those that have failed for good."""
        if len(samples) > 1:
            for half in np.array_split(samples, 2):
                self.put_urgent(dataset, half, shard_format)
            return []
        sample = int(samples[0])
        suspect = (dataset.record.manifest, sample)
        if suspect not in self._suspects:
            self._suspects.add(suspect)
            self.put_urgent(dataset, samples, shard_format)
            return []
        return [(sample, "crashed", f"{dataset.manifest.key(sample)}: preparing it ended the worker")]

    def stalled(self) -> list[Outcome]:
        """Leave workers behind that have been silent for long: most likely they hang in their source."""
        outcomes = []
        for worker in list(self.pool.workers):
            if worker.tasks and time.monotonic() - worker.heard_at > STALL_S:
                self.pool.drop(worker)
                for task in self._take_from(worker):
                    silent = SourceBusy(
                        f"{task.spec.source.url}: no answer for {STALL_S:.0f} s",
                        hint="check the mount or the network, then run it again",
                    )
                    outcomes.append(Outcome(task, {}, silent))
        return outcomes

    def _take_from(self, worker: WorkerProcess) -> list[Task]:
        tasks = [self._open[number] for number in worker.tasks if number in self._open]
        worker.tasks.clear()
        for task in tasks:
            self._close(task)
            self._scratch(task).unlink(missing_ok=True)
        return tasks

    def _close(self, task: Task) -> None:
        del self._open[task.id]
        if task.dataset is not None:
            self.in_flight(task.dataset)[task.samples] = False
            self.cache.budget.settle(task.reserved_bytes, 0)

    def stop(self) -> None:
        """End all workers; what they had under way is worth nothing."""
        self.pool.stop()
        for worker in [*self.pool.workers]:
            worker.process.wait()
        for task in [*self._open.values()]:
            self._close(task)
            if task.path is not None:
                task.path.unlink(missing_ok=True)

    # Small facts

    def in_flight(self, dataset: Dataset) -> Mask:
        """Which samples of a data set are in a task."""
        manifest = dataset.record.manifest
        if manifest not in self._in_flight:
            self._in_flight[manifest] = np.zeros(len(dataset.manifest), dtype=np.bool_)
        return self._in_flight[manifest]

    def under_way(self, dataset: Dataset) -> int:
        """Samples that are prepared but whose shard is not complete."""
        return sum(task.done for task in self._open.values() if task.dataset is dataset)

    def paths(self) -> set[Path]:
        """Files that may be there and that the catalog does not have."""
        named = {task.path for task in self._open.values() if task.path is not None}
        return named | {self._scratch(task) for task in self._open.values()}

    def mean_row_bytes(self, dataset: Dataset) -> float:
        return fixed_row_bytes(dataset) or self._row_bytes.get(dataset.id, GUESS_ROW_BYTES)

    def knows_row_bytes(self, dataset: Dataset) -> bool:
        return fixed_row_bytes(dataset) is not None or dataset.id in self._row_bytes

    def _scratch(self, task: Task) -> Path:
        return self.cache.scratch / f"shard-{task.shard:08x}"


_EMPTY: Final[dict[str, Any]] = {
    "samples": [],
    "failed": [],
    "size_bytes": 0,
    "size_squares": 0,
    "reads": 0,
    "read_bytes": 0,
    "fetch_s": 0.0,
    "prepare_s": 0.0,
}


def fixed_row_bytes(dataset: Dataset) -> int | None:
    """Bytes of a stored sample, or None if samples differ."""
    sizes = [spec.row_bytes for spec in dataset.record.fields]
    return None if None in sizes else sum(size or 0 for size in sizes)


def choose_format(asked: str, dataset: Dataset) -> tuple[str, str]:
    """The format of new shards, and why."""
    if asked != "auto":
        return asked, "as asked"
    if fixed_row_bytes(dataset) is not None:
        return "arrow", "rows of one size are read straight from the mapped file"
    return "arrow", "rows are found by offset, without a look-up"
