"""What the loop hears: one queue that workers, the disk and other threads put into."""

import queue
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Command:
    """Something another thread asks of the loop."""

    act: Callable[[], Any]
    answer: "Future[Any]"

    def refuse(self, error: Exception) -> None:
        """Tell whoever waits that it will not be done."""
        if self.answer.set_running_or_notify_cancel():
            self.answer.set_exception(error)

    def run(self) -> None:
        """Do it on the loop's thread; what it returns or raises is the answer."""
        if not self.answer.set_running_or_notify_cancel():
            return  # whoever asked has gone
        try:
            self.answer.set_result(self.act())
        except Exception as error:
            self.answer.set_exception(error)


class Events:
    """Any thread may put; the loop's thread takes, and runs commands as it comes to them."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._closed: Exception | None = None

    def put(self, event: object) -> None:
        """Any thread may: it wakes the loop."""
        self._queue.put(event)

    def call(self, act: Callable[[], T]) -> "Future[T]":
        """Have the loop do something; its answer comes with the future."""
        answer: Future[T] = Future()
        self._queue.put(Command(act, answer))
        if self._closed is not None:
            self.close(self._closed)
        return answer

    def close(self, error: Exception) -> None:
        """Nobody takes any more: whoever asks, or has asked, gets this error."""
        self._closed = error
        with suppress(queue.Empty):
            while True:
                event = self._queue.get_nowait()
                if isinstance(event, Command):
                    event.refuse(error)

    def take(self, timeout_s: float) -> Iterator[Any]:
        """What has come in, after waiting for the first of it."""
        try:
            event = self._queue.get(timeout=timeout_s)
            while True:
                if isinstance(event, Command):
                    event.run()
                else:
                    yield event
                event = self._queue.get_nowait()
        except queue.Empty:
            return


class Beside:
    """Work that takes long and touches nothing of the loop's: on a thread, one lot after the other."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._thread = ThreadPoolExecutor(1, "beside")

    def do(self, act: Callable[[], T], then: Callable[[T | Exception], None]) -> None:
        """Do it, and have the loop call `then` with what came of it, or with what it raised."""
        self._thread.submit(self._run, act, then)

    def _run(self, act: Callable[[], T], then: Callable[[T | Exception], None]) -> None:
        made: T | Exception
        try:
            made = act()
        except Exception as error:
            made = error
        self._events.call(partial(then, made))

    def stop(self) -> None:
        """Begin nothing more. What is under way is not waited for."""
        self._thread.shutdown(wait=False, cancel_futures=True)
