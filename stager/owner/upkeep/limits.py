"""The limits of the config that hold at this time of the day, as workers and people are told of them."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Protocol

from stager.cache.cache import Cache
from stager.timetable import InForce
from stager.worker.messages import BUCKETS_MOST, SetLimits

LOOK_EVERY_S: Final = 1.0
OF_ALL: Final = 0  # the bucket of all sources together


class _Pool(Protocol):
    size: int

    def limit(self, limits: SetLimits) -> None: ...


class LimitsInForce:
    """Tells workers whenever what holds has changed: by the clock, or by a config that was read again."""

    def __init__(self, cache: Cache, pool: _Pool) -> None:
        self._cache, self._pool = cache, pool
        self._told = SetLimits(cache.scratch / "limits")
        self._buckets: dict[str, int] = {}  # of data sets, by name
        self._look_at = 0.0
        self.look()

    def paths(self) -> set[Path]:
        """What workers share of it, while they run."""
        return {self._told.buckets}

    def look(self) -> None:
        now = self._cache.clock.now()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_EVERY_S
        holds = self._holds()
        if holds != self._told:
            self._told = holds
            self._pool.limit(holds)

    def _holds(self) -> SetLimits:
        config, wall = self._cache.config, self._cache.clock.wall()
        cpu, of_all = config.cpu.at(wall), config.limit.at(wall)
        of = {name: limit for name, kept in config.upkeep.items() if (limit := kept.limit.at(wall))}
        return replace(
            self._told,
            cores=cpu.value * len(os.sched_getaffinity(0)) / self._pool.size if cpu else None,
            of_all=(OF_ALL, of_all.value) if of_all else None,
            of={name: (self._bucket(name), limit.value) for name, limit in of.items()},
        )

    def _bucket(self, name: str) -> int:
        """Of hundreds of data sets with limits, some share one: each has less then than it may."""
        return self._buckets.setdefault(name, OF_ALL + 1 + len(self._buckets) % (BUCKETS_MOST - 1))

    def to_json(self) -> dict[str, Any] | None:
        """What holds now, for people, if anything does; `until` is a time of the day, or empty."""
        config, wall = self._cache.config, self._cache.clock.wall()
        of = {name: _told(kept.limit.at(wall), "bytes_per_s") for name, kept in config.upkeep.items()}
        told = {
            "source": _told(config.limit.at(wall), "bytes_per_s"),
            "cpu": _told(config.cpu.at(wall), "share"),
            "datasets": {name: one for name, one in of.items() if one},
        }
        return told if any(told.values()) else None


def _told(limit: InForce | None, name: str) -> dict[str, Any] | None:
    return {name: limit.value, "until": limit.until} if limit else None
