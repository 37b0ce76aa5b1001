"""What is given up for what: pure decisions, the same on a trace as the best there is."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stager.eviction.policy import swap, waits_for
from stager.eviction.simulation import hits_of_lru, hits_of_next_use
from stager.heat.heat import ASKED_S, HALF_LIFE_S, Heat, waits_of
from stager.reader.order import epoch_order
from stager.reader.values import Numbers
from stager.sessions.course import NEVER, Course, Uses


@given(st.lists(st.integers(0, 6), max_size=30), st.integers(0, 30))
def test_the_next_two_uses_of_every_sample_are_known(order: list[int], position: int) -> None:
    first, second = Uses(np.asarray(order, dtype=np.int64)).after(np.arange(7), position)
    for sample in range(7):
        places = [at for at, read in enumerate(order) if read == sample and at >= position]
        assert [first[sample], second[sample]] == [*places, NEVER, NEVER][:2]


@given(
    st.floats(0, 50),
    st.lists(st.floats(0, 100), max_size=8),
    st.lists(st.floats(0, 100), max_size=8),
    st.floats(1, 10),
)
def test_nothing_is_given_up_for_what_is_needed_later(
    room: float, coming: list[float], here: list[float], size: float
) -> None:
    waits_in, waits_here = np.sort(coming), np.sort(here)[::-1]
    sizes = np.full(len(here), 4.0)
    keep, victims = swap(room, waits_in, size, waits_here, sizes)
    assert keep * size <= room + victims * 4.0 or keep == 0
    if victims:
        assert waits_in[keep - 1] < waits_here[victims - 1]
        assert (keep * size - room) > (victims - 1) * 4.0  # and none more than is needed
    if keep < len(coming):  # one more would not pay
        more = int(np.ceil(((keep + 1) * size - room) / 4.0))
        assert more > len(here) or waits_in[keep] >= waits_here[max(more - 1, 0)] or more == victims


def course(job: str, order: Numbers, position: int, samples: int, is_uniform: bool = True) -> Course:
    members = np.zeros(samples, dtype=np.bool_)
    members[order] = True
    return Course(job, is_uniform, Uses(order), members.__getitem__, position, 10.0, samples / 10.0)


def test_all_samples_of_one_uniform_job_are_needed_alike_and_those_of_two_when_they_are_read() -> None:
    one, two = np.asarray([0, 1, 2, 3, 3, 2, 1, 0]), np.asarray([3, 2, 1, 0, 0, 1, 2, 3])
    nothing = np.full(4, np.inf)
    alone = waits_for(np.arange(4), [course("a", one, 2, 4)], nothing, skip=False)
    assert alone.tolist() == [0.4] * 4
    both = [course("a", one, 2, 4), course("b", two, 1, 4)]
    assert waits_for(np.arange(4), both, nothing, skip=False).tolist() == [0.2, 0.1, 0.0, 0.1]
    assert waits_for(np.arange(4), both, nothing, skip=True).tolist() == [0.3, 0.4, 0.0, 0.2]
    ranks = [course("a", one[::2], 0, 4), course("a", one[1::2], 0, 4)]
    assert len(set(waits_for(np.arange(4), ranks, nothing, skip=False).tolist())) == 1


def test_without_an_order_it_is_heat_that_counts_and_heat_cools() -> None:
    reads = Heat()
    for at in range(10):
        reads.add(np.asarray([0, 0, 1]), 1000.0 * at)
    reads.add(np.asarray([2]), 10_000.0)
    waits = waits_of(reads.of_all(10_000.0)[np.arange(5)])
    assert waits[0] < waits[1] < waits[2] < waits[3] == waits[4] == np.inf
    assert reads.of_all(10_011.0 + HALF_LIFE_S)[np.asarray([2])][0] == pytest.approx(0.5, rel=0.01)
    reads.asked(np.asarray([3, 4]), 20_000.0)
    every = np.arange(5)
    assert np.flatnonzero(reads.is_asked(every, 20_001.0)).tolist() == [3, 4]
    assert not reads.is_asked(every, 20_001.0 + ASKED_S).any()
    reads.forget(np.asarray([0, 4]))
    assert reads.of_all(50_000.0)[np.asarray([0])][0] == 0.0
    assert np.flatnonzero(reads.is_asked(every, 20_001.0)).tolist() == [3]
    assert reads.trace().tolist() == [1] * 10 + [2]


def test_a_wall_clock_that_is_set_back_by_years_neither_ends_the_loop_nor_holds_samples_for_years() -> None:
    reads, year_s = Heat(), 365 * 86_400.0
    now = 10 * year_s
    reads.add(np.asarray([0, 0]), now)
    reads.asked(np.asarray([1]), now)
    reads.of_all(now)
    now -= 5 * year_s
    reads.add(np.asarray([2]), now)
    assert reads.of_all(now)[np.arange(3)].tolist() == [2.0, 0.0, 1.0]
    assert not reads.is_asked(np.arange(3), now).any()
    reads.add(np.asarray([2]), now + HALF_LIFE_S)
    assert reads.of_all(now + HALF_LIFE_S)[np.asarray([2])][0] == pytest.approx(1.5), (
        "what is read later is of its own time"
    )


def policy_hits(trace: Numbers, orders: list[Numbers], capacity: int, samples: int) -> int:
    """Our decisions, one read at a time, by readers that take turns; each order is known two epochs ahead."""
    kept: set[int] = set()
    positions = [0] * len(orders)
    hits = 0
    for turn, sample in enumerate(trace.tolist()):
        reader = turn % len(orders)
        if sample in kept:
            hits += 1
        else:
            courses = []
            for number, order in enumerate(orders):
                epoch = positions[number] // samples
                known = order[epoch * samples : (epoch + 2) * samples]
                courses.append(
                    course(str(number), known, positions[number] - epoch * samples, samples, is_uniform=False)
                )
            here = np.asarray(sorted(kept), dtype=np.int64)
            waits = waits_for(here, courses, np.full(len(here), np.inf), skip=False)
            latest = np.argsort(-waits, kind="stable")
            coming = waits_for(np.asarray([sample]), courses, np.full(1, np.inf), skip=True)
            room = capacity - len(kept)
            keep, victims = swap(room, coming, 1.0, waits[latest], np.ones(len(here)))
            kept -= set(here[latest[:victims]].tolist())
            kept |= {sample} if keep else set()
        positions[reader] += 1
    return hits


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 1000), st.sampled_from([0.1, 0.25, 0.5]))
def test_two_jobs_with_different_seeds_come_within_two_points_of_the_optimum(seed: int, part: float) -> None:
    count, epochs = 150, 4
    orders = [
        np.concatenate([epoch_order(count, seed + job, epoch) for epoch in range(epochs)]) for job in (0, 1)
    ]
    trace = np.stack(orders, axis=1).ravel()
    capacity = int(part * count)
    ours = policy_hits(trace, orders, capacity, count) / len(trace)
    assert ours >= hits_of_next_use(trace, capacity) / len(trace) - 0.02
    assert ours > hits_of_lru(trace.tolist(), capacity) / len(trace)


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 1000), st.sampled_from([0.1, 0.25, 0.5]), st.sampled_from(["patches", "long tail"]))
def test_patches_and_a_long_tail_come_within_two_points_of_the_optimum(
    seed: int, part: float, kind: str
) -> None:
    rng = np.random.default_rng(seed)
    count, epochs = 300, 4  # with 100, a long tail is 2.8 points off for some seeds: too few reads
    if kind == "patches":  # each volume several times an epoch
        length = 3 * count
        parts = [rng.permutation(np.repeat(np.arange(count), 3)) for _ in range(epochs)]
    else:
        length = count
        weights = 1 / np.arange(1, count + 1)
        parts = [rng.choice(count, length, p=weights / weights.sum()) for _ in range(epochs)]
    trace = np.concatenate(parts)
    capacity = int(part * count)
    kept_by_us = policy_hits(trace, [trace], capacity, length) / len(trace)
    assert kept_by_us >= hits_of_next_use(trace, capacity) / len(trace) - 0.02
    assert kept_by_us > hits_of_lru(trace.tolist(), capacity) / len(trace)
