"""Work that threads do ahead of whoever takes it, in order. A pool of futures costs three times as much."""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

Task = TypeVar("Task")
Made = TypeVar("Made")
Work = Callable[[Sequence[Task]], Iterator[Made]]  # what is made of tasks, one after the other


class Stopped(Exception):
    """Nothing more comes: it was closed, or the process ends."""


class Ahead(Generic[Task, Made]):
    """Tasks that were put, and what came of them. One thread puts and takes.

    Tasks that are put together are done by one thread, and each can be taken once it is done. `stopped` tells
    the work that nobody waits for it any more.
    """

    def __init__(self, work: Work[Task, Made], threads: int, stopped: threading.Event) -> None:
        self._tasks: SimpleQueue[list[_Slot[Task, Made]] | None] = SimpleQueue()
        self._slots: deque[_Slot[Task, Made]] = deque()
        self._threads, self._stopped = threads, stopped
        _open.add(self)
        if _ending.is_set():
            self.close()
            return
        for number in range(threads):
            threading.Thread(target=_run, args=(work, self._tasks), name=f"stager-batch_{number}").start()

    def __len__(self) -> int:
        """So many were put and not taken."""
        return len(self._slots)

    def put(self, tasks: Sequence[Task]) -> None:
        slots: list[_Slot[Task, Made]] = [_Slot(task) for task in tasks]
        self._slots.extend(slots)
        self._tasks.put(slots)
        if self._stopped.is_set():  # nobody may be there to take it
            self.close()

    def take(self) -> Made:
        """What came of the oldest task, once it is done. Raise what its work raised, or Stopped."""
        slot = self._slots.popleft()
        slot.is_done.acquire()
        if slot.error is not None:
            raise slot.error
        if self._stopped.is_set():
            raise Stopped  # what was made then may not be whole
        return slot.made

    def close(self) -> None:
        """Nothing more is begun. What is under way goes on to its end, and nobody waits for it."""
        self._stopped.set()
        _open.discard(self)
        with suppress(Empty):
            while True:
                for slot in self._tasks.get_nowait() or ():
                    slot.error = Stopped()
                    slot.is_done.release()
        for _ in range(self._threads):
            self._tasks.put(None)


class _Slot(Generic[Task, Made]):
    """A task, and what comes of it."""

    __slots__ = ("error", "is_done", "made", "task")
    made: Made

    def __init__(self, task: Task) -> None:
        self.task = task
        self.error: BaseException | None = None
        self.is_done = threading.Lock()
        self.is_done.acquire()


def _run(work: Work[Task, Made], tasks: "SimpleQueue[list[_Slot[Task, Made]] | None]") -> None:
    while (slots := tasks.get()) is not None:
        made = work([slot.task for slot in slots])
        while slots:
            _fill(slots.pop(0), made)
        del made  # a batch that is held is never free again


def _fill(slot: _Slot[Task, Made], made: Iterator[Made]) -> None:
    try:
        slot.made = next(made)
    except StopIteration:
        slot.error = Stopped()  # the error was of one before
    except BaseException as error:
        slot.error = error
    slot.is_done.release()


_open: set[Ahead[Any, Any]] = set()
_ending = threading.Event()


def _end_all() -> None:
    """Threads that wait, for samples or for work, are not to keep a process that ends."""
    _ending.set()
    for ahead in list(_open):
        ahead.close()


# Python joins threads before it calls what is in atexit: this is the way of concurrent.futures.
threading._register_atexit(_end_all)  # type: ignore[attr-defined]
