"""What holds at which time of the day: limits of bytes and of cores, and when to look at a source.

Pure: the time is passed in, in seconds since 1970. A time of day is the machine's local one, as people mean
it: where clocks are set, an hour may come twice or not at all.
"""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from stager.errors import UsageError
from stager.reader.amount import parse_amount

DAY_MIN: Final = 24 * 60
LEAST_BYTES: Final = 1000  # a second: with less, a single photo takes minutes
_TIME: Final = r"(\d{1,2}):(\d{2})"
_SPAN: Final = re.compile(rf"{_TIME}\s*-\s*{_TIME}")
_RATE: Final = re.compile(r"(?P<value>[^\s%]+?)\s*/\s*s")
_SHARE: Final = re.compile(r"(?P<value>\d{1,3}(?:\.\d+)?)\s*%")
_RATE_HINT: Final = 'use "200MB/s", "200MB/s 08:00-20:00", or a list of such'
_SHARE_HINT: Final = 'use "50%", "50% 08:00-20:00", or a list of such'


class Span(NamedTuple):
    """Minutes of the day, the last one not among them. One that ends before it begins is over midnight."""

    start: int
    stop: int

    def has(self, minute: int) -> bool:
        if self.start < self.stop:
            return self.start <= minute < self.stop
        return minute >= self.start or minute < self.stop


ALWAYS: Final = Span(0, DAY_MIN)


class InForce(NamedTuple):
    """A limit that holds now. `until`: hour and minute at which it may not hold any more; '': always."""

    value: float
    until: str


@dataclass(frozen=True, slots=True)
class Timetable:
    """Limits, each with its time. Where several hold, the tightest counts."""

    rules: tuple[tuple[float, Span], ...] = ()

    def at(self, wall: float) -> InForce | None:
        """The limit that holds at this time; None: there is none."""
        minute = minute_of(wall)
        held = [(value, span) for value, span in self.rules if span.has(minute)]
        if not held:
            return None
        value, span = min(held, key=lambda rule: rule[0])
        return InForce(value, "" if span == ALWAYS else say_minute(span.stop))


NO_LIMIT: Final = Timetable()


def minute_of(wall: float) -> int:
    """The minute of the day, here."""
    told = time.localtime(wall)
    return told.tm_hour * 60 + told.tm_min


def say_minute(minute: int) -> str:
    return f"{minute // 60:02d}:{minute % 60:02d}"


def parse_limit(value: Any) -> Timetable:
    """Bytes a second, from "200MB/s 08:00-20:00" or a list of such. Raise UsageError."""
    return _parse(value, _RATE, _bytes_of, _RATE_HINT)


def parse_share(value: Any) -> Timetable:
    """A part of all cores, from "50% 08:00-20:00" or a list of such. Raise UsageError."""
    return _parse(value, _SHARE, _part_of, _SHARE_HINT)


def _parse(value: Any, what: re.Pattern[str], read: Callable[[str], float], hint: str) -> Timetable:
    told = value if isinstance(value, list) else [value]
    if not told:
        raise UsageError("the list is empty", hint)
    rules = []
    for text in told:
        match = re.fullmatch(rf"\s*({what.pattern})(\s+(?P<span>\S.*))?", text) if _is_text(text) else None
        if match is None:
            raise UsageError(f"{text!r} is no limit", hint)
        span = _span_of(match["span"].strip()) if match["span"] else ALWAYS
        rules.append((read(match["value"]), span))
    return Timetable(tuple(rules))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _bytes_of(text: str) -> float:
    try:
        amount = parse_amount(text)
    except UsageError:
        raise UsageError(f"{text!r} is no amount of bytes", _RATE_HINT) from None
    if amount.bytes < LEAST_BYTES:
        raise UsageError(f"{text}/s is too little to stage anything", hint="use at least 1KB/s")
    return float(amount.bytes)


def _part_of(text: str) -> float:
    if not 1 <= float(text) <= 100:
        raise UsageError(f"{text}% is no share of the cores", hint="use 1% to 100%; 100% is all cores")
    return float(text) / 100


def _span_of(text: str) -> Span:
    match = _SPAN.fullmatch(text)
    if match is None:
        raise UsageError(f"{text!r} is no time of the day", hint='use "08:00-20:00", or "22:00-06:00"')
    start, stop = _minute(match[1], match[2], DAY_MIN), _minute(match[3], match[4], DAY_MIN)
    if start == stop:
        raise UsageError(f"{text!r} begins when it ends", hint="leave the times out if it always holds")
    return Span(start % DAY_MIN, stop)


def _minute(hour: str, minute: str, most: int) -> int:
    told = int(hour) * 60 + int(minute)
    if int(minute) > 59 or told > most:
        raise UsageError(f"there is no time {hour}:{minute}", hint='use 24 hours: "08:00", "20:30"')
    return told


def parse_daily(value: Any) -> int:
    """The minute of the day, from "02:00". Raise UsageError."""
    match = re.fullmatch(_TIME, value.strip()) if isinstance(value, str) else None
    if match is None:
        raise UsageError(f"{value!r} is no time of the day", hint='use "02:00"')
    return _minute(match[1], match[2], DAY_MIN - 1)


def last_time(minute: int, wall: float) -> float:
    """When it was this minute of the day for the last time, or is now."""
    told = time.localtime(wall)
    for days_before in (0, 1, 2):  # two: where clocks were set back meanwhile
        day = told.tm_mday - days_before
        at = time.mktime((told.tm_year, told.tm_mon, day, minute // 60, minute % 60, 0, 0, 0, -1))
        if at <= wall:
            return at
    raise AssertionError("a day has passed in three days")


def is_due(minute: int, looked_at: float, wall: float) -> bool:
    """Whether a source that was looked at then is to be looked at now: its time has come since.

    One that was missed, because nobody was there, is made up for. A look from the future, by a clock that
    was set back since, counts for nothing.
    """
    return not last_time(minute, wall) <= looked_at <= wall
