"""The one loop that owns all state: it hears of jobs, readers and workers, decides, and acts."""

import logging
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from stager.cache import Cache, Dataset, Failure
from stager.catalog import ShardRow
from stager.check import drop_bad_shards
from stager.config import PLAN_SAMPLES, SHARD_BYTES
from stager.durable import Durable, DurableQueue
from stager.errors import CacheError, NoService, NoSpace, StagerError, UsageError, known_error
from stager.events import Events
from stager.index import is_failed, is_resident
from stager.job import Job, Mask, Request
from stager.manifest import Manifest
from stager.model import Numbers
from stager.plan import NOTHING_TO_DO, make_plan
from stager.sessions import Sessions
from stager.subset import Subset
from stager.tasks import Outcome, Piece, Task, Tasks
from stager.transients import Transients
from stager.wants import Wants
from stager.why import reasons_of
from stager.workers import Answer

log = logging.getLogger("stager")

WANT_SHARD_SAMPLES: Final = 64  # a waiting reader's samples are spread over all workers
SHARD_SAMPLES_MAX: Final = 4096
NOT_YET_DURABLE_MAX: Final = 8  # shards that wait for the disk; then staging waits, too
ENDED_JOBS_KEPT: Final = 100
STOP_S: Final = 10.0
NONE: Final = np.zeros(0, dtype=np.int64)


class Staging:
    """Everything a cache is asked to stage. All of it belongs to the loop's thread."""

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self.jobs: dict[int, Job] = {}
        self.stopping = False
        self.events = Events()
        self._transients = Transients(cache)
        self._tasks = Tasks(cache, self._transients, self.events)
        self._wants = Wants()
        self.sessions = Sessions()
        self._disk = DurableQueue(cache, self.events)

    # The loop

    def step(self, timeout_s: float) -> None:
        """Take what has come in, and give out what can be done now."""
        for event in self.events.take(timeout_s):
            self._handle(event)
        for outcome in self._tasks.stalled():
            self._ended(outcome)
        self.sessions.end_silent()
        self._transients.drop_passed(self.sessions)
        while not self.stopping and self._dispatch():
            pass
        self._wants.answer()

    def _handle(self, event: Answer | Durable) -> None:
        if isinstance(event, Durable):
            self._durable(event)
        elif event.message is None:
            for outcome in self._tasks.worker_died(event.worker):
                self._ended(outcome)
        else:
            answered = self._tasks.answered(event.worker, event.message)
            if answered is not None:
                self._ended(answered)

    def warm_up(self) -> None:
        """Have workers ready before the first task."""
        self._tasks.pool.start()

    def stop(self) -> None:
        """Stop staging; finish what has been built. Jobs of a service stay, and go on at the next start."""
        self.stopping = True
        self._tasks.stop()
        deadline = time.monotonic() + STOP_S
        while len(self._disk) and time.monotonic() < deadline:
            self.step(0.1)
        self._wants.fail_all(NoService("the service is stopping", hint="start it again: stager serve"))
        for job in self.jobs.values():
            if not job.ended:
                self._end(job, "cancelled")
        self._disk.stop()
        self._transients.close()
        for path in self.cache.scratch.iterdir():
            path.unlink(missing_ok=True)

    # Jobs

    def submit(self, request: Request) -> Job:
        """Start a job. Its scan, plan and shards follow in the loop."""
        if request.stop_after:  # stages nothing, so there is nothing to take up again: not recorded
            job_id = min((*self.jobs, 0)) - 1
        else:
            job_id = self.cache.catalog.add_job(request.spec.name, request.to_json())
        return self._begin(Job(job_id, request))

    def resume(self) -> None:
        """Take up the jobs that a stop or a crash of the service cut off."""
        for job_id, _, value in self.cache.catalog.unfinished_jobs():
            request = Request.from_json(value)
            if request.is_local:
                self.cache.catalog.end_job(job_id, "cancelled", Job(job_id, request, "cancelled").to_json())
                continue
            log.info("job resumed id=%d dataset=%s", job_id, request.spec.name)
            self._begin(Job(job_id, request))

    def cancel(self, job: Job) -> None:
        """End a job. What it staged stays."""
        if not job.ended:
            self._end(job, "cancelled")

    def restage(self, dataset: Dataset, samples: Numbers) -> Job:
        """Stage these samples again, as a job of its own."""
        request = Request(dataset.spec, Subset(), "auto", is_local=True)
        job = Job(self.cache.catalog.add_job(dataset.name, request.to_json()), request, "staging", dataset)
        job.format, job.format_why = dataset.choose_format("auto")
        job.wait_for(samples, len(dataset.manifest))
        job.wanted, job.plan, job.staging_at = len(samples), NOTHING_TO_DO, time.monotonic()
        self.jobs[job.id] = job
        return job

    def under_way(self, job: Job) -> int:
        """Samples of a job that are prepared but not yet durable."""
        if job.dataset is None:
            return 0
        return self._tasks.under_way(job.dataset) + self._disk.samples(job.dataset)

    def paths_under_way(self) -> set[Path]:
        """Files that may be there and that the catalog does not have yet."""
        return self._tasks.paths() | self._disk.paths() | self._transients.links()

    def _begin(self, job: Job) -> Job:
        self.jobs[job.id] = job
        for old in [known for known in self.jobs.values() if known.ended][:-ENDED_JOBS_KEPT]:
            del self.jobs[old.id]
        job.state = "scanning"
        self._tasks.scan(job)
        return job

    def _end(self, job: Job, state: str, error: StagerError | None = None) -> None:
        job.state, job.error, job.ended_at = state, error, time.monotonic()
        goes_on = self.stopping and not job.request.is_local
        if not job.request.stop_after and not goes_on:
            try:
                self.cache.catalog.end_job(job.id, state, job.to_json())
            except CacheError as problem:  # a full disk, most likely: the next start takes the job up again
                log.error("job not recorded id=%d error=%r", job.id, problem.message)
        log.info("job ended %s", job.told())

    def _scanned(self, job: Job, path: Path) -> None:
        """A scan is done: the job's samples are known, and with them what is missing."""
        if not len(Manifest.open(path)):  # a mount that is gone looks like this: what is staged of it stays
            path.unlink()
            raise UsageError(
                f"{job.request.spec.source.url}: no images there",
                hint="the folder layout wants CLASS/NAME.jpg below the source",
            )
        dataset = self.cache.adopt(job.request.spec, path)
        for other in self.jobs.values():
            if not other.ended and other.dataset is not None and other.dataset.name == dataset.name:
                self._draw_again(other, dataset)
        if job.request.stop_after == "scan":
            self._end(job, "done")
            return
        job.draw(self.cache, dataset)
        if not len(job.queue):
            job.plan = NOTHING_TO_DO
            self._settle(job)
            return
        job.state, job.staging_at = "planning", time.monotonic()
        self._check_fit(job)
        places = np.linspace(0, len(job.queue) - 1, min(PLAN_SAMPLES, len(job.queue))).astype(np.int64)
        picked = job.queue[places]
        picked = picked[~self._tasks.in_flight(dataset)[picked]]
        if len(picked):
            self._tasks.build(Piece(dataset, picked, job.format), plan_of=job)
        else:
            self._planned(job, {"samples": []})  # another job stages them just now

    def _draw_again(self, job: Job, dataset: Dataset) -> None:
        """Another scan has come in, and numbers may have moved."""
        try:
            job.draw(self.cache, dataset)
        except StagerError as error:
            self._end(job, "failed", error)

    def _check_fit(self, job: Job) -> None:
        """Refuse, before it starts, what cannot fit."""
        assert job.dataset is not None
        if self._tasks.knows_row_bytes(job.dataset) and not job.request.stop_after:
            need_bytes = int(len(job.queue) * self._tasks.mean_row_bytes(job.dataset))
            if need_bytes > self.cache.budget.room_bytes():
                raise self.cache.budget.refusal(need_bytes)

    def _planned(self, job: Job, sample: Mapping[str, Any]) -> None:
        """A few samples of a job are in: now its price can be told."""
        assert job.dataset is not None
        job.plan = make_plan(
            sample,
            source_sizes=job.dataset.manifest.sizes[job.queue],
            row_bytes=job.dataset.row_bytes,
            room_bytes=self.cache.budget.room_bytes(),
            workers=self._tasks.pool.size,
            threads=self._tasks.pool.threads,
        )
        if job.request.stop_after:
            self._end(job, "done")
            return
        self._check_fit(job)
        job.state = "staging"
        self._settle(job)

    def _settle(self, job: Job) -> None:
        """End a job that waits for nothing more."""
        if not job.ended and job.plan is not None and not job.waiting.any():
            self._end(job, "done")

    # Readers

    def want(
        self, dataset: Dataset, samples: Numbers, corrupt: Numbers, wait_s: float
    ) -> "Future[dict[str, Any]]":
        """Stage these before all else; the answer comes when they are resident, or when time is up."""
        drop_bad_shards(self.cache, dataset, corrupt)
        words = dataset.index.words[samples]
        missing = samples[~is_resident(words) & ~is_failed(words)]
        reasons = reasons_of(dataset, missing.tolist(), self.planned(dataset), self.has_room(dataset))
        for at in range(0, len(missing), WANT_SHARD_SAMPLES):
            part = missing[at : at + WANT_SHARD_SAMPLES]
            self._tasks.put_urgent(Piece(dataset, part, dataset.choose_format("auto")[0], for_reader=True))
        return self._wants.add(dataset, reasons, wait_s)

    def last_miss(self, dataset: Dataset, number: int) -> dict[str, Any] | None:
        return self._wants.last.get((dataset.id, number))

    def has_room(self, dataset: Dataset) -> bool:
        return self._tasks.samples_that_fit(dataset, 1) > 0

    def planned(self, dataset: Dataset) -> Mask:
        """Which samples a task, a job or a reader's order has."""
        planned = self._tasks.in_flight(dataset).copy()
        for job in self.jobs.values():
            if job.dataset is dataset and not job.ended:
                planned |= job.waiting
        planned[self.sessions.expected(dataset)] = True
        return planned

    # Tasks

    def _dispatch(self) -> bool:
        """Give out one task: what readers wait for, what they need soon, the oldest job. False: nothing."""
        tasks = self._tasks
        if tasks.pool.free_slots() <= 0 or tasks.must_wait or len(self._disk) >= NOT_YET_DURABLE_MAX:
            return False
        if piece := tasks.next_suspect() or tasks.next_urgent():
            self._build(piece)
            return True
        for session in self.sessions.by_need():
            dataset, largest = session.dataset, self._shard_samples_max(session.dataset)
            if not tasks.samples_that_fit(dataset, 1):
                largest = self._transients.samples_ahead(tasks.bytes_for(dataset, 1))
            samples = session.ahead(tasks.in_flight(dataset), largest) if largest else NONE
            if len(samples):
                self._build(Piece(dataset, samples, dataset.choose_format("auto")[0], for_reader=True))
                return True
        for job in self.jobs.values():
            if job.state != "staging" or job.dataset is None:
                continue
            in_flight, words = self._tasks.in_flight(job.dataset), job.dataset.index.words
            samples = job.take(job.shard_samples, in_flight, words)
            if len(samples):
                job.shard_samples = min(job.shard_samples * 2, self._shard_samples_max(job.dataset))
                self._build(Piece(job.dataset, samples, job.format))
                return True
        return False

    def _shard_samples_max(self, dataset: Dataset) -> int:
        return max(1, min(int(SHARD_BYTES / self._tasks.mean_row_bytes(dataset)), SHARD_SAMPLES_MAX))

    def _build(self, piece: Piece) -> None:
        """Give out a shard. What a reader needs and the budget has no room for goes through memory."""
        fit = self._tasks.samples_that_fit(piece.dataset, len(piece.samples))
        try:
            if fit == len(piece.samples) or not piece.for_reader:
                self._tasks.build(piece)
                return
            if fit:
                self._tasks.build(replace(piece, samples=piece.samples[:fit]))
            self._tasks.build(replace(piece, samples=piece.samples[fit:]), is_transient=True)
        except NoSpace as error:
            self._give_up(piece.dataset, piece.samples, error)

    def _ended(self, outcome: Outcome) -> None:
        """A task is over: its job, and everyone who waits for its samples, hears of it."""
        task = outcome.task
        try:
            if outcome.error is not None:
                raise outcome.error
            if task.dataset is not None:
                self._built(task, outcome.result)
            elif task.job is not None and task.path is not None:
                self._scanned(task.job, task.path) if not task.job.ended else task.path.unlink()
        except Exception as caught:  # a bug that one job runs into must not end all others
            error = known_error(caught, str(self.cache.directory))
            if not isinstance(caught, StagerError | OSError):
                log.exception("task failed id=%d dataset=%s", task.id, task.spec.name)
            if task.job is not None and not task.job.ended:
                self._end(task.job, "failed", error)
            if task.dataset is not None:
                self._give_up(task.dataset, task.samples, error)

    def _give_up(self, dataset: Dataset, samples: Numbers, error: StagerError) -> None:
        """These samples cannot be staged now, through no fault of theirs: end what needs them."""
        log.warning(
            "staging failed dataset=%s samples=%d error=%r", dataset.name, len(samples), error.message
        )
        self._end_those_waiting(dataset, samples, error)
        self._wants.fail(dataset, samples, error)

    def _end_those_waiting(self, dataset: Dataset, samples: Numbers, error: StagerError) -> None:
        for job in self.jobs.values():
            if job.dataset is dataset and not job.ended and job.waiting[samples].any():
                self._end(job, "failed", error)

    def _built(self, task: Task, result: Mapping[str, Any]) -> None:
        """A shard is complete under its final name (or was only measured)."""
        assert task.dataset is not None
        dataset = self.cache.datasets[task.dataset.name]
        if task.path is not None:
            if dataset.record.recipe != task.dataset.record.recipe:
                task.path.unlink(missing_ok=True)  # the recipe has changed meanwhile
                return
            now = task.dataset.manifest.numbers_in(dataset.manifest)
            if result["samples"]:
                samples = now[np.asarray(result["samples"], dtype=np.int64)]
                self._publish(dataset, task, samples, result["size_bytes"])
            failures = [Failure(int(now[at]), *why) for at, *why in result["failed"] if now[at] >= 0]
            self.cache.record_failures(dataset, failures)
            self._left(dataset, np.asarray([failure.sample for failure in failures], dtype=np.int64))
        self.cache.catalog.count_origin(dataset.id, result["reads"], result["read_bytes"])
        if task.job is not None and not task.job.ended:
            self._planned(task.job, result)

    def _publish(self, dataset: Dataset, task: Task, samples: Numbers, size_bytes: int) -> None:
        """Show a shard to the readers at once; make it durable right behind."""
        row = ShardRow(task.shard, dataset.id, task.format, size_bytes, samples, False, time.time())
        if task.is_transient:
            self._transients.publish(dataset, row)
            self._end_those_waiting(dataset, samples, self.cache.budget.refusal(size_bytes))
            return
        self.cache.budget.settle(0, row.bytes)
        self.cache.publish(dataset, row)
        self._disk.add(dataset, row)

    def _durable(self, event: Durable) -> None:
        """Only now the shard counts as staged."""
        row = event.row
        self._disk.done(event)
        dataset = self.cache.datasets[event.dataset.name]
        if dataset.record.recipe != event.dataset.record.recipe:
            dataset = event.dataset  # the name has another recipe by now: the shard belongs to the old one
        elif dataset is not event.dataset:  # a new manifest came in between
            now = event.dataset.manifest.numbers_in(dataset.manifest)
            row = replace(row, samples=np.where(row.samples < 0, -1, now[row.samples]))
            self.cache.publish(dataset, row)
        samples = row.samples[row.samples >= 0]
        try:
            if event.error is not None:  # never sync again: the kernel may call lost pages clean
                told = f"{self.cache.directory}: the disk failed: {event.error.strerror}"
                raise CacheError(told, hint="check the disk, then run it again")
            self.cache.catalog.add_shard(row)
        except CacheError as error:
            self.cache.drop_unrecorded(dataset, row)
            self._give_up(dataset, samples, error)
            return
        about = (dataset.name, row.number, len(samples), row.bytes)
        log.info("shard staged dataset=%s shard=%08x samples=%d bytes=%d", *about)
        self._left(dataset, samples, row.bytes)

    def _left(self, dataset: Dataset, samples: Numbers, staged_bytes: int = 0) -> None:
        """Samples have come to their end, staged or failed: count them for every job that waits for them."""
        for job in self.jobs.values():
            if job.dataset is dataset and not job.ended:
                job.count_off(samples, staged_bytes)
                self._settle(job)
