"""One model of the rate: what the plan, the ready line and the bar say, and what a machine learns."""

import subprocess
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from making import image_folder
from running import Place
from sets import table
from stager.catalog.catalog import Catalog
from stager.jobs.crowd import LOOK_S, Crowd, Looker, crowding, runnable
from stager.jobs.job import Job, Request
from stager.jobs.plan import NOTHING_TO_DO, Estimate, Plan, best_of, make_plan
from stager.jobs.rate import (
    LEARNED_FROM,
    SLOWDOWN,
    SLOWDOWNS,
    START_S,
    Best,
    learned,
    rate_now,
    seconds_of_job,
)
from stager.jobs.start_time import ready_in
from stager.reader.record import DatasetSpec
from stager.reader.samples.subset import Subset
from stager.reader.values import SourceSpec
from stager.worker.build import _cost
from stager.worker.messages import Built

RATES = st.floats(0.1, 1e6)


@dataclass
class Stopped:
    """A clock that a test moves on."""

    at: float = 1000.0

    def now(self) -> float:
        return self.at

    def wall(self) -> float:
        return self.at


@given(RATES, RATES, st.floats(0, 1e6))
def test_a_rate_lies_between_what_was_planned_and_what_was_seen(
    planned: float, seen: float, staging_s: float
) -> None:
    rate = rate_now(int(seen * staging_s), staging_s, planned)
    assert min(planned, seen) * 0.99 - 1 <= rate <= max(planned, seen) * 1.01


def test_a_rate_ends_as_what_was_seen() -> None:
    assert rate_now(100 * 3600, 3600.0, 5000.0) == pytest.approx(100, rel=0.05)


@given(st.integers(0, 10**9), st.floats(0, 0.001))
def test_a_job_that_goes_on_after_a_start_shows_no_million_a_second(done: int, staging_s: float) -> None:
    assert rate_now(done, staging_s, 0.0) == 0.0


def job_at_100_s() -> Job:
    """It begins to stage 10,000 samples in 100 s; of others, a million have failed before."""
    plan = Plan(10_000, 1, 1, Estimate(1, 1, 1), Estimate(100.0, 60.0, 170.0), True)
    job = Job(1, Request(DatasetSpec("pets", SourceSpec("/pets"), "folder", {}), Subset(), "auto"), "staging")
    job.wanted, job.failed, job.staged = 1_010_032, 1_000_000, 32
    job.begin_staging(plan, 100.0)
    return job


def test_what_had_failed_or_was_staged_for_the_plan_is_no_part_of_a_rate() -> None:
    job = job_at_100_s()
    assert (job.to_json(100.0)["rate"], job.to_json(100.0)["eta_s"]) == (100.0, 100.0)
    job.staged += 1000
    assert job.to_json(110.0)["rate"] == pytest.approx(100.0)


def test_a_job_that_is_over_tells_how_fast_it_was_and_no_plan() -> None:
    job = job_at_100_s()
    job.staged += 10_000
    job.state, job.ended_at = "done", 120.0
    assert job.to_json(500.0)["rate"] == pytest.approx(500.0)
    assert job.to_json(500.0)["eta_s"] is None
    job.staged, job.ended_at = 33, 100.0
    assert job.to_json(500.0)["rate"] <= 10


SECONDS = st.floats(0.01, 1e5)


@given(SECONDS, SECONDS, SECONDS, st.one_of(st.none(), st.floats(*SLOWDOWNS)), st.floats(1, 20))
def test_what_is_learned_stays_within_bounds_and_leads_to_what_was_seen(
    fetching_s: float, preparing_s: float, took_s: float, before: float | None, crowded: float
) -> None:
    best, slowdown = Best(fetching_s, preparing_s), before
    for _ in range(20):
        slowdown = learned(slowdown, LEARNED_FROM, best, took_s, crowded)
    assert slowdown is not None
    assert SLOWDOWNS[0] <= slowdown <= SLOWDOWNS[1]
    if SLOWDOWNS[0] <= (took_s - START_S) / best.seconds(crowded) <= SLOWDOWNS[1]:
        assert seconds_of_job(best, slowdown, crowded) == pytest.approx(took_s, rel=0.01)


def test_what_a_crowded_machine_taught_holds_on_one_that_is_idle() -> None:
    best = Best(0.0, 10.0)
    slowdown = learned(None, LEARNED_FROM, best, took_s=48.0 + START_S, crowding=4.0)
    assert slowdown == pytest.approx(1.2)
    assert seconds_of_job(best, slowdown or 0.0) == pytest.approx(12.0 + START_S)


def test_cores_that_others_want_are_shared_and_a_source_is_as_fast_as_before() -> None:
    assert crowding(0, ours=3, cores=2) == 1
    assert crowding(3, ours=3, cores=2) == 2
    assert crowding(1, ours=3, cores=8) == 1  # there are cores for all
    assert crowding(13, ours=3, cores=8) == 2
    assert Best(fetching_s=10.0, preparing_s=1.0).seconds(4.0) == 10.0


def test_others_are_those_in_the_mean_of_all_looks_less_our_own_threads() -> None:
    crowd = Crowd()
    assert crowd.others(2) == 0.0
    for threads in (2, 2, 8):
        crowd.saw(threads)
    assert crowd.others(2) == 2.0
    assert crowd.others(5) == 0.0


def test_the_kernel_tells_who_wants_the_cores() -> None:
    assert runnable() >= 1
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
        try:
            time.sleep(0.2)
            assert min(runnable() for _ in range(20)) >= 1
            assert max(runnable() for _ in range(20)) >= 2
        finally:
            other.kill()


def test_a_job_looks_at_the_cores_now_and_then_and_anew_when_it_stages() -> None:
    clock = Stopped()
    looker = Looker(clock, lambda: 5)
    assert [looker.look(), looker.look()] == [5, None]
    clock.at += LOOK_S
    assert looker.look() == 5
    job = job_at_100_s()
    job.crowd.saw(7)
    job.begin_staging(NOTHING_TO_DO, 101.0)
    assert job.crowd.looks == 0


def test_a_small_job_teaches_nothing() -> None:
    assert learned(2.0, LEARNED_FROM - 1, Best(1.0), 100.0) == 2.0
    assert learned(None, LEARNED_FROM - 1, Best(1.0), 100.0) is None


def test_one_large_sample_among_the_few_does_not_move_the_price_of_the_others() -> None:
    of_most, large = (0.001, 100_000), (0.007, 700_000)
    stalled = (0.030, 100_000)  # it met with memory that was never used before
    assert _cost([of_most] * 23 + [large])[1] == pytest.approx(1e-8)
    assert _cost([of_most] * 23 + [stalled])[1] == pytest.approx(1e-8)
    built = Built(
        samples=list(range(32)), failed=[], size_bytes=32, size_squares=32, read_bytes=32, reads=32,
        fetch_s=0.0, prepare_s=99.0, byte_s=1e-8,
    )  # fmt: skip
    best = best_of(1000, 110_000_000, built, workers=1, threads=3)
    assert best.preparing_s == pytest.approx(0.55)


def test_samples_that_share_an_object_cost_by_the_mean() -> None:
    assert _cost([(0.001, 0), (0.003, 0)]) == (pytest.approx(0.002), 0.0)


def test_the_plan_and_the_ready_line_agree_before_the_first_sample() -> None:
    built = Built(
        samples=list(range(32)), failed=[], size_bytes=32, size_squares=32, read_bytes=32, reads=32,
        fetch_s=0.01, prepare_s=0.02, byte_s=0.0,
    )  # fmt: skip
    plan = make_plan(
        built,
        samples=5000,
        cost=(1, 1),
        row_bytes=1,
        room_bytes=10**9,
        workers=1,
        threads=3,
        slowdown=SLOWDOWN,
    )
    rate = rate_now(0, 0.0, plan.rate)
    assert ready_in(5000, rate, 5000, None) == pytest.approx(plan.seconds.estimate)
    assert plan.seconds.low < plan.seconds.estimate < plan.seconds.high


def test_a_machine_learns_from_a_job_what_the_next_one_takes(tmp_path: Path) -> None:
    place = Place(tmp_path)
    image_folder(tmp_path / "source", 2, LEARNED_FROM // 2 + 20)
    place.configure(table("pets", tmp_path / "source"))

    def slowdown_of_the_machine() -> float | None:
        with closing(Catalog(tmp_path / "cache/catalog.db")) as catalog:
            return catalog.slowdown()

    place.json("prefetch", "pets", "--plan")
    assert slowdown_of_the_machine() is None  # a plan alone stages nothing, in no time
    place.json("prefetch", "pets")
    slowdown = slowdown_of_the_machine()
    assert slowdown is not None
    assert SLOWDOWNS[0] <= slowdown <= SLOWDOWNS[1]
