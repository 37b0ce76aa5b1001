"""Work done ahead comes in order, and ends when nobody wants it any more."""

import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pytest

from stager_client.batches.ahead import Ahead, Stopped

THREADS = 3


def ahead_of(work: Callable[[int], object]) -> Ahead[int, object]:
    return Ahead(partial(map, work), THREADS, threading.Event())


def threads_of_ours() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("stager-batch")]


def test_what_is_made_comes_in_order_whatever_takes_longer() -> None:
    ahead = ahead_of(lambda number: time.sleep(0.001 * (number * 7 % 5)) or number)
    for number in range(40):
        ahead.put([number])
    assert len(ahead) == 40
    assert [ahead.take() for _ in range(40)] == list(range(40))
    ahead.close()


def test_an_error_of_the_work_is_raised_where_its_turn_is_and_the_others_come() -> None:
    ahead = ahead_of(lambda number: 1 / number)
    for number in (1, 0, 2):
        ahead.put([number])
    assert ahead.take() == 1
    with pytest.raises(ZeroDivisionError):
        ahead.take()
    assert ahead.take() == 0.5
    ahead.close()


def test_what_is_put_together_can_be_taken_one_by_one_and_behind_an_error_nothing_comes() -> None:
    may_go = threading.Event()

    def work(numbers: Sequence[int]) -> Iterator[float]:
        for number in numbers:
            yield 1 / number
            may_go.wait(10)

    ahead: Ahead[int, float] = Ahead(work, THREADS, threading.Event())
    ahead.put([1, 2, 0, 4])
    ahead.put([5])
    assert ahead.take() == 1  # the next one is not made yet
    may_go.set()
    assert ahead.take() == 0.5
    with pytest.raises(ZeroDivisionError):
        ahead.take()
    with pytest.raises(Stopped):
        ahead.take()
    assert ahead.take() == 0.2
    ahead.close()


def test_closed_it_begins_nothing_more_its_threads_end_and_who_takes_is_told() -> None:
    begun, may_go, others = [], threading.Event(), threads_of_ours()

    def work(number: int) -> None:
        begun.append(number)
        may_go.wait()

    ahead = ahead_of(work)
    for number in range(10):
        ahead.put([number])
    while len(begun) < THREADS:
        time.sleep(0.001)
    ours = [thread for thread in threads_of_ours() if thread not in others]
    ahead.close()
    may_go.set()
    for _ in range(10):
        with pytest.raises(Stopped):
            ahead.take()
    for thread in ours:
        thread.join(10)
        assert not thread.is_alive()
    assert sorted(begun) == list(range(THREADS))
    ahead.put([11])
    with pytest.raises(Stopped):
        ahead.take()


def test_nothing_that_was_taken_is_held() -> None:
    class Thing:
        pass

    ahead = ahead_of(lambda _: Thing())
    for number in range(5):
        ahead.put([number])
    things = [weakref.ref(ahead.take()) for _ in range(5)]
    deadline = time.monotonic() + 10  # a thread lets go a moment after it has told
    while any(thing() is not None for thing in things) and time.monotonic() < deadline:
        time.sleep(0.001)
    assert [thing() for thing in things] == [None] * 5
    ahead.close()


def test_a_process_that_ends_waits_for_none_that_was_left_open() -> None:
    program = """
import threading
from stager_client.batches.ahead import Ahead
stopped = threading.Event()
ahead = Ahead(lambda tasks: (stopped.wait() for _ in tasks), 2, stopped)
for number in range(5):
    ahead.put([number])
print("left")
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "left\n"
    assert done.stderr == ""
