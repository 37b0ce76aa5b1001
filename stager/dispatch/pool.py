"""The owner's side of its worker processes: start, send, listen, give up."""

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, Final, Protocol

from stager import recipes
from stager.clock import Clock
from stager.config import TASKS_PER_WORKER, THREADS_PER_WORKER
from stager.dispatch.events import Events
from stager.reader.record import DatasetSpec
from stager.worker.messages import (
    Answer,
    Logged,
    NativeTold,
    OpenSource,
    Task,
    ToWorker,
    line_of,
    read_by_service,
)

log = logging.getLogger("stager.dispatch.pool")

KILL_S: Final = 2.0  # a killed worker that is still there by then hangs in its source, and writes nothing


@dataclass(slots=True)
class WorkerProcess:
    """One worker process and the tasks it has."""

    process: "subprocess.Popen[str]"
    heard_at: float
    tasks: set[int] = field(default_factory=set)

    @property
    def stdin(self) -> IO[str]:
        assert self.process.stdin is not None
        return self.process.stdin


@dataclass(frozen=True, slots=True)
class WorkerMessage:
    """What a worker said. `message` is None when the process ended."""

    worker: WorkerProcess
    message: Answer | None


class Pool(Protocol):
    """Whoever does the tasks."""

    size: int  # processes
    threads: int  # of each, that prepare
    workers: list[WorkerProcess]
    native: str  # which way samples are prepared

    def start(self, specs: Iterable[DatasetSpec]) -> None: ...

    def free_slots(self) -> int:
        """How many more tasks could be sent now."""

    def send(self, task: Task) -> None:
        """Have a task done. What comes of it is a `WorkerMessage` among the loop's events."""

    def drop(self, worker: WorkerProcess) -> None:
        """Do without a worker from now on."""

    def stop(self) -> None: ...


class WorkerPool:
    """As many processes as the cores want. They start with the first task; answers arrive on a queue."""

    def __init__(self, answers: Events, clock: Clock) -> None:
        cores = len(os.sched_getaffinity(0))
        self.size = max(1, round(cores / THREADS_PER_WORKER))
        self.threads = -(-cores // self.size) + 1  # one waits for Python's lock as a rule, or for the disk
        self.workers: list[WorkerProcess] = []
        self._answers, self._clock = answers, clock
        self.native = recipes.describe()  # which way samples are prepared: once a worker runs, what it says

    def start(self, specs: Iterable[DatasetSpec]) -> None:
        """Start all processes now, with these sources open: the first reader need not wait for them."""
        while len(self.workers) < self.size:
            self._start()
        for worker in self.workers:
            for spec in specs:
                _write(worker, OpenSource(spec))

    def free_slots(self) -> int:
        """How many more tasks could be sent now."""
        return self.size * TASKS_PER_WORKER - sum(len(worker.tasks) for worker in self.workers)

    def send(self, task: Task) -> None:
        """Give a task to the least busy worker."""
        if len(self.workers) < self.size:
            self._start()
        worker = min(self.workers, key=lambda worker: len(worker.tasks))
        if not worker.tasks:
            worker.heard_at = self._clock.now()
        worker.tasks.add(task.task)
        _write(worker, task)

    def drop(self, worker: WorkerProcess) -> None:
        """Kill a worker and forget it. It is not waited for: on a hung mount it cannot even die."""
        worker.process.kill()
        with suppress(OSError):
            worker.stdin.close()
        if worker in self.workers:
            self.workers.remove(worker)

    def stop(self) -> None:
        """Kill all, and see them gone: what they had under way can be removed now."""
        workers = list(self.workers)
        for worker in workers:
            self.drop(worker)
        for worker in workers:
            with suppress(subprocess.TimeoutExpired):
                worker.process.wait(KILL_S)

    def _start(self) -> None:
        process = subprocess.Popen(
            [sys.executable, "-m", "stager.worker.__main__", str(self.threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # a Ctrl-C on the terminal is for the owner alone
        )
        worker = WorkerProcess(process, self._clock.now())
        self.workers.append(worker)
        threading.Thread(target=self._listen, args=(worker,), name="listen", daemon=True).start()

    def _listen(self, worker: WorkerProcess) -> None:
        assert worker.process.stdout is not None
        with worker.process.stdout as lines:
            for line in lines:
                try:
                    message = read_by_service(line)
                except ValueError:
                    break  # a line cut off by a crash
                if isinstance(message, Logged):
                    log.log(message.level, "%s", message.event)
                elif isinstance(message, NativeTold):
                    self.native = message.native
                else:
                    self._answers.put(WorkerMessage(worker, message))
        worker.process.wait()
        self._answers.put(WorkerMessage(worker, None))


def _write(worker: WorkerProcess, message: ToWorker) -> None:
    with suppress(BrokenPipeError):  # it has just died: its listener says so, and tasks are given out again
        worker.stdin.write(line_of(message))
        worker.stdin.flush()
