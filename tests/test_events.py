"""The loop's queue: whoever asks is answered, also when the loop has ended."""

import threading
from concurrent.futures import Future

import pytest

from stager.dispatch.events import Events
from stager.errors import NoService


def test_whoever_asks_a_loop_that_has_ended_is_told_so_and_does_not_wait() -> None:
    events, gone = Events(), NoService("stopping")
    before = events.call(lambda: 1)
    events.close(gone)
    after = events.call(lambda: 2)
    for answer in (before, after):
        with pytest.raises(NoService):
            answer.result(5)


def test_nobody_is_left_waiting_if_the_loop_ends_while_many_ask() -> None:
    events, answers = Events(), list[Future[int]]()
    asking = threading.Thread(target=lambda: answers.extend(events.call(lambda: 3) for _ in range(20_000)))
    asking.start()
    for _ in range(50):
        list(events.take(0.0))
    events.close(NoService("stopping"))
    asking.join()
    assert len(answers) == 20_000
    assert all(answer.done() for answer in answers)
