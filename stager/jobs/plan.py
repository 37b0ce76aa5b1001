"""What staging would take, worked out from a few samples before anything is staged."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stager.cache.budget import say_bytes
from stager.config import FETCHES_IN_FLIGHT
from stager.worker.messages import Built


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
class Plan:
    """The price of a job."""

    samples: int
    requests: int
    source_bytes: int
    staged_bytes: Estimate
    seconds: Estimate
    fits: bool

    def to_json(self) -> dict[str, Any]:
        return {
            "samples": self.samples,
            "requests": self.requests,
            "source_bytes": self.source_bytes,
            "staged_bytes": self.staged_bytes.to_json(whole=True),
            "seconds": self.seconds.to_json(whole=False),
            "fits": self.fits,
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
) -> Plan:
    """The price of staging samples that cost so many requests and bytes, from what was told of a few."""
    sizes = (len(built.samples), built.size_bytes, built.size_squares)
    staged_bytes = estimate_bytes(samples, row_bytes, sizes)
    seconds = estimate_seconds(samples, built, workers=workers, threads=threads)
    fits = staged_bytes.estimate <= room_bytes
    return Plan(samples, *cost, staged_bytes, seconds, fits)


NOTHING_TO_DO = Plan(0, 0, 0, Estimate(0, 0, 0), Estimate(0, 0, 0), True)


def say_plan(plan: Mapping[str, Any]) -> str:
    """A plan in one line, from its JSON."""
    seconds, staged = plan["seconds"], plan["staged_bytes"]
    return (
        f"{plan['samples']:,} samples to stage: {plan['requests']:,} requests,"
        f" {say_bytes(plan['source_bytes'])} to read, about {say_bytes(staged['estimate'])} on disk,"
        f" about {say_seconds(seconds['estimate'])}"
        f" ({say_seconds(seconds['low'])} to {say_seconds(seconds['high'])})"
        + ("" if plan["fits"] else "; it does NOT fit")
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


def estimate_seconds(samples: int, built: Built, *, workers: int, threads: int) -> Estimate:
    """Time for `samples`, limited by the requests in flight or by the cores, whichever is slower."""
    if not built.samples:
        return Estimate(0, 0, 0)
    fetching = samples * built.fetch_s / (FETCHES_IN_FLIGHT * workers)
    preparing = samples * built.prepare_s / (threads * workers)
    best = max(fetching, preparing)
    return Estimate(best * 1.2, best, best * 2)  # the few ran on idle cores, so they are on the bright side
