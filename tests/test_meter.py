"""Counts add up, whatever order and how often reports come in."""

import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stager.catalog.catalog import Catalog
from stager.catalog.counts import COUNTS_KEPT, PRUNE_EVERY
from stager.owner.meter import EPOCHS_A_REPORT_MAX, Report, Totals, absorb, reader_rate, split_by_epoch, stats


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


def test_one_report_adds_a_few_epochs_whatever_it_claims(catalog: Catalog) -> None:
    for number in range(1, 4):
        absorb(catalog, report("p", number * 10**9, number, length=1), 1.0)
    (session,) = stats(catalog)["sessions"]
    assert len(session["epochs"]) <= 3 * EPOCHS_A_REPORT_MAX
    assert stats(catalog)["datasets"]["data"]["requests"] == 3 * 10**9


def test_false_reports_leave_so_many_counts_and_no_more_and_totals_stay_right(catalog: Catalog) -> None:
    many = COUNTS_KEPT + 3 * PRUNE_EVERY
    with catalog.transaction():
        for number in range(many):
            totals = Totals(10, 7, 3, 0.5, {"late": 1, "not_planned": 2}, 0.25)
            absorb(catalog, Report("data", f"s{number}", "p", 10, number % 5, totals), time.time())
    told = stats(catalog)
    assert sum(len(session["epochs"]) for session in told["sessions"]) < COUNTS_KEPT + PRUNE_EVERY
    assert [session["session"] for session in told["sessions"]][-1] == f"s{many - 1}"  # the last are kept
    data = told["datasets"]["data"]
    assert (data["requests"], data["hits"], data["misses"]) == (10 * many, 7 * many, 3 * many)
    assert data["reasons"] == {"late": many, "not_planned": 2 * many}
    assert (data["wait_s"], data["computed_s"]) == (0.5 * many, 0.25 * many)
    for query in ("SELECT count(*) FROM counts", "SELECT count(*) FROM readers"):
        (rows,) = catalog._db.execute(query).fetchone()
        assert rows < COUNTS_KEPT + PRUNE_EVERY + 2


def test_epochs_of_a_session_go_on_when_its_first_are_folded_away(catalog: Catalog) -> None:
    with catalog.transaction():
        for number in range(COUNTS_KEPT + 2 * PRUNE_EVERY):
            absorb(catalog, report("p", 10 * (number + 1), 0), float(number))
    (session,) = stats(catalog)["sessions"]
    epochs = [row["epoch"] for row in session["epochs"]]
    assert epochs == list(range(epochs[0], COUNTS_KEPT + 2 * PRUNE_EVERY))
    assert all(row["requests"] == 10 for row in session["epochs"])


def test_the_rate_of_the_last_reader_is_looked_up_once_and_then_known(catalog: Catalog) -> None:
    absorb(catalog, Report("data", "old", "p", 10, 0, Totals(100, 100, 0, 0.0, {}, 1.0)), time.time())
    absorb(catalog, Report("data", "new", "p", 10, 0, Totals(100, 100, 0, 0.0, {}, 4.0)), time.time())
    absorb(catalog, Report("data", "silent", "p", 10, 0, Totals(100, 100, 0, 0.0, {})), time.time())
    asked: list[str] = []
    catalog._db.set_trace_callback(asked.append)
    assert [reader_rate(catalog, "data") for _ in range(100)] == [25.0] * 100
    assert reader_rate(catalog, "other") is None
    assert reader_rate(catalog, "other") is None
    assert len(asked) <= 2
    catalog._db.set_trace_callback(None)
    absorb(catalog, Report("data", "newer", "p", 10, 0, Totals(10, 10, 0, 0.0, {}, 2.0)), time.time())
    assert reader_rate(catalog, "data") == 5.0


def test_counts_of_an_older_catalog_are_pruned_when_it_is_opened(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path / "catalog.db", is_new=True)
    many = COUNTS_KEPT + 10 * PRUNE_EVERY
    with catalog.transaction():
        catalog._db.executemany(
            "INSERT INTO counts VALUES ('data', 's', ?, 2, 2, 0, 0, '{}', ?, 0)",
            [(epoch, float(epoch)) for epoch in range(many)],
        )
    catalog.close()
    catalog = Catalog(tmp_path / "catalog.db")
    catalog.prune()
    assert stats(catalog)["datasets"]["data"]["requests"] == 2 * many
    assert sum(len(session["epochs"]) for session in stats(catalog)["sessions"]) == COUNTS_KEPT
