"""One model of how fast samples are staged: the plan, the ready line and the bar all have it from here.

A few samples, prepared for the plan, say what the machine could do at best, if it had nothing else to do. How
many others want its cores is seen while the job is planned. How much slower a whole job is, jobs before it
have shown. While a job runs, what it does counts more and more.
"""

from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from stager.catalog.catalog import Catalog
from stager.errors import CacheError

START_S: Final = 0.1  # a job's first requests, and its last shard's way to the disk
SLOWDOWN: Final = 1.4  # of a whole job against the few, before any job has shown it
SLOWDOWNS: Final = (0.5, 10.0)  # others worked on the machine, if it looks like more
LEARNED_FROM: Final = 200  # samples: what a smaller job takes is mostly its start
NEW_SHARE: Final = 0.5  # of what we know, that the last job says
PLAN_WEIGHT_S: Final = 3.0  # a job's plan counts like so many seconds of its work


@dataclass(frozen=True, slots=True)
class Best:
    """What the samples of a job take at best."""

    fetching_s: float = 0.0
    preparing_s: float = 0.0  # if the cores are ours alone

    def seconds(self, crowding: float) -> float:
        """Whichever is slower; the cores may be so many times as slow, and the source is as it is."""
        return max(self.fetching_s, self.preparing_s * crowding)


NOTHING_AT_BEST: Final = Best()


def seconds_of_job(best: Best, slowdown: float, crowding: float = 1.0) -> float:
    """How long a job takes, on cores that so many want."""
    best_s = best.seconds(crowding)
    return START_S + best_s * slowdown if best_s else 0.0


def learned(
    slowdown: float | None, samples: int, best: Best, took_s: float, crowding: float = 1.0
) -> float | None:
    """The slowdown after a job has ended on such cores; `slowdown`: as known before, if at all."""
    best_s = best.seconds(crowding)
    if samples < LEARNED_FROM or best_s <= 0:
        return slowdown
    least, most = SLOWDOWNS
    seen = min(max((took_s - START_S) / best_s, least), most)
    return seen if slowdown is None else slowdown + NEW_SHARE * (seen - slowdown)


def rate_now(done: int, staging_s: float, planned_rate: float) -> float:
    """Samples a second, as planned and as seen. 0: nothing is known yet."""
    if not planned_rate:
        return done / staging_s if staging_s >= PLAN_WEIGHT_S else 0.0
    return (done + planned_rate * PLAN_WEIGHT_S) / (staging_s + PLAN_WEIGHT_S)


def rate_then(done: int, staging_s: float) -> float:
    """Samples a second of a job that is over."""
    return done / max(staging_s, START_S)


def learn(catalog: Catalog, samples: int, best: Best, took_s: float, crowding: float) -> None:
    """What a job took says what the next ones take."""
    known = catalog.slowdown()
    slowdown = learned(known, samples, best, took_s, crowding)
    if slowdown is not None and slowdown != known:
        with suppress(CacheError):  # it is no more than an estimate
            catalog.keep_slowdown(slowdown)
