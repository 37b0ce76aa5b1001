"""One request to stage something: what is asked, and how far it is."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from stager import errors
from stager.cache.cache import Cache
from stager.cache.dataset import Dataset
from stager.config import FIRST_SHARD_SAMPLES
from stager.errors import StagerError
from stager.jobs.crowd import Crowd
from stager.jobs.plan import Evicted, Plan
from stager.jobs.rate import rate_now, rate_then
from stager.reader.index import is_failed
from stager.reader.record import DatasetSpec
from stager.reader.samples.by_number import ByNumber
from stager.reader.samples.changes import Changes
from stager.reader.samples.runs import Collection, Runs, is_among
from stager.reader.samples.subset import Drawn, Subset
from stager.reader.values import Mask, Numbers
from stager.worker.messages import Relist, Scanned

ENDED = ("done", "failed", "cancelled")
LOOK_SAMPLES: Final = 16_384  # of a queue, at once
PASSED_PARTS: Final = 64


def nothing() -> Numbers:
    return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Request:
    """What a person asked for."""

    spec: DatasetSpec
    subset: Subset
    format: str  # auto | arrow | lmdb
    stop_after: str = ""  # "scan" or "plan": go no further
    is_local: bool = False  # asked of no service: ends with the command
    retry_failed: bool = False  # also samples that had failed for good
    evict_cold: bool = False  # what does not fit may take the place of what is needed latest
    refresh: str = ""  # "look": what has changed; "take": take it, and "take_removals": whatever is gone
    relist: Relist | None = None  # nobody asked: it is a look of the watch, at these folders

    @property
    def is_recorded(self) -> bool:
        """Whether it stages anything, so that a start takes it up again. A watch looks anew by itself."""
        return not self.stop_after and self.refresh != "look" and self.relist is None

    @property
    def is_awaited(self) -> bool:
        """Whether a reader waits for it, which wants to open the data set."""
        return self.stop_after == "scan"

    def to_json(self) -> dict[str, Any]:
        return {
            "spec": self.spec.to_json(),
            "subset": self.subset.to_json(),
            "format": self.format,
            "stop_after": self.stop_after,
            "is_local": self.is_local,
            "retry_failed": self.retry_failed,
            "evict_cold": self.evict_cold,
            "refresh": self.refresh,
        }

    def keyed(self, recipe: Mapping[str, Any] | None) -> "Request":
        """The same, by a recipe that has the code of its functions; None: it has no functions."""
        return replace(self, spec=replace(self.spec, recipe=recipe)) if recipe else self

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Request":
        """As the catalog has it; what older versions did not ask has its default."""
        return cls(
            DatasetSpec.from_json(value["spec"]),
            Subset.from_json(value["subset"]),
            value["format"],
            value["stop_after"],
            value["is_local"],
            value.get("retry_failed", False),
            value.get("evict_cold", False),
            value.get("refresh", ""),
        )


@dataclass(slots=True)
class Job:
    """A request on its way: queued, scanning, planning, staging, then done, failed or cancelled."""

    id: int
    request: Request
    state: str = "queued"
    dataset: Dataset | None = None
    is_drawn: bool = False  # what it wants of the data set is known
    is_fixed: bool = False  # and does not change with the data set's versions
    classes: tuple[str, ...] = ()
    saved_as: str = ""
    format: str = ""
    format_why: str = ""
    fields: tuple[str, ...] = ()  # of a sample, as people read them
    numbers: Collection = field(default_factory=nothing)  # of the subset, in rising order
    queue: Collection = field(default_factory=nothing)  # what it comes to, in this order
    cursor: int = 0
    left: int = 0  # samples that it waits for
    _ended: ByNumber = field(default_factory=lambda: ByNumber(np.bool_))  # those that it waits for no more
    _passed: list[Numbers] = field(default_factory=list)  # that it came to, and still waited for
    shard_samples: int = FIRST_SHARD_SAMPLES
    scanned: int = 0
    wanted: int = 0
    already: int = 0
    staged: int = 0
    failed: int = 0
    bytes: int = 0
    plan: Plan | None = None
    evicts: tuple[Evicted, ...] = ()  # what goes, or has gone, to make room
    error: StagerError | None = None
    stops: bool = False  # it was cancelled, and what is under way for it is still to come
    paused: StagerError | None = None  # while there is no room: why
    left_out: str = ""  # what the scan passed by, and why
    lacks_samples: bool = False  # among that is what should have been samples
    is_scanned: bool = False
    unripe: tuple[str, ...] = ()  # folders with files that somebody still wrote, which count later
    diff: Changes | None = None  # what a refresh has found at the source
    changed: Mapping[str, Any] | None = None  # what was staged before and does not count any more, and why
    began_at: float = 0.0
    staging_at: float = 0.0
    crowd: Crowd = field(default_factory=Crowd)  # on the cores, since it began, or since it stages
    ended_before: int = 0  # staged or failed when it began to stage: no part of its rate
    ended_at: float = 0.0

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    def take_scan(self, samples: int, told: Scanned) -> None:
        """How many samples there are, and what of the source is none."""
        self.scanned, self.left_out, self.lacks_samples = samples, told.left_out, told.lacks_samples
        self.is_scanned, self.unripe = True, told.unripe

    def begin(self, dataset: Dataset) -> None:
        """Its data set is known, and what it wants of it is being drawn."""
        self.dataset, self.fields = dataset, tuple(map(str, dataset.record.fields))
        self.wait_for(nothing())

    def want(self, cache: Cache, dataset: Dataset, drawn: Drawn) -> None:
        """Take what was drawn for what it wants, and find out what of it is missing."""
        numbers = queue = drawn.numbers
        if not isinstance(drawn.numbers, Runs):
            numbers, queue = np.sort(drawn.numbers), dataset.records.as_the_source_has(drawn.numbers)
        here = dataset.index.used()
        here = here[is_among(here, numbers)]
        cache.mend(dataset, here)  # or it would wait for what is there
        cache.forgive(dataset, numbers, everything=self.request.retry_failed and not self.is_drawn)
        failed, kept = is_failed(dataset.index.words[here]), cache.kept(dataset, here)
        self.is_drawn, self.classes = True, drawn.classes
        self.format, self.format_why = dataset.choose_format(self.request.format)
        self.saved_as = dataset.save_subset(self.request.subset, drawn.classes, cache.scratch)
        self.wait_for(numbers, queue, here[failed | kept])
        self.wanted, self.failed = len(numbers), int(failed.sum())
        self.already = self.wanted - self.failed - self.left - self.staged

    def wait_for(
        self, numbers: Collection, queue: Collection | None = None, ended: Numbers | None = None
    ) -> None:
        """Make these, in rising order, what the job wants. `queue`: the same, in the order to stage them.

        `ended`: those among them that it need not wait for.
        """
        ended = nothing() if ended is None else ended
        self.numbers, self.queue, self.cursor = numbers, numbers if queue is None else queue, 0
        self.left, self._passed, self._ended = len(numbers) - len(ended), [], ByNumber(np.bool_)
        self._ended[ended] = True
        if not isinstance(self.queue, Runs):
            self.queue = self.queue[~self._ended[self.queue]]

    def is_waiting_for(self, samples: Numbers) -> Mask:
        """Which of these samples it still waits for."""
        return np.asarray(is_among(samples, self.numbers) & ~self._ended[samples])

    def wait_only_for(self, samples: Numbers) -> None:
        """Of what it waits for, wait for these any more."""
        waiting = np.unique(samples[self.is_waiting_for(samples)])
        self.numbers, self.left = waiting, len(waiting)

    def take(self, count: int, is_cared_for: Callable[[Numbers], Mask]) -> Numbers:
        """The next samples that are neither staged nor being staged by anyone; moves on.

        It asks about those it comes to, and not about a whole data set for every shard.
        """
        if self.cursor >= len(self.queue):  # those that somebody else cared for may have come to nothing
            passed = np.concatenate([nothing(), *self._passed])
            self._passed = [passed := passed[self.is_waiting_for(passed)]]
            self.queue, self.cursor = passed[~is_cared_for(passed)], 0
        taken: list[Numbers] = []
        have, step = 0, count
        while have < count and self.cursor < len(self.queue):
            part = self.queue[self.cursor : self.cursor + step]
            waiting = self.is_waiting_for(part)
            places = np.flatnonzero(waiting & ~is_cared_for(part))[: count - have]
            taken.append(part[places])
            have += len(places)
            seen = len(part) if have < count else int(places[-1]) + 1
            self._pass(part[:seen][waiting[:seen]])
            self.cursor += seen
            step = min(2 * step, LOOK_SAMPLES)  # where much is resident, little steps would take long
        return np.concatenate([nothing(), *taken])

    def _pass(self, samples: Numbers) -> None:
        """Remember what it came to and still waits for; what has ended since is forgotten now and then."""
        self._passed.append(samples)
        if len(self._passed) > PASSED_PARTS:
            passed = np.concatenate(self._passed)
            self._passed = [passed[self.is_waiting_for(passed)]]

    def count_off(self, samples: Numbers, staged_bytes: int) -> None:
        """Samples have come to their end: staged as so many bytes, or, with none, failed."""
        ended = np.unique(samples[self.is_waiting_for(samples)])
        count = len(ended)
        self._ended[ended] = True
        self.left -= count
        if staged_bytes:
            self.staged += count
            self.bytes += staged_bytes * count // max(len(samples), 1)
        else:
            self.failed += count

    def begin_staging(self, plan: Plan, now: float) -> None:
        """What it takes is known; its rate counts from here."""
        self.plan, self.staging_at, self.ended_before = plan, now, self.staged + self.failed
        self.crowd = Crowd()

    def let_go(self) -> None:
        """It has ended, and is only told of any more: what is as large as its data set goes."""
        self.dataset = None
        self.wait_for(nothing())

    def told(self) -> str:
        """The job in one line of the log."""
        error = f" error={self.error.message!r}" if self.error else ""
        return (
            f"id={self.id} dataset={self.request.spec.name} state={self.state} wanted={self.wanted}"
            f" staged={self.staged} already={self.already} failed={self.failed} bytes={self.bytes}{error}"
        )

    def to_json(self, now: float, under_way: int = 0) -> dict[str, Any]:
        """The job as `status` and a waiting command see it. `under_way`: prepared, but not yet durable."""
        now = self.ended_at or now
        done = self.already + self.staged + self.failed
        staging_s = now - self.staging_at if self.staging_at else 0.0
        since = max(self.staged + self.failed + under_way - self.ended_before, 0)
        planned_rate = self.plan.rate if self.plan else 0.0
        rate = rate_then(since, staging_s) if self.ended else rate_now(since, staging_s, planned_rate)
        left = max(self.wanted - done - under_way, 0)
        return {
            "id": self.id,
            "dataset": self.request.spec.name,
            "state": self.state,
            "done": done,
            "under_way": under_way,
            "wanted": self.wanted,
            "rate": round(rate, 2),
            "eta_s": round(left / rate, 1) if rate and not self.ended else None,
            "scanned": self.scanned,
            "classes": list(self.classes),
            "saved_as": self.saved_as,
            "staged": self.staged,
            "already": self.already,
            "failed": self.failed,
            "bytes": self.bytes,
            "seconds": round(now - self.began_at, 3),
            "staging_s": round(staging_s, 3),
            "format": self.format,
            "format_why": self.format_why,
            "fields": list(self.fields),
            "stop_after": self.request.stop_after,
            "plan": self.plan.to_json() if self.plan else None,
            "paused": self.paused.message if self.paused else None,
            "changed": self.changed,
            "refresh": self.request.refresh,
            "diff": self.diff.to_json() if self.diff else None,
            "left_out": self.left_out,
            "lacks_samples": self.lacks_samples,
            "error": errors.to_json(self.error) if self.error else None,
        }
