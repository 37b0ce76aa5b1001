"""Counts add up, whatever order and how often reports come in."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stager.catalog import Catalog
from stager.meter import Report, Totals, absorb, split_by_epoch, stats


def report(process: str, requests: int, misses: int, length: int = 10, epoch: int | None = None) -> Report:
    reasons = {"late": misses} if misses else {}
    totals = Totals(requests, requests - misses, misses, float(misses), reasons)
    return Report("data", "session", process, length, epoch, totals)


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return Catalog(tmp_path / "catalog.db", is_new=True)


def test_a_report_that_comes_twice_counts_once(catalog: Catalog) -> None:
    for _ in range(3):
        absorb(catalog, report("p", 7, 2), 1.0)
    told = stats(catalog)["datasets"]["data"]
    assert (told["requests"], told["hits"], told["misses"]) == (7, 5, 2)
    assert told["reasons"] == {"late": 2}


def test_an_old_report_that_comes_late_takes_nothing_back(catalog: Catalog) -> None:
    absorb(catalog, report("p", 9, 2), 1.0)
    absorb(catalog, report("p", 7, 2), 1.0)
    assert stats(catalog)["datasets"]["data"]["requests"] == 9


def test_epochs_are_counted_from_the_reads_of_all_processes(catalog: Catalog) -> None:
    absorb(catalog, report("p1", 5, 5), 1.0)
    absorb(catalog, report("p2", 5, 4), 1.0)
    absorb(catalog, report("p3", 5, 0), 1.0)
    absorb(catalog, report("p4", 5, 0), 1.0)
    (session,) = stats(catalog)["sessions"]
    assert [(row["epoch"], row["requests"], row["hit_rate"]) for row in session["epochs"]] == [
        (0, 10, 0.1),
        (1, 10, 1.0),
    ]


def test_an_epoch_that_the_reader_names_is_believed(catalog: Catalog) -> None:
    absorb(catalog, report("p", 4, 4, epoch=7), 1.0)
    absorb(catalog, report("p", 12, 4, epoch=8), 1.0)
    (session,) = stats(catalog)["sessions"]
    assert [(row["epoch"], row["requests"], row["misses"]) for row in session["epochs"]] == [
        (7, 4, 4),
        (8, 8, 0),
    ]


@given(
    before=st.integers(0, 100),
    length=st.integers(1, 20),
    hits=st.integers(0, 60),
    late=st.integers(0, 30),
    new=st.integers(0, 30),
)
def test_laying_counts_over_epochs_loses_none(
    before: int, length: int, hits: int, late: int, new: int
) -> None:
    reasons = {name: count for name, count in (("late", late), ("not_planned", new)) if count}
    fresh = Totals(hits + late + new, hits, late + new, 1.5, reasons)
    parts = split_by_epoch(before, length, fresh)
    total = Totals()
    for _, part in parts:
        total = total.plus(part)
        assert part.requests == part.hits + part.misses
        assert sum(part.reasons.values()) == part.misses
        assert min(part.hits, part.misses) >= 0
    assert (total.requests, total.hits, total.misses, total.reasons) == (
        fresh.requests,
        hits,
        late + new,
        reasons,
    )
    assert total.wait_s == (1.5 if fresh.requests else 0)
    assert [epoch for epoch, _ in parts] == sorted({epoch for epoch, _ in parts})


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 30), st.integers(0, 30)), max_size=20))
def test_hits_and_misses_are_the_requests_after_any_reports(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int]]
) -> None:
    catalog = Catalog(tmp_path_factory.mktemp("c") / "catalog.db", is_new=True)
    totals: dict[str, tuple[int, int]] = {}
    for process, hits, misses in steps:
        old = totals.get(process, (0, 0))
        totals[process] = (old[0] + hits + misses, old[1] + misses)
        absorb(catalog, report(process, *totals[process]), 1.0)
    told = stats(catalog)["datasets"].get("data", {"requests": 0, "hits": 0, "misses": 0})
    assert told["requests"] == sum(requests for requests, _ in totals.values())
    assert told["hits"] + told["misses"] == told["requests"]
    assert told["misses"] == sum(misses for _, misses in totals.values())
