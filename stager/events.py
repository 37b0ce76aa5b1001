"""What the loop hears: one queue that workers, the disk and other threads put into."""

import queue
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Command:
    """Something another thread asks of the loop."""

    act: Callable[[], Any]
    answer: "Future[Any]"

    def refuse(self, error: Exception) -> None:
        if self.answer.set_running_or_notify_cancel():
            self.answer.set_exception(error)

    def run(self) -> None:
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
