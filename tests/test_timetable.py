"""What holds at which time of the day: parsed, over midnight, where clocks are set, and made up for."""

import time
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stager.errors import UsageError
from stager.timetable import (
    ALWAYS,
    DAY_MIN,
    NO_LIMIT,
    InForce,
    Span,
    Timetable,
    is_due,
    last_time,
    minute_of,
    parse_daily,
    parse_limit,
    parse_share,
    say_minute,
)

MB = 10**6


@pytest.fixture(autouse=True)
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A place where clocks are set in March and October."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def at(text: str) -> float:
    return time.mktime(time.strptime(text, "%Y-%m-%d %H:%M"))


def test_a_limit_without_times_always_holds() -> None:
    limit = parse_limit("200MB/s")
    assert limit == Timetable(((200.0 * MB, ALWAYS),))
    assert limit.at(at("2026-01-31 03:00")) == InForce(200.0 * MB, "")
    assert NO_LIMIT.at(at("2026-01-31 03:00")) is None


@pytest.mark.parametrize(
    ("clock", "holds"),
    [("07:59", False), ("08:00", True), ("12:00", True), ("19:59", True), ("20:00", False)],
)
def test_a_limit_holds_from_its_first_minute_to_before_its_last(clock: str, holds: bool) -> None:
    found = parse_limit("1.5MB/s 08:00-20:00").at(at(f"2026-01-31 {clock}"))
    assert found == (InForce(1.5 * MB, "20:00") if holds else None)


@pytest.mark.parametrize(
    ("clock", "holds"), [("21:59", False), ("22:00", True), ("23:59", True), ("00:00", True), ("05:59", True)]
)
def test_a_limit_that_ends_before_it_begins_is_over_midnight(clock: str, holds: bool) -> None:
    assert (parse_limit("1MB/s 22:00-06:00").at(at(f"2026-01-31 {clock}")) is not None) == holds
    assert parse_limit("1MB/s 22:00-06:00").at(at("2026-01-31 06:00")) is None
    assert parse_limit("1MB/s 00:00-24:00") == parse_limit("1MB/s")


def test_of_several_the_tightest_counts() -> None:
    limit = parse_limit(["1GB/s", "200MB/s 08:00-20:00", "100MB/s 12:00 - 13:00"])
    assert limit.at(at("2026-01-31 07:00")) == InForce(1000.0 * MB, "")
    assert limit.at(at("2026-01-31 09:00")) == InForce(200.0 * MB, "20:00")
    assert limit.at(at("2026-01-31 12:30")) == InForce(100.0 * MB, "13:00")


def test_cores_are_shares() -> None:
    assert parse_share("50% 08:00-20:00") == Timetable(((0.5, Span(8 * 60, 20 * 60)),))
    assert parse_share("12.5 %").at(0.0) == InForce(0.125, "")


@pytest.mark.parametrize(
    "value",
    [
        *("", "much", "200MB", "200/s 8-20", "200MB/s 8:00", "200MB/s 08:00-08:00", "200MB/s 08:00-25:00"),
        *("200MB/s 08:60-09:00", "0MB/s", "10/s", "60%/s", "-1MB/s", 200, True, None, [], [5], {"a": 1}),
        *(["200MB/s", "x"], "200MB/s 08:00-20:00 x", "200MB/s\n08:00"),
    ],
)
def test_what_is_no_limit_is_an_error_with_a_way_out(value: object) -> None:
    with pytest.raises(UsageError) as caught:
        parse_limit(value)
    assert caught.value.hint


@pytest.mark.parametrize("value", ["50", "0%", "0.5%", "101%", "1000%", "50%/s", 50, "50% noon", "x%"])
def test_what_is_no_share_is_an_error_with_a_way_out(value: object) -> None:
    with pytest.raises(UsageError) as caught:
        parse_share(value)
    assert caught.value.hint


@pytest.mark.parametrize("value", ["2", "24:00", "2:60", "02:00-03:00", 2, None, True, "02:00 x"])
def test_what_is_no_time_of_the_day_is_an_error_with_a_way_out(value: object) -> None:
    with pytest.raises(UsageError) as caught:
        parse_daily(value)
    assert caught.value.hint


minutes = st.integers(0, DAY_MIN - 1)
walls = st.floats(at("2026-01-01 00:00"), at("2027-12-31 00:00"))


@given(minutes, minutes, walls)
def test_a_span_and_what_is_left_of_the_day_never_hold_at_once_and_one_always_does(
    start: int, stop: int, wall: float
) -> None:
    if start != stop:
        minute = minute_of(wall)
        assert Span(start, stop).has(minute) != Span(stop, start).has(minute)


@given(
    st.lists(st.tuples(st.integers(1, 10**6), minutes, minutes).filter(lambda rule: rule[1] != rule[2])),
    walls,
)
def test_what_holds_is_the_least_of_those_that_do_and_what_is_written_is_what_is_read(
    rules: list[tuple[int, int, int]], wall: float
) -> None:
    told = [f"{value}KB/s {say_minute(start)}-{say_minute(stop)}" for value, start, stop in rules]
    limit = parse_limit(told) if told else NO_LIMIT
    held = [1000.0 * value for value, start, stop in rules if Span(start, stop).has(minute_of(wall))]
    found = limit.at(wall)
    assert (found.value if found else None) == min(held, default=None)


@given(st.text() | st.from_regex(r"\d+(MB|%)/?s? ?\d+:\d+-\d+:\d+"))
def test_whatever_is_written_is_a_limit_or_an_error_of_ours(text: str) -> None:
    for parse in (parse_limit, parse_share, parse_daily):
        with suppress(UsageError):
            parse(text)


# Daily


@given(minutes, walls)
def test_the_last_time_is_within_the_last_day_and_at_its_minute_unless_clocks_were_set(
    minute: int, wall: float
) -> None:
    last = last_time(minute, wall)
    assert 0 <= wall - last <= 25 * 3600
    assert minute_of(last) == minute or minute // 60 in (2, 3)  # there is no 02:30 at a night in March


def test_a_source_is_due_once_a_day_when_its_time_has_come() -> None:
    two = parse_daily("02:00")
    looked = at("2026-01-31 02:00")
    assert not is_due(two, looked, at("2026-01-31 23:00"))
    assert not is_due(two, looked, at("2026-02-01 01:59"))
    assert is_due(two, looked, at("2026-02-01 02:00"))
    assert not is_due(two, at("2026-02-01 02:00"), at("2026-02-01 02:01"))


def test_a_time_that_was_missed_is_made_up_for_however_late() -> None:
    two = parse_daily("02:00")
    assert is_due(two, at("2026-01-31 02:00"), at("2026-02-01 17:00"))
    assert is_due(two, at("2025-01-31 02:00"), at("2026-02-01 17:00"))
    assert not is_due(two, at("2026-02-01 16:00"), at("2026-02-01 17:00"))  # somebody prefetched since


def test_a_look_from_the_future_counts_for_nothing() -> None:
    assert is_due(parse_daily("02:00"), at("2031-01-31 02:00"), at("2026-02-01 17:00"))


def test_where_clocks_are_set_each_day_has_its_look() -> None:
    half = parse_daily("02:30")
    looked, looks = at("2026-03-01 12:00"), 0
    for hour in range(24 * 60):  # over the end of March
        wall = at("2026-03-01 12:00") + 3600 * hour
        if is_due(half, looked, wall):
            looked, looks = wall, looks + 1
    assert looks == 60
