"""What staging would take, worked out from a few samples before anything is staged."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from stager.cache.budget import say_bytes
from stager.config import FETCHES_IN_FLIGHT
from stager.errors import many
from stager.jobs.rate import NOTHING_AT_BEST, START_S, Best, seconds_of_job
from stager.reader.values import Numbers
from stager.worker.messages import Built

LIKELY: Final = (0.6, 1.7)  # a job takes so much of what it was said to take
# The same of what functions make: five samples of like cost may hide a third that cost five times as much.
LIKELY_MADE: Final = (0.6, 2.5)
LEAST_MADE: Final = 0.3  # of what the five say, however they differ
STUDENT: Final = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78}  # of so many samples, for 95 in 100


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number that is likely to lie between two others."""

    estimate: float
    low: float
    high: float

    def to_json(self, whole: bool) -> dict[str, float]:
        return {
            name: round(value) if whole else round(value, 2)
            for name, value in (("estimate", self.estimate), ("low", self.low), ("high", self.high))
        }


@dataclass(frozen=True, slots=True)
class Evicted:
    """What makes room for a job: samples of a data set that are needed latest."""

    dataset: str
    samples: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The price of a job."""

    samples: int
    requests: int
    source_bytes: int
    staged_bytes: Estimate
    seconds: Estimate
    fits: bool
    best: Best = NOTHING_AT_BEST
    evicts: tuple[Evicted, ...] = ()  # what goes for it, if it was asked to make room

    @property
    def rate(self) -> float:
        """Samples a second; 0, if nothing is known."""
        return self.samples / self.seconds.estimate if self.seconds.estimate else 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            "samples": self.samples,
            "requests": self.requests,
            "source_bytes": self.source_bytes,
            "staged_bytes": self.staged_bytes.to_json(whole=True),
            "seconds": self.seconds.to_json(whole=False),
            "fits": self.fits,
            "evicts": [asdict(one) for one in self.evicts],
        }


def make_plan(
    built: Built,
    *,
    samples: int,
    cost: tuple[int, int],
    row_bytes: int | None,
    room_bytes: int,
    workers: int,
    threads: int,
    slowdown: float,
    crowding: float = 1.0,
) -> Plan:
    """The price of staging samples that cost so many requests and bytes, from what was told of a few."""
    sizes = (len(built.samples), built.size_bytes, built.size_squares)
    staged_bytes = estimate_bytes(samples, row_bytes, sizes)
    fits = staged_bytes.estimate <= room_bytes
    if built.made_s:
        seconds = estimate_made(samples, built, processes=workers * max(threads - 1, 1))
        return Plan(samples, *cost, staged_bytes, seconds, fits)  # from which nothing is learned for others
    best = best_of(samples, cost[1], built, workers=workers, threads=threads)
    likely_s = seconds_of_job(best, slowdown, crowding)
    seconds = Estimate(likely_s, likely_s * LIKELY[0], likely_s * LIKELY[1])
    return Plan(samples, *cost, staged_bytes, seconds, fits, best)


NOTHING_TO_DO = Plan(0, 0, 0, Estimate(0, 0, 0), Estimate(0, 0, 0), True)


def say_plan(plan: Mapping[str, Any]) -> str:
    """A plan in one line, from its JSON."""
    seconds, staged = plan["seconds"], plan["staged_bytes"]
    return (
        f"{plan['samples']:,} samples to stage: {plan['requests']:,} requests,"
        f" {say_bytes(plan['source_bytes'])} to read, about {say_bytes(staged['estimate'])} on disk,"
        f" about {say_seconds(seconds['estimate'])}"
        f" ({say_seconds(seconds['low'])} to {say_seconds(seconds['high'])})"
        + ("" if plan["fits"] or plan["evicts"] else "; it does NOT fit")
    )


def say_evicts(evicts: Sequence[Mapping[str, Any]]) -> str:
    """What goes for a job, in one line, from its plan's JSON."""
    return "to make room go " + ", ".join(
        f"{many(row['samples'], 'sample')} of {row['dataset']} ({say_bytes(row['bytes'])})" for row in evicts
    )


def say_seconds(seconds: float) -> str:
    """A duration for people."""
    if seconds < 100:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def estimate_bytes(samples: int, row_bytes: int | None, sizes: tuple[int, int, int]) -> Estimate:
    """Bytes that `samples` take: exact for rows of one size, else from count, sum and squares of a few."""
    if row_bytes is not None:
        total = samples * row_bytes
        return Estimate(total, total, total)
    count, total, squares = sizes
    if not count:
        return Estimate(0, 0, 0)
    mean = total / count
    spread = 2 * math.sqrt(max(squares / count - mean * mean, 0) / count)
    return Estimate(samples * mean, samples * max(mean - spread, 0), samples * (mean + spread))


def best_of(samples: int, source_bytes: int, built: Built, *, workers: int, threads: int) -> Best:
    """Time for `samples`, limited by the requests in flight or by the cores."""
    if not built.samples:
        return NOTHING_AT_BEST
    fetching = samples * built.fetch_s / (FETCHES_IN_FLIGHT * workers)
    cores = max(threads - 1, 1) * workers  # a worker has a thread more, which waits as a rule
    preparing = (source_bytes * built.byte_s or samples * built.prepare_s) / cores
    return Best(fetching, preparing)


def estimate_made(samples: int, built: Built, *, processes: int) -> Estimate:
    """Time for `samples` that a function makes, from its seconds for a few, which may differ much."""
    count = len(built.samples)
    mean = built.made_s / count
    variance = max(built.made_squares / count - mean * mean, 0) * count / max(count - 1, 1)
    spread = STUDENT.get(count, 2.0) * math.sqrt(variance / count)
    rounds = math.ceil(samples / processes)
    low = max(min(mean * LIKELY_MADE[0], mean - spread), mean * LEAST_MADE)
    high = max(mean * LIKELY_MADE[1], mean + spread)
    return Estimate(START_S + rounds * mean, rounds * low, START_S + rounds * high)


def spread(count: int, few: int) -> Numbers:
    """A few of so many places, one of each equal part: what comes again and again falls in with no step."""
    parts = min(few, count)
    ends = np.arange(parts + 1) * count // parts
    return np.random.default_rng(count).integers(ends[:-1], ends[1:])
