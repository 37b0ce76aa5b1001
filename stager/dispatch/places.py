"""Which sources can hang together, and which of them do: since when, and for what.

All data sets of one mount that may hang have workers of their own, so that no other one waits with them.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from stager.clock import Clock
from stager.errors import SourceBusy, SourceSilent
from stager.mounts import remote_mount
from stager.reader.record import DatasetSpec
from stager.reader.values import SourceSpec

log = logging.getLogger("stager")

HERE: Final = ""  # the place of all that does not hang as mounts do: S3, local disks, generated samples
LOOK_EVERY_S: Final = 10.0  # at what is mounted
TRY_MOST_S: Final = 60.0  # between two tries of a place that is silent; the first one comes after a second
FORGOTTEN_S: Final = 600.0  # after which nobody knows whether a place is silent that nobody asked


@dataclass(slots=True)
class Hung:
    """A place that does not answer."""

    since: float
    what: str
    heard_at: float  # when a worker last said so
    tries: int = 0
    try_at: float = 0.0


class Places:
    """Where each source is, and who is silent."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._of: dict[str, str] = {}  # by URL
        self._of_until = 0.0
        self._apart: set[str] = set()  # sources that hung where all others are
        self._hung: dict[str, Hung] = {}

    def of(self, source: SourceSpec) -> str:
        """The place of a source: a mount, or HERE."""
        if source.url in self._apart:
            return source.url
        now = self._clock.now()
        if now >= self._of_until:
            self._of, self._of_until = {}, now + LOOK_EVERY_S
        if source.url not in self._of:
            path = _path_in(source.url)
            self._of[source.url] = remote_mount(path) if path is not None else HERE
        return self._of[source.url]

    def here(self, specs: Iterable[DatasetSpec]) -> list[DatasetSpec]:
        """Those whose sources do not hang as mounts do."""
        return [spec for spec in specs if self.of(spec.source) == HERE]

    def told(self, source: SourceSpec, seconds: float, what: str) -> None:
        """A worker says that a source has been silent for so long; or, with no call, that it answers."""
        if not what:
            self.answered(source)
            return
        if self.of(source) == HERE:
            self._apart.add(source.url)
        now = self._clock.now()
        if self.hung(source) is None:
            log.warning("source hangs url=%s seconds=%.0f what=%r", source.url, seconds, what)
        hung = self._hung.setdefault(self.of(source), Hung(now - seconds, what, now))
        hung.what, hung.heard_at = what, now

    def answered(self, source: SourceSpec) -> None:
        """Something came of a source."""
        if self._hung and self._hung.pop(self.of(source), None) is not None:
            log.info("source answers again url=%s", source.url)

    def hung(self, source: SourceSpec) -> Hung | None:
        """Since when the place of a source is silent, if it is."""
        return self._hung.get(self.of(source)) if self._hung else None

    def may_try(self, place: str, has_task: bool) -> bool:
        """Whether a place may be given a task. One that is silent has one at a time, and ever more rarely."""
        hung = self._hung.get(place)
        return hung is None or (not has_task and self._clock.now() >= hung.try_at)

    def tried(self, place: str) -> None:
        """A place was given a task."""
        if (hung := self._hung.get(place)) is not None:
            hung.try_at = self._clock.now() + min(2.0**hung.tries, TRY_MOST_S)
            hung.tries += 1

    def forget_old(self) -> None:
        """Whoever was silent and is asked no more may answer again."""
        now = self._clock.now()
        for place, hung in list(self._hung.items()):
            if now - hung.heard_at > FORGOTTEN_S:
                del self._hung[place]

    def silent(self, source: SourceSpec, otherwise_s: float) -> SourceBusy:
        """What is told of a task that waited in vain."""
        hung = self.hung(source)
        silent_s = self._clock.now() - hung.since if hung else otherwise_s
        return SourceBusy(
            f"{source.url}: no answer for {silent_s:.0f} s" + (f" to {hung.what}" if hung else ""),
            hint="check the mount or the network, then run it again",
        )

    def why_paused(self, source: SourceSpec) -> SourceSilent | None:
        """What is told of a job whose source hangs. It says no time: it is said once."""
        hung = self.hung(source)
        return (
            SourceSilent(f"{source.url}: no answer to {hung.what}", "is the mount alive?") if hung else None
        )

    def to_json(self, spec: DatasetSpec) -> dict[str, Any] | None:
        """What `status` says of a data set whose source hangs."""
        hung = self.hung(spec.source)
        if hung is None:
            return None
        seconds = round(self._clock.now() - hung.since, 1)
        return {"dataset": spec.name, "source": spec.source.url, "hung_s": seconds, "what": hung.what}


def _path_in(url: str) -> Path | None:
    """The directory that a source is, if it is one."""
    scheme, found, rest = url.partition("://")
    if found:
        return Path(unquote("/" + rest.partition("/")[2])) if scheme.lower() == "file" else None
    return None if url.startswith("python:") else Path(url)
