"""Data sets that are to be forgotten: who uses them still, and when nobody does, all that there is of them.

What is under way at a worker cannot be called back. So while its tasks end, a data set is leaving: no reader
and no job gets at it any more, and whoever has asked asks again.
"""

import logging
from typing import Any, Final

from stager.cache.cache import Cache
from stager.cache.dataset import Dataset
from stager.dispatch.memory_shards import Transients
from stager.dispatch.sync import DurableQueue
from stager.dispatch.tasks import Tasks
from stager.errors import UsageError, many
from stager.jobs.job import Job, Request
from stager.jobs.queue import JobQueue
from stager.owner.heat.hot import HotSet
from stager.sessions.leases import Leases
from stager.sessions.session import Sessions
from stager.sessions.waiting import WaitingReaders

log = logging.getLogger("stager")

LEAVING_S: Final = 60.0  # after somebody has asked for the last time


class Removals:
    """Who has to do with a data set, by everyone who may."""

    def __init__(
        self,
        cache: Cache,
        jobs: JobQueue,
        tasks: Tasks,
        hot: HotSet,
        disk: DurableQueue,
        transients: Transients,
        waiting: WaitingReaders,
        sessions: Sessions,
        leases: Leases,
    ) -> None:
        self._cache, self._jobs, self._tasks, self._hot = cache, jobs, tasks, hot
        self._disk, self._transients, self._waiting = disk, transients, waiting
        self._sessions, self._leases = sessions, leases
        self._leaving: dict[str, float] = {}  # name -> until when

    def check(self, name: str) -> None:
        """Raise UsageError if a data set is leaving."""
        if self._leaving.get(name, 0.0) > self._cache.clock.now():
            raise UsageError(f"{name} is being removed", hint="try again when stager rm is done")

    def remove(self, name: str, force: bool) -> dict[str, Any]:
        """Forget a data set. `is_gone` is False while tasks of it end: then ask again.

        Raise UsageError if it is read, or jobs stage it; with `force`, jobs and readers end.
        """
        self._cache.named(name)  # or say that there is none
        datasets = self._cache.of_name(name)
        jobs, readers = self._jobs_of(name), self._readers_of(name)
        if not force and (jobs or readers):
            raise _in_use(name, sorted(jobs), len(readers))
        self._leaving[name] = self._cache.clock.now() + LEAVING_S
        for number, request in jobs.items():
            self._end_job(number, request)
        for dataset in datasets:
            self._let_go(dataset, readers)
        told = {"dataset": name, "bytes": 0, "is_gone": False}
        if self._is_under_way(name):
            return told
        freed = self._cache.forget(name)
        del self._leaving[name]
        log.info("data set removed name=%s bytes=%d", name, freed)
        return told | {"bytes": freed, "is_gone": True}

    def uses(self, name: str) -> str:
        """Who has to do with a data set now, for people; nothing, if nobody has."""
        jobs = sorted(job.id for job in self._jobs.open() if job.request.spec.name == name)
        told = _told_uses(jobs, len(self._readers_of(name)))
        return told or ("workers stage it" if self._is_under_way(name) else "")

    def _is_under_way(self, name: str) -> bool:
        ids = {dataset.id for dataset in self._cache.of_name(name)}
        parts = (self._tasks, self._disk, self._transients, self._waiting)
        return not ids.isdisjoint(set().union(*(part.datasets() for part in parts)))

    def _jobs_of(self, name: str) -> dict[int, Request | None]:
        """The jobs of a data set that have not ended; also those of a service that does not run."""
        found: dict[int, Request | None] = {
            job.id: None for job in self._jobs.open() if job.request.spec.name == name
        }
        for number, value, _ in self._cache.catalog.unfinished_jobs():
            request = Request.from_json(value)
            if request.spec.name == name:
                found.setdefault(number, request)
        return found

    def _readers_of(self, name: str) -> set[str]:
        """The sessions whose process lives: one that was killed says nothing of it."""
        return self._leases.sessions_of(name)

    def forget_orders(self, name: str) -> None:
        """Nobody reads a data set: what a killed reader was going to read is not staged ahead."""
        for session in self._sessions.of_name(name):
            self._sessions.forget(session)

    def _end_job(self, number: int, request: Request | None) -> None:
        """End a job of ours, or one that only the catalog has."""
        if request is None:
            self._jobs.cancel(self._jobs.by_id[number])
        else:
            told = Job(number, request, "cancelled").to_json(self._cache.clock.now())
            self._cache.catalog.end_job(number, "cancelled", told)

    def _let_go(self, dataset: Dataset, readers: set[str]) -> None:
        """Stage nothing more of a data set, and tell its readers."""
        gone = UsageError(
            f"{dataset.name} was removed", hint=f"stage it again: stager prefetch {dataset.name}"
        )
        self.forget_orders(dataset.name)
        self._leases.forget(readers)
        self._waiting.leave(dataset, gone)
        self._transients.leave(dataset)
        self._hot.rest(dataset)


def _told_uses(jobs: list[int], readers: int) -> str:
    told = [f"job {', '.join(map(str, jobs))} stages it"] if jobs else []
    told += [f"{many(readers, 'session')} read{'s' * (readers == 1)} it"] if readers else []
    return ", ".join(told)


def _in_use(name: str, jobs: list[int], readers: int) -> UsageError:
    return UsageError(
        f"{name} is in use: {_told_uses(jobs, readers)}",
        hint=f"wait for the end, or end them: stager rm {name} --force",
    )
