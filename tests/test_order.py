"""Orders: complete, shuffled, the same everywhere, and whole again after a change of world size."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stager.errors import UsageError
from stager.reader.order import epoch_order, rank_order


@given(count=st.integers(0, 500), seed=st.integers(0, 2**64 - 1), epoch=st.integers(0, 10_000))
def test_an_epoch_has_every_sample_once(count: int, seed: int, epoch: int) -> None:
    assert sorted(epoch_order(count, seed, epoch).tolist()) == list(range(count))


def test_the_order_of_a_seed_never_changes() -> None:
    assert epoch_order(12, 42, 3).tolist() == GOLDEN


GOLDEN = [4, 9, 10, 0, 6, 11, 8, 1, 2, 7, 5, 3]


def test_other_seeds_and_epochs_give_other_orders() -> None:
    orders = {tuple(epoch_order(100, seed, epoch)) for seed in range(10) for epoch in range(10)}
    assert len(orders) == 100


def test_every_sample_is_as_likely_in_every_place() -> None:
    places = np.zeros((10, 10), dtype=int)
    for seed in range(40):
        for epoch in range(100):
            places[np.arange(10), epoch_order(10, seed, epoch)] += 1
    expected = 400.0
    assert (
        (places - expected) ** 2 / expected
    ).sum() < 140  # chi-square, 81 degrees: mean 81, deviation 12.7


def test_neighbours_are_not_neighbours_in_the_next_epoch() -> None:
    first, second = epoch_order(20_000, 1, 0), epoch_order(20_000, 1, 1)
    place = np.empty_like(second)
    place[second] = np.arange(len(second))
    assert abs(np.corrcoef(np.argsort(first), place)[0, 1]) < 0.03
    assert (np.abs(np.diff(place[first])) == 1).mean() < 0.001


@settings(max_examples=200)
@given(
    count=st.integers(1, 200),
    worlds=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 6)), max_size=5),
    batch=st.integers(1, 7),
)
def test_stopping_anywhere_and_going_on_with_other_ranks_reads_the_same_sequence(
    count: int, worlds: list[tuple[int, int]], batch: int
) -> None:
    order = epoch_order(count, 7, 2)
    read: list[int] = []
    start = 0
    for world_size, steps in [*worlds, (1, count)]:
        parts = [rank_order(order, start, rank, world_size, drop_last=False) for rank in range(world_size)]
        assert len({len(part) for part in parts}) == 1
        together = np.stack(parts, axis=1).reshape(-1)[: steps * batch * world_size]
        together = together[: count - start]  # the rest is what fills up the last round
        read += together.tolist()
        start += len(together)
    assert read == order.tolist()


def test_without_the_last_uneven_round_no_sample_comes_twice() -> None:
    order = epoch_order(10, 0, 0)
    parts = [rank_order(order, 0, rank, 4, drop_last=True) for rank in range(4)]
    assert sorted(np.concatenate(parts).tolist()) == sorted(order[:8].tolist())
    parts = [rank_order(order, 0, rank, 4, drop_last=False) for rank in range(4)]
    assert sorted(np.concatenate(parts).tolist()) == sorted([*range(10), *order[:2].tolist()])


def test_more_ranks_than_samples_is_no_problem() -> None:
    order = epoch_order(2, 0, 0)
    assert [len(rank_order(order, 0, rank, 5, drop_last=False)) for rank in range(5)] == [1] * 5
    assert [len(rank_order(order, 0, rank, 5, drop_last=True)) for rank in range(5)] == [0] * 5
    with pytest.raises(UsageError):
        rank_order(order, 0, 5, 5, drop_last=False)
