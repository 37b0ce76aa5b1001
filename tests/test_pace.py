"""How many requests are in flight: found by trying, given up when the source is busy, never exceeded."""

import threading
from collections.abc import Iterator
from queue import SimpleQueue

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts import read
from stager.errors import ObjectBusy, SampleError, SourceBusy
from stager.interfaces import Fetched, Scanning
from stager.reader.values import ObjectInfo, Part
from stager.sources.pace import CUT_EVERY_S, GROWTH, MOST, REST_S, START, Pace, PacedSource
from stager.sources.threads import ThreadedSource

INFO = ObjectInfo("a", 1, "v")


def run(pace: Pace, latency_s: float, rate_max: float, seconds: float, now_s: float = 0.0) -> float:
    """A source that answers each request after a time, and no more than so many a second."""
    end_s = now_s + seconds
    while now_s < end_s:
        now_s += 1 / min(pace.limit / latency_s, rate_max)
        pace.answered(now_s, is_full=True)
    return now_s


@given(st.floats(0.001, 0.3), st.floats(100, 20_000))
def test_it_finds_what_a_source_can_give_and_stops_there(latency_s: float, rate_max: float) -> None:
    pace = Pace(0.0)
    run(pace, latency_s, rate_max, seconds=8.0)
    best = min(MOST / latency_s, rate_max)
    assert min(pace.limit / latency_s, rate_max) >= best / 1.31
    assert pace.limit <= max(START * GROWTH + 1, rate_max * latency_s * GROWTH**2 + 2, 3)


def test_what_is_slow_by_latency_gets_all_there_is() -> None:
    pace = Pace(0.0)
    run(pace, latency_s=0.03, rate_max=1e9, seconds=3.0)
    assert pace.limit == MOST


def test_without_more_to_ask_for_it_does_not_grow() -> None:
    pace = Pace(0.0)
    for number in range(10_000):
        pace.answered(number / 1000, is_full=number % START != 0)
    assert pace.limit == START


def test_all_refusals_of_one_moment_halve_it_once_and_it_comes_back_after_a_rest() -> None:
    pace = Pace(0.0)
    for _ in range(START):
        pace.refused(1.0)
    assert pace.limit == START // 2
    pace.refused(1.0 + CUT_EVERY_S)
    assert pace.limit == START // 4
    now_s = run(pace, 0.03, 1e9, seconds=REST_S - CUT_EVERY_S, now_s=2.0)
    assert pace.limit == START // 4
    run(pace, 0.03, 1e9, seconds=5.0, now_s=now_s)
    assert pace.limit == MOST


@given(st.lists(st.tuples(st.sampled_from("anr"), st.floats(0, 2)), max_size=400))
def test_whatever_happens_it_stays_within_bounds(events: list[tuple[str, float]]) -> None:
    pace, now_s = Pace(0.0), 0.0
    for kind, wait_s in events:
        now_s += wait_s
        pace.refused(now_s) if kind == "r" else pace.answered(now_s, is_full=kind == "a")
        assert 1 <= pace.limit <= MOST


class Counting:
    """A source that counts who is in it, and fails as it is told."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.inside, self.most = error, 0, 0
        self.lock, self.all_in = threading.Lock(), threading.Event()

    def scan(self, scanning: Scanning | None = None) -> Iterator[ObjectInfo]:
        return iter([INFO])

    def read(self, part: Part) -> memoryview:
        with self.lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
            if self.inside == START:
                self.all_in.set()
        self.all_in.wait(60)
        with self.lock:
            self.inside -= 1
        if self.error is not None:
            raise self.error
        return memoryview(b"x")


def test_no_more_than_the_limit_are_in_flight_and_all_are_answered() -> None:
    inner = Counting()
    source = PacedSource(ThreadedSource(inner), clock=lambda: 0.0)
    answers: SimpleQueue[Fetched] = SimpleQueue()
    for _ in range(200):
        source.start(Part(INFO), answers.put)
    assert [bytes(answers.get(timeout=60)) for _ in range(200)] == [b"x"] * 200  # type: ignore[arg-type]
    assert inner.most == START


def test_a_source_that_blocks_has_no_more_threads_than_reads_under_way() -> None:
    inner = Counting()
    source = ThreadedSource(inner, threads=START)
    before = threading.active_count()
    answers: SimpleQueue[Fetched] = SimpleQueue()
    for _ in range(3 * START):
        source.start(Part(INFO), answers.put)
    for _ in range(3 * START):
        answers.get(timeout=60)
    assert inner.most == START
    assert threading.active_count() - before <= START + 1  # and one that watches them
    one = ThreadedSource(inner)
    before = threading.active_count()
    for _ in range(20):
        read(one, Part(INFO))
    assert threading.active_count() - before <= 2


@pytest.mark.parametrize(
    ("error", "limit"),
    [
        (SourceBusy("slow down"), START // 2),
        (ObjectBusy("a: damaged"), START),
        (SampleError("missing", "a"), START),
    ],
)
def test_only_a_busy_source_slows_it_down_and_errors_come_through(error: Exception, limit: int) -> None:
    inner = Counting(error)
    inner.all_in.set()
    source = PacedSource(ThreadedSource(inner))
    with pytest.raises(type(error)):
        read(source, Part(INFO))
    assert source.pace.limit == limit
    assert list(source.scan()) == [INFO]
