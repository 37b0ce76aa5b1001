"""The owner's side of its worker processes: start, send, listen, give up."""

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Final, Protocol

from stager import recipes
from stager.clock import Clock
from stager.config import TASKS_PER_WORKER, THREADS_PER_WORKER
from stager.dispatch.events import Events
from stager.dispatch.places import HERE
from stager.lines import line_of
from stager.reader.record import DatasetSpec
from stager.worker.messages import (
    BACKGROUND,
    Answer,
    Logged,
    NativeTold,
    OpenSource,
    SetLimits,
    Task,
    ToWorker,
    read_by_service,
)

log = logging.getLogger("stager.dispatch.pool")

STARVED_LOOK_S: Final = 2.0
STARVED: Final = 0.5  # of that time, by one thread at least
KILL_S: Final = 2.0  # killed workers that are still there by then hang in their source, and write nothing
LEFT_MOST: Final = 3  # killed workers of a place that are still there: it gets no other one meanwhile


@dataclass(slots=True)
class WorkerProcess:
    """One worker process and the tasks it has.

    `place`: whose sources it reads (`dispatch.places`). `is_urgent`: it is for what readers wait for.
    """

    process: "subprocess.Popen[str]"
    heard_at: float
    place: str = HERE
    tasks: set[int] = field(default_factory=set)
    is_urgent: bool = True
    looked: tuple[float, float] | None = None  # when, and how long its threads had waited for a core by then

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

    size: int  # processes for what readers wait for, and as many for all else
    threads: int  # of each, that prepare
    workers: list[WorkerProcess]
    native: str  # which way samples are prepared

    def start(self, specs: Iterable[DatasetSpec]) -> None: ...

    def free_slots(self, place: str, is_urgent: bool) -> int:
        """How many more tasks of this kind, for sources of a place, could be sent now."""

    def send(self, task: Task, place: str) -> None:
        """Have a task done by a worker of a place. A `WorkerMessage` among the loop's events answers it."""

    def limit(self, limits: SetLimits) -> None:
        """Have all workers keep within these limits from now on."""

    def is_starved(self, worker: WorkerProcess) -> bool:
        """Whether a worker says nothing because others have the cores, or that is not known yet."""

    def drop(self, worker: WorkerProcess) -> None:
        """Do without a worker from now on."""

    def stop(self) -> None: ...


class WorkerPool:
    """As many processes as the cores want, for each place and kind: what readers wait for, and all else.

    The others run only when nobody else wants a core, and that cannot be taken back: see worker/priority.py.
    They start with the first task of their place and kind; answers arrive on a queue.
    """

    def __init__(self, answers: Events, clock: Clock, gives_way: bool = True) -> None:
        """`gives_way`: with what nobody waits for. A command has somebody who waits for it."""
        cores = len(os.sched_getaffinity(0))
        self.size = max(1, round(cores / THREADS_PER_WORKER))
        self.threads = -(-cores // self.size) + 1  # one waits for Python's lock as a rule, or for the disk
        self.workers: list[WorkerProcess] = []
        self._left: list[WorkerProcess] = []  # killed, and perhaps not dead
        self._limits: SetLimits | None = None
        self._answers, self._clock, self._gives_way = answers, clock, gives_way
        self.native = recipes.describe()  # which way samples are prepared: once a worker runs, what it says

    def start(self, specs: Iterable[DatasetSpec]) -> None:
        """Start all processes HERE now, with these sources open: the first reader need not wait for them."""
        for is_urgent in (True, False):
            while len(self._of(HERE, is_urgent)) < self.size:
                self._start(HERE, is_urgent)
        for worker in self.workers:
            for spec in specs:
                _write(worker, OpenSource(spec))

    def free_slots(self, place: str, is_urgent: bool) -> int:
        """How many more tasks of this kind, for sources of a place, could be sent now."""
        if self._left:
            self._left = [worker for worker in self._left if worker.process.poll() is None]
            if sum(worker.place == place for worker in self._left) >= LEFT_MOST:
                return 0
        return self.size * TASKS_PER_WORKER - sum(len(worker.tasks) for worker in self._of(place, is_urgent))

    def _of(self, place: str, is_urgent: bool) -> list[WorkerProcess]:
        return [worker for worker in self.workers if (worker.place, worker.is_urgent) == (place, is_urgent)]

    def send(self, task: Task, place: str) -> None:
        """Give a task to the least busy worker of its place and kind."""
        if len(self._of(place, task.is_urgent)) < self.size:
            self._start(place, task.is_urgent)
        worker = min(self._of(place, task.is_urgent), key=lambda worker: len(worker.tasks))
        if not worker.tasks:
            worker.heard_at = self._clock.now()
        worker.tasks.add(task.task)
        _write(worker, task)

    def limit(self, limits: SetLimits) -> None:
        """Tell all workers, also those to come. What readers wait for may use all cores."""
        self._limits = limits
        for worker in self.workers:
            self._tell_limits(worker, limits)

    def _tell_limits(self, worker: WorkerProcess, limits: SetLimits) -> None:
        _write(worker, replace(limits, cores=None) if worker.is_urgent else limits)

    def is_starved(self, worker: WorkerProcess) -> bool:
        """Whether a worker says nothing because others have the cores. One that hangs waits for none."""
        if worker.is_urgent:
            return False
        now, waited_s = self._clock.now(), _waited_for_cores_s(worker.process.pid)
        if worker.looked is None:
            worker.looked = now, waited_s
        since, before_s = worker.looked
        if now - since < STARVED_LOOK_S:
            return True
        worker.looked = None
        is_starved = waited_s - before_s >= STARVED * (now - since)
        if is_starved:
            worker.heard_at = now
        return is_starved

    def drop(self, worker: WorkerProcess) -> None:
        """Kill a worker and forget it. It is not waited for: on a hung mount it cannot even die."""
        worker.process.kill()
        with suppress(OSError):
            worker.stdin.close()
        if worker in self.workers:
            self.workers.remove(worker)
            self._left.append(worker)

    def stop(self) -> None:
        """Kill all, and see them gone: what they had under way can be removed now."""
        for worker in list(self.workers):
            self.drop(worker)
        deadline = self._clock.now() + KILL_S
        for worker in self._left:
            with suppress(subprocess.TimeoutExpired):
                worker.process.wait(max(deadline - self._clock.now(), 0))

    def _start(self, place: str, is_urgent: bool) -> None:
        kind = (BACKGROUND,) if self._gives_way and not is_urgent else ()
        process = subprocess.Popen(
            [sys.executable, "-m", "stager.worker.__main__", str(self.threads), *kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # a Ctrl-C on the terminal is for the owner alone
        )
        worker = WorkerProcess(process, self._clock.now(), place, is_urgent=is_urgent)
        self.workers.append(worker)
        if self._limits is not None:
            self._tell_limits(worker, self._limits)
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


def _waited_for_cores_s(pid: int) -> float:
    """How long the threads of a process have waited for a core, all in all."""
    waited = 0.0
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with suppress(OSError, ValueError, IndexError):  # a thread may have ended since
            waited += int(path.read_text().split()[1]) / 1e9
    return waited


def _write(worker: WorkerProcess, message: ToWorker) -> None:
    with suppress(BrokenPipeError):  # it has just died: its listener says so, and tasks are given out again
        worker.stdin.write(line_of(message))
        worker.stdin.flush()
