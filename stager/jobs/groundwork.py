"""What comes before a job stages: its scan, what has changed, the samples it wants, its plan."""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from stager.cache.cache import Cache
from stager.cache.dataset import Dataset
from stager.config import PLAN_SAMPLES, PLAN_SAMPLES_MADE, PLAN_SCAN_S
from stager.dispatch.events import Beside
from stager.dispatch.task import Lot
from stager.dispatch.tasks import Tasks
from stager.errors import NoSpace, StagerError, known_error
from stager.jobs import rate
from stager.jobs.crowd import PLANNING, crowding
from stager.jobs.job import Job, Request
from stager.jobs.plan import NOTHING_TO_DO, Evicted, make_plan, spread
from stager.jobs.refusals import nothing_there, too_much_gone
from stager.reader.samples.changes import Changes, compare
from stager.reader.samples.manifest import Manifest
from stager.reader.samples.subset import Drawn, draw
from stager.reader.values import Numbers
from stager.scan.scan import NOTHING_KNOWN, Scan
from stager.worker.messages import NOTHING_BUILT, Built, Scanned

log = logging.getLogger("stager")


class Jobs(Protocol):
    """What is done with jobs whose groundwork is over."""

    def open(self) -> Iterator[Job]: ...
    def end(self, job: Job, state: str, error: StagerError | None = None) -> None: ...
    def settle(self, job: Job) -> None: ...


class Room(Protocol):
    """Who makes room by what is needed latest."""

    def coldest(self, size_bytes: int) -> Mapping[Dataset, Any] | None:
        """What would go for so many bytes: `samples` and `bytes` of each data set; None: not so much may."""

    def give_up(self, going: Mapping[Dataset, Any], why: str) -> None: ...


class Groundwork:
    """Takes each job from its request to its plan. `room`: set before the first job."""

    room: Room

    def __init__(self, cache: Cache, tasks: Tasks, beside: Beside, jobs: Jobs) -> None:
        self.cache, self._tasks, self._beside, self._jobs = cache, tasks, beside, jobs
        self.ends: dict[int, int] = {}  # how often each job that was taken up again has ended the service
        self._compared_now: list[Scan] = []
        self.adopted_by: list[Callable[[Job, bool], None]] = []  # who hears of a new version: see `_adopt`

    def begin(self, job: Job) -> None:
        """Look at the source; for a plan, a scan of a moment ago does."""
        job.state = "scanning"
        known = self._scanned_lately(job.request) if job.request.stop_after == "plan" else None
        if known is None:
            self._tasks.scan(job.id, job.request.spec, job.request.is_awaited, job.request.relist)
            return
        try:
            job.scanned = len(known.manifest)
            self._work_out(job, known)
        except StagerError as error:
            self._jobs.end(job, "failed", error)

    def _scanned_lately(self, request: Request) -> Dataset | None:
        """The data set, if a scan of it is so fresh that a plan, which is an estimate, needs no other."""
        known = self.cache.datasets.get(request.spec.name)
        if known is None or known.spec != request.spec:
            return None
        (row,) = [row for row in self.cache.catalog.datasets() if row.id == known.id]
        return known if 0 <= self.cache.clock.wall() - row.scanned_at < PLAN_SCAN_S else None

    def scanned(self, job: Job, scan: Scan, told: Scanned) -> None:
        """A scan is done: the job's samples are known, and with them what is missing."""
        job.take_scan(scan.read_joins().samples, told)
        if not job.scanned:  # a mount that is gone looks like this: what is staged of it stays
            scan.unlink()
            raise nothing_there(job.request.spec, told)
        job.request = job.request.keyed(told.recipe)
        if not self._fits(job, scan):
            self._scan_again(job, scan)
        elif job.request.refresh:
            known = self.cache.known(job.request.spec.name)
            newest, records = (known.manifest, known.records) if known else (None, NOTHING_KNOWN.records)
            self._compared_now.append(scan)
            self._beside.do(lambda: _compare(newest, scan.open(records)), partial(self._compared, job, scan))
        else:
            self._adopt(job, scan)

    def _fits(self, job: Job, scan: Scan) -> bool:
        """Whether a scan can be adopted: nobody has adopted another one since it was begun."""
        spec = job.request.spec
        return self.cache.fits(spec, scan) and self._tasks.may_adopt(scan, spec.name)

    def _scan_again(self, job: Job, scan: Scan) -> None:
        scan.unlink()
        self._tasks.scan(job.id, job.request.spec, job.request.is_awaited, job.request.relist)

    def _compared(self, job: Job, scan: Scan, found: tuple[Changes, str] | Exception) -> None:
        """What has changed at the source is known: take it, if that is what was asked for."""
        self._compared_now.remove(scan)
        error: StagerError | None = None
        if isinstance(found, Exception):
            error = known_error(found, str(self.cache.directory))
        elif not job.ended and self._is_known(job.request, found[1]):
            job.diff = found[0]
        elif not job.ended:
            (diff, _), asked = found, job.request.refresh
            job.diff = diff
            if asked == "take_removals" or (asked == "take" and not diff.is_suspect):
                self._adopt(job, scan) if self._fits(job, scan) else self._scan_again(job, scan)
                return
            error = None if asked == "look" else too_much_gone(job.request.spec.name, diff)
        scan.unlink()
        if not job.ended:
            self._jobs.end(job, "failed" if error else "done", error)

    def _is_known(self, request: Request, digest: str) -> bool:
        """Whether a watch has found what is known, so that nothing is to be done.

        A look at everything, as at a start, also stages what had changed before and was not staged since.
        """
        known = self.cache.datasets.get(request.spec.name)
        if request.relist is None or known is None or known.manifest.digest != digest:
            return False
        return request.refresh == "look" or request.relist.is_part or not len(self._outdated(known))

    def _outdated(self, dataset: Dataset) -> Numbers:
        """What was staged, has changed since, and is not staged anew."""
        old = dataset.departure_log.outdated()
        return old[dataset.manifest.has(old) & ~self.cache.kept(dataset, old)]

    def _adopt(self, job: Job, scan: Scan) -> None:
        """Take a new version, and tell of it; also whether a newer look was taken while this scan went on."""
        known = self.cache.known(job.request.spec.name)
        is_overtaken = known is not None and known.manifest.digest != scan.read_joins().newest
        dataset, job.changed = self.cache.adopt(job.request.spec, scan)
        for hear in self.adopted_by:
            hear(job, is_overtaken)
        for other in self._jobs.open():
            if other is job or other.dataset is None or other.dataset.name != dataset.name:
                continue
            if other.request.relist is not None and job.request.refresh:
                self._jobs.end(other, "cancelled")  # what it has left is staged by this one
            else:
                self._draw(other, other.dataset)
        if job.request.stop_after == "scan":
            self._jobs.end(job, "done")
        elif job.request.refresh:
            self.stage_only(job, dataset, self._outdated(dataset))
            self._jobs.settle(job)
        else:
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
            self.cache.catalog.note_job(job.id, {"ends": self.ends.pop(job.id, 0) + 1})
        if job.is_fixed:
            job.wait_only_for(job.numbers[dataset.manifest.has(job.numbers[:])])
            self._jobs.settle(job)
            return
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
            self._jobs.settle(job) if was_drawn else self._measure(job, dataset)
        except Exception as caught:  # a bug that one job runs into must not end all others
            error = known_error(caught, str(self.cache.directory))
            if not isinstance(caught, StagerError | OSError):
                log.exception("job failed id=%d", job.id)
            self._jobs.end(job, "failed", error)
        if self._is_recorded(job) and not job.ended:
            self.cache.catalog.note_job(job.id, {})

    def _measure(self, job: Job, dataset: Dataset) -> None:
        """Have a few of the missing samples staged and measured, for the plan."""
        if not job.left:
            job.plan = NOTHING_TO_DO
            self._jobs.settle(job)
            return
        job.state = "planning"
        if not job.request.stop_after:
            self._make_fit(job)
        picked = job.queue[spread(len(job.queue), PLAN_SAMPLES_MADE if dataset.is_made else PLAN_SAMPLES)]
        picked = picked[job.is_waiting_for(picked) & ~self._tasks.in_flight(dataset)[picked]]
        if len(picked):
            lot = Lot(dataset, picked, job.format)
            is_room_known = self._tasks.sizes.knows_row_bytes(dataset) or not job.request.evict_cold
            if job.request.stop_after or not is_room_known:
                self._tasks.measure(lot, job.id)
            else:
                whole = self._tasks.together(lot, job.is_waiting_for) if dataset.records.is_computed else lot
                self._tasks.build(whole, job.id)
        else:
            self.planned(job, NOTHING_BUILT)  # another job stages them just now

    def planned(self, job: Job, built: Built) -> None:
        """A few samples of a job are in: now its price can be told."""
        assert job.dataset is not None
        pool = self._tasks.pool
        plan = make_plan(
            built,
            samples=job.left,
            cost=job.dataset.records.cost(job.queue),
            row_bytes=job.dataset.row_bytes,
            room_bytes=self.cache.budget.room_bytes(),
            workers=pool.size,
            threads=pool.threads,
            slowdown=self.cache.catalog.slowdown() or rate.SLOWDOWN,
            crowding=crowding(job.crowd.others(PLANNING), pool.size * pool.threads),
        )
        self._make_fit(job)
        job.begin_staging(replace(plan, evicts=job.evicts), self.cache.clock.now())
        if job.request.stop_after:
            self._jobs.end(job, "done")
            return
        job.state = "staging"
        self._jobs.settle(job)

    def paths(self) -> set[Path]:
        """Files of scans that are being compared."""
        return {path for scan in self._compared_now for path in scan.paths}

    def _is_recorded(self, job: Job) -> bool:
        """Whether a start takes the job up again."""
        return job.request.is_recorded and not job.request.is_local

    def stage_only(self, job: Job, dataset: Dataset, samples: Numbers) -> None:
        """Have a job stage these samples, whatever becomes of its data set meanwhile."""
        job.state, job.dataset, job.is_drawn, job.is_fixed = "staging", dataset, True, True
        job.format, job.format_why = dataset.choose_format("auto")
        job.wait_for(samples)
        job.wanted = len(samples)
        job.begin_staging(NOTHING_TO_DO, self.cache.clock.now())

    def _make_fit(self, job: Job) -> None:
        """Refuse, before it starts, what cannot fit; or let go what is needed latest, if it was asked to.

        Of a plan, only say what would go.
        """
        assert job.dataset is not None
        if not self._tasks.sizes.knows_row_bytes(job.dataset):
            return
        missing = job.left - int(job.is_waiting_for(self.cared_for(job.dataset)).sum())
        need_bytes = int(missing * self._tasks.sizes.mean_row_bytes(job.dataset))
        room_bytes = self.cache.budget.room_bytes()
        if need_bytes <= room_bytes:
            return
        going = None
        if job.request.evict_cold:
            whole_bytes = self._tasks.sizes.bytes_for_all(job.dataset, missing, job.format)
            going = self.room.coldest(whole_bytes - room_bytes)
        if going is not None:
            job.evicts += tuple(
                Evicted(dataset.name, len(part.samples), part.bytes) for dataset, part in going.items()
            )
            if not job.request.stop_after:
                log.info("room made id=%d %s", job.id, job.evicts)
                self.room.give_up(going, f"by stager prefetch {job.dataset.name} --evict-cold")
        elif not job.request.stop_after:
            refused = self.cache.budget.refusal(need_bytes)
            more = "" if job.request.evict_cold else "; or --evict-cold, if others may go"
            raise NoSpace(refused.message, f"{refused.hint}{more}")

    def cared_for(self, dataset: Dataset) -> Numbers:
        """All samples that are staged, or being staged."""
        here = dataset.index.used()
        return np.union1d(here[self.cache.kept(dataset, here)], self._tasks.samples_in_flight(dataset))


def _compare(newest: Manifest | None, found: Manifest) -> tuple[Changes, str]:
    """What has changed since the newest version, and the digest of what is there now."""
    return compare(newest, found), found.digest
