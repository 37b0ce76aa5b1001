"""The watch of a service: watchers are started, what they hint at is looked at, new versions are taken.

A look is a job like that of `stager refresh`, behind all that people asked for. When it comes, and what a
vanished source means, `stager.watch.watched` decides.
"""

import logging
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Protocol

from stager.cache.cache import Cache
from stager.config import Upkeep
from stager.errors import SourceNotFound, StagerError, known_error
from stager.jobs.job import Job, Request
from stager.jobs.queue import JobQueue
from stager.reader.record import DatasetSpec
from stager.reader.samples.changes import SUSPECT_PART, Changes
from stager.reader.samples.subset import Subset
from stager.recipes import open_recipe
from stager.watch.hint import NOTHING, Hint
from stager.watch.interval import LIST_EVERY_S, RESCAN_EVERY_S
from stager.watch.messages import FromWatcher, Gone, Hinted, KnownFiles, Watching, WatchPlace
from stager.watch.process import StartWatcher, Watcher, WatchProcess
from stager.watch.watched import SILENT_S, Looked, LookFailed, Watched
from stager.worker.messages import Relist

log = logging.getLogger("stager")

RIPE_S: Final = 0.8  # a file that was written within so many seconds is left until it rests
RESTART_S: Final = (1.0, 60.0)  # until a watcher that died is started again: at first, and at most
STARTING: Final = Watching("starting")


class Calls(Protocol):
    """Whoever runs something on the loop's thread."""

    def call(self, act: Any) -> Any: ...


@dataclass(eq=False, slots=True)
class _Watch:
    """One data set that is watched."""

    spec: DatasetSpec
    upkeep: Upkeep
    state: Watched
    by: Watching = STARTING
    watcher: Watcher | None = None
    heard_at: float = 0.0
    start_at: float = 0.0  # when it is started again, if it has died
    deaths: int = 0
    is_silent: bool = False
    told: str = ""  # the version that the watcher knows of
    job: Job | None = field(default=None, repr=False)


class Watches:
    """All data sets that are watched. It belongs to the loop's thread."""

    def __init__(
        self, cache: Cache, jobs: JobQueue, calls: Calls, start: StartWatcher = WatchProcess
    ) -> None:
        self._cache, self._jobs, self._calls, self._start = cache, jobs, calls, start
        self._open: dict[str, _Watch] = {}
        jobs.heard_by.append(self._ended)
        jobs.groundwork.adopted_by.append(self._adopted)

    def step(self) -> None:
        """Watch what the config says now; begin the looks that are due."""
        wanted = {name: one for name, one in self._cache.config.upkeep.items() if one.watch}
        for name, watch in list(self._open.items()):
            if wanted.get(name) != watch.upkeep or self._spec(name).source != watch.spec.source:
                self._close(name)
        for name, upkeep in wanted.items():
            self._go_on(name, self._open.get(name) or self._begin(name, upkeep))

    def stop(self) -> None:
        """Watch nothing more."""
        for name in list(self._open):
            self._close(name)

    def to_json(self, name: str) -> dict[str, Any] | None:
        """How a data set is watched; None: it is not."""
        watch = self._open.get(name)
        if watch is None:
            return None
        return asdict(watch.by) | {"every_s": _every_s(watch)} | watch.state.to_json()

    def frozen(self, name: str) -> dict[str, Any] | None:
        """Since when a data set is frozen, and why; None: it is not."""
        watch = self._open.get(name)
        if watch is None or not watch.state.is_frozen:
            return None
        return {"since": round(watch.state.frozen_at, 3), "why": watch.state.frozen_why}

    def hinted(self, name: str, hint: Hint) -> None:
        """A data set may have changed: it is looked at, if it is watched."""
        if (watch := self._open.get(name)) is not None:
            watch.state.hinted(self._cache.clock.now(), hint)

    # Watchers

    def _spec(self, name: str) -> DatasetSpec:
        """What is watched: a data set as it was staged. Another source of the config, a prefetch takes."""
        known = self._cache.datasets.get(name)
        return known.spec if known is not None else self._cache.config.datasets[name]

    def _begin(self, name: str, upkeep: Upkeep) -> _Watch:
        clock, spec = self._cache.clock, self._spec(name)
        is_listed = spec.source.url.lower().startswith("s3://")
        every_s = (upkeep.watch_every_s or LIST_EVERY_S) if is_listed else None
        watch = _Watch(spec, upkeep, Watched(clock.now(), clock.wall(), every_s))
        if is_listed and not upkeep.events:
            watch.by = Watching("listing")
            self._tell(name, watch)
        self._open[name] = watch
        return watch

    def _close(self, name: str) -> None:
        watch = self._open.pop(name)
        if watch.watcher is not None:
            watch.watcher.end()
        if watch.job is not None:
            self._jobs.cancel(watch.job)
        log.info("watch ended dataset=%s", name)

    def _go_on(self, name: str, watch: _Watch) -> None:
        clock = self._cache.clock
        now = clock.now()
        if watch.by.by != "listing":
            if watch.watcher is None and now >= watch.start_at:
                self._start_watcher(watch, now)
            if watch.watcher is not None and now - watch.heard_at > SILENT_S and not watch.is_silent:
                watch.is_silent = True
                self._freeze(name, watch, f"{watch.spec.source.url}: no answer for {SILENT_S:.0f} s")
            self._tell_known(name, watch)
        due_at = watch.state.due_at()
        if due_at is not None and now >= due_at and watch.job is None:
            self._look(name, watch)

    def _start_watcher(self, watch: _Watch, now: float) -> None:
        every_s = watch.upkeep.watch_every_s or RESCAN_EVERY_S
        endings = open_recipe(watch.spec.recipe).takes.endings if watch.spec.layout == "folder" else ()
        place = WatchPlace(asdict(watch.spec.source), every_s, watch.upkeep.events, endings)
        watch.heard_at, watch.is_silent, watch.told = now, False, ""

        def hear(watcher: Watcher, message: FromWatcher | None) -> None:
            self._calls.call(lambda: self._heard_of(watch, watcher, message))

        try:
            watch.watcher = self._start(place, hear)
        except OSError as error:
            log.error("watcher not started source=%s error=%r", watch.spec.source.url, error.strerror)
            self._has_died(watch, now)

    def _tell_known(self, name: str, watch: _Watch) -> None:
        """Have a watcher know the newest version: it compares files with it."""
        known = self._cache.datasets.get(name)
        if watch.watcher is None or watch.is_silent or known is None:
            return
        record = known.record
        if watch.told != f"{record.lineage}/{record.manifest}":
            watch.told = f"{record.lineage}/{record.manifest}"
            place = str(known.directory), record.lineage, tuple(record.segments), record.manifest
            watch.watcher.tell(KnownFiles(*place))

    def _heard_of(self, watch: _Watch, watcher: Watcher, message: FromWatcher | None) -> None:
        try:
            self._heard(watch, watcher, message)
        except Exception:  # nobody asks what became of the call
            log.exception("watcher not heard dataset=%s", watch.spec.name)

    def _heard(self, watch: _Watch, watcher: Watcher, message: FromWatcher | None) -> None:
        if watch.watcher is not watcher:
            return  # it was ended meanwhile
        name, now = watch.spec.name, self._cache.clock.now()
        watch.heard_at = now
        if message is None:
            watch.watcher = None
            self._has_died(watch, now)
            return
        if watch.is_silent:
            watch.is_silent = False
            watch.state.back(now)
        if isinstance(message, Watching):
            is_news = message != watch.by
            watch.by, watch.deaths = message, 0
            watch.state.back(now)
            if is_news:
                self._tell(name, watch)
        elif isinstance(message, Hinted):
            watch.state.hinted(now, message.hint)
        elif isinstance(message, Gone):
            self._freeze(name, watch, message.why)

    def _has_died(self, watch: _Watch, now: float) -> None:
        first, most = RESTART_S
        watch.start_at = now + min(first * 2**watch.deaths, most)
        watch.deaths = min(watch.deaths + 1, 10)
        log.warning("watcher died dataset=%s", watch.spec.name)

    def _tell(self, name: str, watch: _Watch) -> None:
        by = watch.by
        log.info(
            "watched dataset=%s by=%s watches=%s stats_per_s=%s every_s=%s%s",
            *(name, by.by, by.watches, by.stats_per_s, _every_s(watch)),
            f" note={by.note!r}" if by.note else "",
        )

    # Looks

    def _look(self, name: str, watch: _Watch) -> None:
        clock = self._cache.clock
        look = watch.state.begin(clock.now(), clock.wall())
        hint = look.hint
        folders, trees = tuple(sorted(hint.folders)), tuple(sorted(hint.trees))
        relist = Relist(folders, trees, not hint.is_everything, RIPE_S)
        how = "look" if look.is_dry else "take"
        watch.spec = self._spec(name)
        request = Request(watch.spec, Subset(), "auto", refresh=how, relist=relist)
        try:
            watch.job = self._jobs.submit(request)
        except (StagerError, OSError) as error:  # no process can be started, for one: the service goes on
            failed = known_error(error, name)
            log.error("look not begun dataset=%s error=%r", name, failed.message)
            watch.state.ended(clock.now(), clock.wall(), LookFailed(failed.message, is_gone=False))

    def _adopted(self, job: Job, is_overtaken: bool) -> None:
        """A new version was taken: by a look, which is over with that, or because a person asked."""
        watch = self._open.get(job.request.spec.name)
        if watch is None:
            return
        if job is watch.job:
            self._looked(watch, job)
        elif job.request.relist is None:
            is_frozen = watch.state.is_frozen
            watch.state.taken(self._cache.clock.now(), self._cache.clock.wall(), is_overtaken)
            if is_frozen:
                log.info("thawed dataset=%s why=%r", watch.spec.name, "a person had its version taken")

    def _ended(self, job: Job) -> None:
        watch = self._open.get(job.request.spec.name)
        if watch is not None and job is watch.job:
            self._looked(watch, job)

    def _looked(self, watch: _Watch, job: Job) -> None:
        """A look is over, whatever came of it."""
        clock, state, watch.job = self._cache.clock, watch.state, None
        was_frozen = state.is_frozen
        how = _outcome(job)
        is_back = state.ended(clock.now(), clock.wall(), how)
        if isinstance(how, LookFailed):
            level = logging.WARNING if state.is_frozen and not was_frozen else logging.INFO
            log.log(level, "look failed dataset=%s error=%r", watch.spec.name, how.why)
        if state.is_frozen and not was_frozen:
            self._tell_frozen(watch)
        elif is_back:
            log.info("thawed dataset=%s why=%r", watch.spec.name, "it is back as it was")
        elif job.diff is not None and isinstance(how, Looked) and how.is_changed:
            log.info("version taken dataset=%s changes=%r", watch.spec.name, str(job.diff))

    def _freeze(self, name: str, watch: _Watch, why: str) -> None:
        was_frozen = watch.state.is_frozen
        watch.state.gone(self._cache.clock.now(), self._cache.clock.wall(), why)
        if not was_frozen:
            self._tell_frozen(watch)

    def _tell_frozen(self, watch: _Watch) -> None:
        hint = f"stager refresh {watch.spec.name} --accept-removals, if it is meant to be so"
        log.warning("frozen dataset=%s why=%r hint=%r", watch.spec.name, watch.state.frozen_why, hint)


def _every_s(watch: _Watch) -> float | None:
    """How often all is looked at; None: whenever something is told."""
    if watch.by.by == "inotify":
        return None
    is_listed = watch.by.by in ("listing", "events")
    return watch.upkeep.watch_every_s or (LIST_EVERY_S if is_listed else RESCAN_EVERY_S)


def _outcome(job: Job) -> Looked | LookFailed:
    """What a look has come to."""
    if job.error is not None:
        is_gone = isinstance(job.error, SourceNotFound) or (job.is_scanned and not job.scanned)
        return LookFailed(job.error.message, is_gone or (job.diff is not None and job.diff.is_suspect))
    if job.state == "cancelled":
        return LookFailed("it was cancelled", is_gone=False)
    if job.request.refresh == "look" and job.diff is not None and not _is_as_it_was(job.diff):
        return LookFailed(f"{job.request.spec.source.url}: not as it was: {job.diff}", is_gone=True)
    is_changed = job.diff is not None and job.state != "done"
    return Looked(is_changed, Hint.of(job.unripe) if job.unripe else NOTHING)


def _is_as_it_was(diff: Changes) -> bool:
    """Whether a source that had vanished is the one that it was: by far the most is the same."""
    return diff.removed + diff.changed <= SUSPECT_PART * diff.before
