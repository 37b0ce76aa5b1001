"""The jobs of a cache: begun, planned, staged lot by lot, paused while there is no room, ended."""

import logging
from collections.abc import Iterator
from functools import partial
from typing import Final

import numpy as np

from stager.cache.cache import Cache
from stager.cache.dataset import Dataset
from stager.config import PLAN_SAMPLES, PLAN_SCAN_S
from stager.dispatch.events import Beside
from stager.dispatch.task import Lot
from stager.dispatch.tasks import Tasks
from stager.errors import CacheError, StagerError, UsageError, known_error
from stager.jobs.job import Job, Request
from stager.jobs.plan import NOTHING_TO_DO, make_plan
from stager.reader.record import DatasetSpec
from stager.reader.samples.manifest import Manifest
from stager.reader.samples.runs import is_among
from stager.reader.samples.subset import Drawn, Subset, draw
from stager.reader.values import Mask, Numbers
from stager.recipes import open_recipe
from stager.scan.scan import Scan
from stager.worker.messages import NOTHING_BUILT, Built

log = logging.getLogger("stager")

ENDED_JOBS_KEPT: Final = 100
NO_ROOM_S: Final = 1.0
ENDS_MAX: Final = 2  # of the service, by one job: then it is not taken up again


class JobQueue:
    """All jobs that are under way, and the last ones that ended."""

    def __init__(self, cache: Cache, tasks: Tasks, beside: Beside) -> None:
        self.cache, self._tasks, self._beside = cache, tasks, beside
        self.by_id: dict[int, Job] = {}
        self._no_room_until = 0.0
        self._ends: dict[int, int] = {}  # how often each job that was taken up again has ended the service

    # Begin and end

    def submit(self, request: Request) -> Job:
        """Start a job. Its scan, plan and shards follow."""
        if request.stop_after:  # stages nothing, so there is nothing to take up again: not recorded
            job_id = min((*self.by_id, 0)) - 1
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
            self._ends[job_id] = note.get("ends", 0)
            if self._ends[job_id] >= ENDS_MAX:
                self.end(Job(job_id, request), "failed", _deadly(job_id))
                continue
            log.info("job resumed id=%d dataset=%s", job_id, request.spec.name)
            self._begin(self._new(job_id, request))

    def _new(self, job_id: int, request: Request) -> Job:
        return Job(job_id, request, began_at=self.cache.clock.now())

    def restage(self, dataset: Dataset, samples: Numbers) -> Job:
        """Stage these samples again, as a job of its own."""
        request = Request(dataset.spec, Subset(), "auto", is_local=True)
        job = self._new(self.cache.catalog.add_job(dataset.name, request.to_json()), request)
        job.state, job.dataset, job.is_drawn = "staging", dataset, True
        job.format, job.format_why = dataset.choose_format("auto")
        job.wait_for(samples)
        job.wanted, job.plan, job.staging_at = len(samples), NOTHING_TO_DO, self.cache.clock.now()
        self.by_id[job.id] = job
        return job

    def cancel(self, job: Job, finish: bool = False) -> None:
        """End a job; with `finish`, once the shards under way for it are in. What it staged stays."""
        if job.ended:
            return
        job.stops = finish
        if finish and job.dataset is not None:
            self._settle(job)
        else:
            self.end(job, "cancelled")

    def stop(self) -> None:
        """End all. Those of a service are taken up at its next start."""
        for job in self._open():
            self.end(job, "cancelled", goes_on=not job.request.is_local)

    def end(self, job: Job, state: str, error: StagerError | None = None, goes_on: bool = False) -> None:
        job.state, job.error, job.paused, job.ended_at = state, error, None, self.cache.clock.now()
        self._tasks.forget_scan(job.id)
        if not job.request.stop_after and not goes_on:
            try:
                self.cache.catalog.end_job(job.id, state, job.to_json(job.ended_at))
            except CacheError as problem:  # a full disk, most likely: the next start takes the job up again
                log.error("job not recorded id=%d error=%r", job.id, problem.message)
        log.info("job ended %s", job.told())
        job.let_go()

    def fail(self, dataset: Dataset, samples: Numbers, error: StagerError) -> None:
        """Samples cannot be staged, through no fault of theirs: end the jobs that wait for them."""
        for job in self._open(dataset):
            if job.is_waiting_for(samples).any():
                self.end(job, "failed", error)

    def _begin(self, job: Job) -> Job:
        self.by_id[job.id] = job
        for old in [known for known in self.by_id.values() if known.ended][:-ENDED_JOBS_KEPT]:
            del self.by_id[old.id]
        job.state = "scanning"
        known = self._scanned_lately(job.request) if job.request.stop_after == "plan" else None
        if known is None:
            self._tasks.scan(job.id, job.request.spec)
            return job
        try:
            job.scanned = len(known.manifest)
            self._work_out(job, known)
        except StagerError as error:
            self.end(job, "failed", error)
        return job

    def _scanned_lately(self, request: Request) -> Dataset | None:
        """The data set, if a scan of it is so fresh that a plan, which is an estimate, needs no other."""
        known = self.cache.datasets.get(request.spec.name)
        if known is None or known.spec != request.spec:
            return None
        (row,) = [row for row in self.cache.catalog.datasets() if row.id == known.id]
        return known if 0 <= self.cache.clock.wall() - row.scanned_at < PLAN_SCAN_S else None

    def _open(self, dataset: Dataset | None = None) -> Iterator[Job]:
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
        return {job.id for job in self._open()}

    # Scan and plan

    def scanned(self, job: Job, scan: Scan, left_out: str) -> None:
        """A scan is done: the job's samples are known, and with them what is missing."""
        job.scanned = scan.read_joins().samples
        job.left_out = left_out
        if not job.scanned:  # a mount that is gone looks like this: what is staged of it stays
            scan.unlink()
            raise self._nothing_there(job.request.spec)
        if not self.cache.fits(job.request.spec, scan) or not self._tasks.may_adopt(
            scan, job.request.spec.name
        ):
            scan.unlink()
            self._tasks.scan(job.id, job.request.spec)
            return
        self._adopt(job, scan)

    def _nothing_there(self, spec: DatasetSpec) -> UsageError:
        kind = open_recipe(spec.recipe).takes
        hint = f"the layout {spec.layout} found none"
        if spec.layout == "folder":
            hint = f"the folder layout wants CLASS/NAME{(*kind.endings, '')[0]} below the source"
        return UsageError(f"{spec.source.url}: no {kind.many} there", hint=hint)

    def _adopt(self, job: Job, scan: Scan) -> None:
        dataset, job.changed = self.cache.adopt(job.request.spec, scan)
        for other in self._open():
            if other is not job and other.dataset is not None and other.dataset.name == dataset.name:
                self._draw(other, other.dataset)
        if job.request.stop_after == "scan":
            self.end(job, "done")
            return
        self._work_out(job, dataset)

    def _work_out(self, job: Job, dataset: Dataset) -> None:
        """Find out which samples the job wants; the rest follows when that is known."""
        job.begin(dataset)
        self._draw(job, dataset)

    def _draw(self, job: Job, dataset: Dataset) -> None:
        """Draw the job's subset, beside the loop: `where` may take seconds of a million samples.

        While the service works for one job alone, the catalog says so: if that ends us, it is on record.
        """
        if self._is_recorded(job):
            self.cache.catalog.note_job(job.id, {"ends": self._ends.pop(job.id, 0) + 1})
        manifest, subset = dataset.manifest, job.request.subset
        self._beside.do(lambda: draw(manifest, subset), partial(self._drawn, job, dataset, manifest))

    def _drawn(self, job: Job, dataset: Dataset, manifest: Manifest, drawn: Drawn | Exception) -> None:
        """What a job wants is known. If it has been scanned again meanwhile, that is drawn, too."""
        if job.ended or manifest is not dataset.manifest:
            return
        try:
            if isinstance(drawn, Exception):
                raise drawn
            was_drawn = job.is_drawn
            job.want(self.cache, dataset, drawn)
            self._settle(job) if was_drawn else self._measure(job, dataset)
        except Exception as caught:  # a bug that one job runs into must not end all others
            error = known_error(caught, str(self.cache.directory))
            if not isinstance(caught, StagerError | OSError):
                log.exception("job failed id=%d", job.id)
            self.end(job, "failed", error)
        if self._is_recorded(job) and not job.ended:
            self.cache.catalog.note_job(job.id, {})

    def _measure(self, job: Job, dataset: Dataset) -> None:
        """Have a few of the missing samples staged and measured, for the plan."""
        if not job.left:
            job.plan = NOTHING_TO_DO
            self._settle(job)
            return
        job.state, job.staging_at = "planning", self.cache.clock.now()
        self._check_fit(job)
        places = np.linspace(0, len(job.queue) - 1, min(PLAN_SAMPLES, len(job.queue))).astype(np.int64)
        picked = job.queue[places]
        picked = picked[job.is_waiting_for(picked) & ~self._tasks.in_flight(dataset)[picked]]
        if len(picked):
            stage = self._tasks.measure if job.request.stop_after else self._tasks.build
            stage(Lot(dataset, picked, job.format), job.id)
        else:
            self.planned(job, NOTHING_BUILT)  # another job stages them just now

    def planned(self, job: Job, built: Built) -> None:
        """A few samples of a job are in: now its price can be told."""
        assert job.dataset is not None
        job.plan = make_plan(
            built,
            samples=job.left,
            cost=job.dataset.records.cost(job.queue),
            row_bytes=job.dataset.row_bytes,
            room_bytes=self.cache.budget.room_bytes(),
            workers=self._tasks.pool.size,
            threads=self._tasks.pool.threads,
        )
        if job.request.stop_after:
            self.end(job, "done")
            return
        self._check_fit(job)
        job.state = "staging"
        self._settle(job)

    def _is_recorded(self, job: Job) -> bool:
        """Whether a start takes the job up again."""
        return not (job.request.stop_after or job.request.is_local)

    def _check_fit(self, job: Job) -> None:
        """Refuse, before it starts, what cannot fit."""
        assert job.dataset is not None
        if self._tasks.knows_row_bytes(job.dataset) and not job.request.stop_after:
            missing = job.left - int(job.is_waiting_for(self._cared_for(job.dataset)).sum())
            need_bytes = int(missing * self._tasks.mean_row_bytes(job.dataset))
            if need_bytes > self.cache.budget.room_bytes():
                raise self.cache.budget.refusal(need_bytes)

    # Staging

    def next_lot(self) -> Lot | None:
        """The next samples of the oldest job that has any and room for them."""
        for job in self._open():
            if (
                job.state != "staging"
                or job.stops
                or job.dataset is None
                or not self._has_room(job, job.dataset)
            ):
                continue
            count = self._tasks.samples_that_fit(job.dataset, job.shard_samples, job.format)
            samples = job.take(count, partial(self._is_cared_for, job.dataset))
            if len(samples):
                job.shard_samples = min(job.shard_samples * 2, self._tasks.shard_samples_max(job.dataset))
                return self._tasks.together(Lot(job.dataset, samples, job.format), job.is_waiting_for)
        return None

    def _has_room(self, job: Job, dataset: Dataset) -> bool:
        """Whether a sample more fits. If not: another program has filled the disk, and the job pauses."""
        budget = self.cache.budget
        fits = self._tasks.samples_that_fit(dataset, 1, job.format)
        if fits and self.cache.clock.now() > self._no_room_until:
            if job.paused:
                log.info("job goes on id=%d", job.id)
            job.paused = None
            return True
        size_bytes = self._tasks.bytes_for(dataset, 1, job.format)
        if budget.is_spent(size_bytes):
            if not budget.reserved_bytes:  # waiting brings nothing: only somebody who evicts could help
                self.end(job, "failed", budget.refusal(size_bytes))
            return False
        if not job.paused:
            job.paused = budget.refusal(size_bytes)
            log.warning("job paused id=%d error=%r", job.id, job.paused.message)
        return False

    def wait_for_room(self) -> None:
        """A write found the disk full, whatever was reckoned: go on a little later."""
        self._no_room_until = self.cache.clock.now() + NO_ROOM_S

    def left(self, dataset: Dataset, samples: Numbers, staged_bytes: int = 0) -> None:
        """Samples have come to their end, staged or failed: count them for every job that waits for them."""
        for job in self._open(dataset):
            if staged_bytes:
                dataset.heat.asked(samples[job.is_waiting_for(samples)], self.cache.clock.wall())
            job.count_off(samples, staged_bytes)
            self._settle(job)

    def _settle(self, job: Job) -> None:
        """End a job that waits for nothing more."""
        if job.stops and job.dataset is not None:
            job.wait_only_for(self._cared_for(job.dataset))
            if not job.ended and not job.left:
                self.end(job, "cancelled")
        elif not job.ended and job.plan is not None and not job.left:
            self.end(job, "done")

    # Small facts

    # These look at the samples in question: each is asked for every shard, or for every reader that waits.

    def waiting(self, dataset: Dataset, samples: Numbers) -> Mask:
        """Which of these samples jobs wait for."""
        mask = np.zeros(len(samples), dtype=np.bool_)
        for job in self._open(dataset):
            mask |= job.is_waiting_for(samples)
        return mask

    def datasets(self, besides: Job | None = None) -> set[int]:
        """The ids of data sets that have jobs under way."""
        return {job.dataset.id for job in self._open() if job.dataset is not None and job is not besides}

    def wanted(self, dataset: Dataset, samples: Numbers) -> Mask:
        """Which of these samples jobs are staging, or have staged so far."""
        mask = np.zeros(len(samples), dtype=np.bool_)
        for job in self._open(dataset):
            mask |= is_among(samples, job.numbers)
        return mask

    def _is_cared_for(self, dataset: Dataset, samples: Numbers) -> Mask:
        """Which of these samples are staged, or being staged."""
        return self._tasks.in_flight(dataset)[samples] | self.cache.kept(dataset, samples)

    def _cared_for(self, dataset: Dataset) -> Numbers:
        """All samples that are staged, or being staged."""
        here = dataset.index.used()
        return np.union1d(here[self.cache.kept(dataset, here)], self._tasks.samples_in_flight(dataset))


def _deadly(job_id: int) -> StagerError:
    return StagerError(
        f"job {job_id} ended the service {ENDS_MAX} times, and is not taken up again",
        hint="ask for less, or run it again; and report it, with the service's log",
    )
