"""Policies over a trace: what each keeps, and that none beats the optimum."""

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from running import Place
from stager.eviction.simulation import NEVER, hits_of_lru, hits_of_never_evict, hits_of_next_use, next_uses
from stager.reader.order import epoch_order


def best_possible(trace: list[int], capacity: int) -> int:
    """The most hits any policy can have, by trying all of them."""
    states = {frozenset[int](): 0}
    for sample in trace:
        after: dict[frozenset[int], int] = {}
        for kept, hits in states.items():
            now = hits + (sample in kept)
            have = kept | {sample}
            for size in range(min(capacity, len(have)) + 1):
                for chosen in combinations(have, size):
                    key = frozenset(chosen)
                    after[key] = max(after.get(key, 0), now)
        states = after
    return max(states.values())


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 4), max_size=9), st.integers(0, 3))
def test_next_use_is_the_best_there_is(trace: list[int], capacity: int) -> None:
    assert hits_of_next_use(np.asarray(trace, dtype=np.int64), capacity) == best_possible(trace, capacity)


@given(st.lists(st.integers(0, 20), max_size=200), st.integers(0, 21))
def test_no_policy_beats_the_optimum_and_a_cache_for_all_misses_each_once(
    trace: list[int], capacity: int
) -> None:
    numbers = np.asarray(trace, dtype=np.int64)
    optimum = hits_of_next_use(numbers, capacity)
    assert hits_of_lru(trace, capacity) <= optimum
    assert hits_of_never_evict(trace, capacity) <= optimum
    assert hits_of_next_use(numbers, 21) == len(trace) - len(set(trace))


def test_the_next_use_of_each_read_is_known() -> None:
    assert next_uses(np.asarray([3, 1, 3, 3])).tolist() == [2, NEVER, 3, NEVER]


@pytest.mark.parametrize("part", [0.1, 0.25, 0.5, 0.75, 0.9])
def test_for_one_uniform_job_never_evicting_is_the_optimum_and_lru_is_far_from_it(part: float) -> None:
    count, epochs = 1000, 5
    trace = np.concatenate([epoch_order(count, 1, epoch) for epoch in range(epochs)])
    capacity = int(part * count)
    never = hits_of_never_evict(trace.tolist(), capacity)
    assert never == hits_of_next_use(trace, capacity) == capacity * (epochs - 1)
    assert hits_of_lru(trace.tolist(), capacity) < 0.85 * never


def test_for_two_jobs_the_known_orders_are_worth_more_than_keeping() -> None:
    orders = [np.concatenate([epoch_order(1000, seed, epoch) for epoch in range(5)]) for seed in (1, 2)]
    trace = np.stack(orders, axis=1).reshape(-1)
    assert hits_of_next_use(trace, 250) > 1.6 * hits_of_never_evict(trace.tolist(), 250)


def test_simulate_tells_the_hit_rates_of_a_trace(tmp_path: Path) -> None:
    trace = np.concatenate([epoch_order(100, 1, epoch) for epoch in range(3)])
    (tmp_path / "trace").write_text("\n".join(map(str, trace)))
    place = Place(tmp_path).configure("")
    rows = place.json("simulate", str(tmp_path / "trace"))
    assert [row["capacity"] for row in rows] == [10, 25, 50, 75, 90, 100]
    assert all(row["lru"] <= row["optimum"] == row["never_evict"] for row in rows)
    assert rows[-1]["lru"] == pytest.approx(2 / 3)
    (tmp_path / "wrong").write_text("one two")
    assert place.run("simulate", str(tmp_path / "wrong")).returncode == 2
    assert "optimum" in place.run("simulate", str(tmp_path / "trace")).stdout
