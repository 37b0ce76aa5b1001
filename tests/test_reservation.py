"""Bytes that are reserved: for the disk and for memory alike, they end once."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from stager.cache.budget import Books, Reservation
from stager.cache.cache import Cache
from stager.dispatch.memory_shards import Transients
from stager.sessions.session import Sessions
from test_cache import KEYS, config_of, scan

Taken = tuple[Books, Reservation]


@pytest.fixture(params=["disk", "memory"])
def taken(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Taken]:
    cache = Cache(config_of(tmp_path))
    transients = Transients(cache, Sessions(cache.clock))
    dataset = scan(cache, KEYS)
    if request.param == "disk":
        yield cache.budget, cache.budget.take(1000)
    else:
        yield transients, transients.take(1000, dataset, np.asarray([1, 2]))
    transients.close()
    cache.close()


def test_what_is_taken_is_reserved_and_not_used(taken: Taken) -> None:
    books, _ = taken
    assert (books.reserved_bytes, books.used_bytes) == (1000, 0)


def test_what_is_charged_is_used_as_it_was_written(taken: Taken) -> None:
    books, reservation = taken
    reservation.charge(700)
    assert (books.reserved_bytes, books.used_bytes) == (0, 700)


def test_what_is_released_leaves_nothing(taken: Taken) -> None:
    books, reservation = taken
    reservation.release()
    assert (books.reserved_bytes, books.used_bytes) == (0, 0)


@pytest.mark.parametrize("again", [Reservation.release, lambda reservation: reservation.charge(700)])
def test_a_reservation_that_has_ended_does_not_end_again(
    taken: Taken, again: Callable[[Reservation], None]
) -> None:
    books, reservation = taken
    reservation.charge(700)
    with pytest.raises(AssertionError, match="ends once"):
        again(reservation)
    assert (books.reserved_bytes, books.used_bytes) == (0, 700)
