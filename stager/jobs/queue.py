"""The jobs of a cache: begun, planned, staged lot by lot, paused while there is no room, ended."""

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import numpy as np

from stager.cache.cache import Cache
from stager.cache.dataset import Dataset
from stager.config import STALL_S
from stager.dispatch.events import Beside
from stager.dispatch.task import BuildTask, Lot, MeasureTask, Purpose, Task
from stager.dispatch.tasks import Tasks
from stager.errors import CacheError, SourceBusy, SourceSilent, StagerError
from stager.jobs import rate
from stager.jobs.crowd import Looker, crowding
from stager.jobs.groundwork import Groundwork
from stager.jobs.job import Job, Request
from stager.jobs.refusals import deadly
from stager.reader.samples.runs import is_among
from stager.reader.samples.subset import Subset
from stager.reader.values import Mask, Numbers

log = logging.getLogger("stager")

ENDED_JOBS_KEPT: Final = 100
NO_ROOM_S: Final = 1.0
HUNG_MOST_S: Final = 24 * 3600.0  # a job waits so long for a source that hangs,
HUNG_LOCAL_S: Final = STALL_S  # and one of a command without a service, that somebody looks at
ENDS_MAX: Final = 2  # of the service, by one job: then it is not taken up again


class JobQueue:
    """All jobs that are under way, and the last ones that ended."""

    def __init__(self, cache: Cache, tasks: Tasks, beside: Beside) -> None:
        self.cache, self._tasks = cache, tasks
        self.groundwork = Groundwork(cache, tasks, beside, self)
        self.by_id: dict[int, Job] = {}
        self.heard_by: list[Callable[[Job], None]] = []  # when a job has ended
        self._unrecorded = 0  # jobs so far
        self._no_room_until = 0.0
        self._looker = Looker(cache.clock)

    def look(self) -> None:
        """See how many want the cores, for the jobs that are under way."""
        open_jobs = list(self.open())
        if open_jobs and (threads := self._looker.look()) is not None:
            for job in open_jobs:
                job.crowd.saw(threads)

    # Begin and end

    def submit(self, request: Request) -> Job:
        """Start a job. Its scan, plan and shards follow."""
        if not request.is_recorded:  # it stages nothing, so there is nothing to take up again
            self._unrecorded += 1
            job_id = -self._unrecorded
        else:
            job_id = self.cache.catalog.add_job(request.spec.name, request.to_json())
        return self._begin(self._new(job_id, request))

    def resume(self) -> None:
        """Take up the jobs that a stop or a crash of the service cut off."""
        for job_id, value, note in self.cache.catalog.unfinished_jobs():
            request = Request.from_json(value)
            if request.is_local:
                told = Job(job_id, request, "cancelled").to_json(self.cache.clock.now())
                self.cache.catalog.end_job(job_id, "cancelled", told)
                continue
            self.groundwork.ends[job_id] = note.get("ends", 0)
            if self.groundwork.ends[job_id] >= ENDS_MAX:
                self.end(Job(job_id, request), "failed", deadly(job_id, ENDS_MAX))
                continue
            log.info("job resumed id=%d dataset=%s", job_id, request.spec.name)
            self._begin(self._new(job_id, request))

    def _new(self, job_id: int, request: Request) -> Job:
        return Job(job_id, request, began_at=self.cache.clock.now())

    def restage(self, dataset: Dataset, samples: Numbers) -> Job:
        """Stage these samples again, as a job of its own."""
        request = Request(dataset.spec, Subset(), "auto", is_local=True)
        job = self._new(self.cache.catalog.add_job(dataset.name, request.to_json()), request)
        self.by_id[job.id] = job
        self.groundwork.stage_only(job, dataset, samples)
        return job

    def cancel(self, job: Job, finish: bool = False) -> None:
        """End a job; with `finish`, once the shards under way for it are in. What it staged stays."""
        if job.ended:
            return
        job.stops = finish
        if finish and job.dataset is not None:
            self.settle(job)
        else:
            self.end(job, "cancelled")

    def stop(self) -> None:
        """End all. Those of a service are taken up at its next start."""
        for job in self.open():
            self.end(job, "cancelled", goes_on=not job.request.is_local)

    def end(self, job: Job, state: str, error: StagerError | None = None, goes_on: bool = False) -> None:
        job.state, job.error, job.paused, job.ended_at = state, error, None, self.cache.clock.now()
        if error is not None:
            error.__traceback__ = None  # its frames would keep what they hold as long as the job is told of
        self._tasks.forget_scan(job.id)
        if job.request.is_recorded and not goes_on:
            try:
                self.cache.catalog.end_job(job.id, state, job.to_json(job.ended_at))
            except CacheError as problem:  # a full disk, most likely: the next start takes the job up again
                log.error("job not recorded id=%d error=%r", job.id, problem.message)
        is_asked = job.request.relist is None
        log.log(
            logging.INFO if is_asked or job.staged or job.failed else logging.DEBUG,
            "job ended %s",
            job.told(),
        )
        for hear in self.heard_by:
            hear(job)
        if not is_asked:  # or the looks of a watch would push out what people asked for
            self.by_id.pop(job.id, None)
        if state == "done" and job.plan is not None and not job.request.stop_after:  # a plan takes no time
            took_s = self.cache.clock.now() - job.staging_at
            ours = self._tasks.pool.size * self._tasks.pool.threads
            crowded = crowding(job.crowd.others(ours + 1), ours)
            rate.learn(self.cache.catalog, job.plan.samples, job.plan.best, took_s, crowded)
        job.let_go()

    def fail(self, dataset: Dataset, samples: Numbers, error: StagerError) -> None:
        """Samples cannot be staged, through no fault of theirs: end the jobs that wait for them."""
        for job in self.open(dataset):
            if job.is_waiting_for(samples).any():
                self.end(job, "failed", error)

    def _begin(self, job: Job) -> Job:
        self.by_id[job.id] = job
        for old in [known for known in self.by_id.values() if known.ended][:-ENDED_JOBS_KEPT]:
            del self.by_id[old.id]
        self.groundwork.begin(job)
        return job

    def open(self, dataset: Dataset | None = None) -> Iterator[Job]:
        """Those that have not ended, of a data set or of all."""
        for job in list(self.by_id.values()):
            if not job.ended and (dataset is None or job.dataset is dataset):
                yield job

    def find(self, job_id: int | None) -> Job | None:
        """A job that has not ended."""
        job = self.by_id.get(job_id) if job_id is not None else None
        return None if job is None or job.ended else job

    def unfinished(self) -> set[int]:
        """The numbers of all that have not ended."""
        return {job.id for job in self.open()}

    def busy(self) -> bool:
        """Whether anything is to be done now for a job."""
        return any(not isinstance(job.paused, SourceSilent) for job in self.open())

    # Staging

    def next_lot(self) -> Lot | None:
        """The next samples of the oldest job that has any and room for them."""
        for job in sorted(self.open(), key=lambda job: job.request.relist is not None):  # those that nobody
            if (  # asked for come last
                job.state != "staging"
                or job.stops
                or job.dataset is None
                or not self._tasks.may_begin(job.dataset.spec, is_urgent=False)
                or not self._has_room(job, job.dataset)
            ):
                continue
            most = self._tasks.sizes.shard_samples_max(job.dataset)
            count = self._tasks.sizes.samples_that_fit(job.dataset, min(job.shard_samples, most), job.format)
            samples = job.take(count, partial(self._is_cared_for, job.dataset))
            if len(samples):
                job.shard_samples = min(job.shard_samples * 2, most)
                return self._tasks.together(Lot(job.dataset, samples, job.format), job.is_waiting_for)
        return None

    def _has_room(self, job: Job, dataset: Dataset) -> bool:
        """Whether a sample more fits. If not: another program has filled the disk, and the job pauses."""
        budget = self.cache.budget
        fits = self._tasks.sizes.samples_that_fit(dataset, 1, job.format)
        if fits and self.cache.clock.now() > self._no_room_until:
            if job.paused:
                log.info("job goes on id=%d", job.id)
            job.paused = None
            return True
        size_bytes = self._tasks.sizes.bytes_for(dataset, 1, job.format)
        if budget.is_spent(size_bytes):
            if not budget.reserved_bytes:  # waiting brings nothing: only somebody who evicts could help
                self.end(job, "failed", budget.refusal(size_bytes))
            return False
        if not job.paused:
            job.paused = budget.refusal(size_bytes)
            log.warning("job paused id=%d error=%r", job.id, job.paused.message)
        return False

    def pause_hung(self) -> None:
        """Have jobs whose source hangs say so. They go on by themselves."""
        for job in self.open():
            paused = self._tasks.places.why_paused(job.request.spec.source)
            if paused is None and isinstance(job.paused, SourceSilent):
                job.paused = None
            elif paused is not None and not isinstance(job.paused, SourceSilent):
                job.paused = paused

    def waits(self, task: Task, error: StagerError) -> bool:
        """Whether what a task was for waits until its source answers again. Else it fails."""
        hung = self._tasks.places.hung(task.spec.source)
        if hung is None or isinstance(task, MeasureTask) or not isinstance(error, SourceBusy):
            return False
        if isinstance(task, BuildTask):
            if task.lot.purpose is Purpose.HOT:
                return False
            jobs = [job for job in self.open(task.lot.dataset) if job.is_waiting_for(task.lot.samples).any()]
        else:
            jobs = [job for job in self.open() if job.id == task.job]
        most_s = HUNG_LOCAL_S if any(job.request.is_local for job in jobs) else HUNG_MOST_S
        return self.cache.clock.now() - hung.since < most_s

    def wait_for_room(self) -> None:
        """A write found the disk full, whatever was reckoned: go on a little later."""
        self._no_room_until = self.cache.clock.now() + NO_ROOM_S

    def left(self, dataset: Dataset, samples: Numbers, staged_bytes: int = 0) -> None:
        """Samples have come to their end, staged or failed: count them for every job that waits for them."""
        for job in self.open(dataset):
            if staged_bytes:
                dataset.heat.asked(samples[job.is_waiting_for(samples)], self.cache.clock.wall())
            job.count_off(samples, staged_bytes)
            self.settle(job)

    def settle(self, job: Job) -> None:
        """End a job that waits for nothing more."""
        if job.stops and job.dataset is not None:
            job.wait_only_for(self.groundwork.cared_for(job.dataset))
            if not job.ended and not job.left:
                self.end(job, "cancelled")
        elif not job.ended and job.plan is not None and not job.left:
            self.end(job, "done")

    # Small facts

    # These look at the samples in question: each is asked for every shard, or for every reader that waits.

    def waiting(self, dataset: Dataset, samples: Numbers) -> Mask:
        """Which of these samples jobs wait for."""
        mask = np.zeros(len(samples), dtype=np.bool_)
        for job in self.open(dataset):
            mask |= job.is_waiting_for(samples)
        return mask

    def datasets(self, besides: Job | None = None) -> set[int]:
        """The ids of data sets that have jobs under way."""
        return {job.dataset.id for job in self.open() if job.dataset is not None and job is not besides}

    def wanted(self, dataset: Dataset, samples: Numbers) -> Mask:
        """Which of these samples jobs are staging, or have staged so far."""
        mask = np.zeros(len(samples), dtype=np.bool_)
        for job in self.open(dataset):
            mask |= is_among(samples, job.numbers)
        return mask

    def _is_cared_for(self, dataset: Dataset, samples: Numbers) -> Mask:
        """Which of these samples are staged, or being staged."""
        return self._tasks.in_flight(dataset)[samples] | self.cache.kept(dataset, samples)
