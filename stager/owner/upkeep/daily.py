"""Sources that are looked at once a day, because the config says so: `refresh = "02:00"`."""

import logging
from collections.abc import Callable
from typing import Any, Final

from stager.cache.cache import Cache
from stager.errors import StagerError
from stager.jobs.queue import JobQueue
from stager.timetable import is_due

log = logging.getLogger("stager")

LOOK_EVERY_S: Final = 5.0


class DailyLooks:
    """Has a job refresh each data set when its time has come, or at the start, if it was missed."""

    def __init__(self, cache: Cache, jobs: JobQueue, refresh: Callable[[str], Any]) -> None:
        self._cache, self._jobs, self._refresh = cache, jobs, refresh
        self._look_at = 0.0
        self._tried: dict[str, float] = {}  # by the wall; a look that failed is not repeated that day

    def look(self) -> None:
        now, wall = self._cache.clock.now(), self._cache.clock.wall()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_EVERY_S
        for name, minute in self._wanted().items():
            if is_due(minute, self._tried.get(name, self._looked_at(name)), wall):
                self._begin(name, wall)

    def _wanted(self) -> dict[str, int]:
        """The minute of the day for each that is staged: what is not, has nothing to be refreshed."""
        upkeep = self._cache.config.upkeep
        return {
            name: kept.refresh_at
            for name, kept in upkeep.items()
            if kept.refresh_at is not None and name in self._cache.datasets
        }

    def _looked_at(self, name: str) -> float:
        """When its source was scanned for the last time, for whatever reason."""
        return max(row.scanned_at for row in self._cache.catalog.datasets() if row.name == name)

    def _begin(self, name: str, wall: float) -> None:
        self._tried[name] = wall
        if any(job.request.spec.name == name for job in self._jobs.open()):
            return  # it has just been scanned for that one, or will be
        try:
            self._refresh(name)
            log.info("daily refresh begun dataset=%s", name)
        except StagerError as error:
            log.warning("daily refresh failed dataset=%s error=%r", name, error.message)
