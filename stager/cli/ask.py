"""Whom a verb asks: the service if one answers, else the cache itself, under its lock."""

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from stager.cache.cache import Cache
from stager.cache.start.lock import SERVICE
from stager.cache.verify import problem_of
from stager.cli.app import warn
from stager.config import Config
from stager.errors import CacheError, CacheOwned, NoService, ServiceSilent
from stager.jobs.job import Request
from stager.owner.onlooker import CacheView
from stager.owner.owner import Owner
from stager.owner.verbs import REFRESH, Verb
from stager.owner.view import View
from stager.reader.record import DatasetSpec
from stager.reader.samples.subset import Subset
from stager.reader.service import Service, find_socket

P = ParamSpec("P")
T = TypeVar("T")

HELLO_S = 4.0  # within which a service says that it is there; one that is busy takes a second or two
AWAY_S = 60.0  # how long a command waits for a service that went away under it
STARTING_S = 10.0  # and for one that has the cache, but does not answer yet
LOOK_FIRST_S, LOOK_EVERY_S = (
    0.05,
    0.4,
)  # at a job: a small one is over soon, a large one is not watched closely


class Remote:
    """The service, over its socket."""

    is_service = True

    def __init__(self, service: Service) -> None:
        self._service = service
        self._look_again_s = LOOK_FIRST_S

    def ask(self, verb: Verb[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        path, body = verb.request(*args, **kwargs)
        told: T = self._service.get(path) if body is None else self._service.post(path, body)
        return told

    def evict(self, name: str, subset: Subset) -> dict[str, Any]:
        return self._service.post(f"/datasets/{name}/evict", subset.to_json())  # type: ignore[no-any-return]

    def evict_memo(self, name: str) -> dict[str, Any]:
        return self._service.post(f"/memos/{name}/evict", {})  # type: ignore[no-any-return]

    def pin(self, name: str, subset: Subset, pinned: bool) -> dict[str, Any]:
        body = {"subset": subset.to_json(), "pinned": pinned}
        return self._service.post(f"/datasets/{name}/pin", body)  # type: ignore[no-any-return]

    def prefetch(
        self,
        name: str | None,
        spec: DatasetSpec | None,
        subset: Subset,
        shard_format: str,
        stop_after: str,
        retry_failed: bool,
        evict_cold: bool,
    ) -> dict[str, Any]:
        body = {
            "dataset": name,
            "spec": spec.to_json() if spec else None,
            "subset": subset.to_json(),
            "format": shard_format,
            "stop_after": stop_after,
            "retry_failed": retry_failed,
            "evict_cold": evict_cold,
        }
        return self._service.post("/jobs", body)  # type: ignore[no-any-return]

    def job(self, job: int) -> dict[str, Any]:
        """A service that restarts takes its jobs up again: wait for it."""
        deadline = time.monotonic() + AWAY_S
        while True:
            time.sleep(self._look_again_s)
            self._look_again_s = min(1.5 * self._look_again_s, LOOK_EVERY_S)
            try:
                return self._service.get(f"/jobs/{job}")  # type: ignore[no-any-return]
            except NoService:
                if time.monotonic() > deadline:
                    raise

    def verify(self, shards: list[int]) -> list[dict[str, Any]]:
        return self._service.post("/shards/verify", {"shards": shards}, 600.0)  # type: ignore[no-any-return]

    def drop(self, shards: list[int]) -> dict[str, Any]:
        return self._service.post("/shards/drop", {"shards": shards}, 600.0)  # type: ignore[no-any-return]


class Local:
    """The cache itself, owned by this command while it runs."""

    is_service = False

    def __init__(self, config: Config) -> None:
        self._config = config
        self._owner = Owner(Cache(config, " ".join(["stager", *sys.argv[1:]])))
        self._has_scanned = False

    def close(self) -> None:
        self._owner.loop.stop()
        if self._has_scanned:
            self._owner.loop.give_back_stale()
        self._owner.cache.close()

    def ask(self, verb: Verb[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        self._has_scanned |= verb is REFRESH
        return verb.act(self._owner, *args, **kwargs)

    def evict(self, name: str, subset: Subset) -> dict[str, Any]:
        return self._owner.evict(name, subset)

    def evict_memo(self, name: str) -> dict[str, Any]:
        return self._owner.memos.evict(name)

    def pin(self, name: str, subset: Subset, pinned: bool) -> dict[str, Any]:
        return self._owner.pin(name, subset, pinned)

    def prefetch(
        self,
        name: str | None,
        spec: DatasetSpec | None,
        subset: Subset,
        shard_format: str,
        stop_after: str,
        retry_failed: bool,
        evict_cold: bool,
    ) -> dict[str, Any]:
        self._has_scanned = True
        spec = spec or self._config.dataset(name)
        request = Request(spec, subset, shard_format, stop_after, True, retry_failed, evict_cold)
        return self._owner.prefetch(request)

    def job(self, job: int) -> dict[str, Any]:
        self._owner.step(0.1)
        return self._owner.job(job)

    def verify(self, shards: list[int]) -> list[dict[str, Any]]:
        wanted = set(shards)
        rows = [row for row in self._owner.shards() if row["shard"] in wanted]
        found = ((row, problem_of(Path(row["path"]), row["dead_rows"])) for row in rows)
        return [{**row, "problem": problem} for row, problem in found if problem]

    def drop(self, shards: list[int]) -> dict[str, Any]:
        return self._owner.drop_bad([row["shard"] for row in self.verify(shards)])


class Seen:
    """A cache that another command owns: it can be looked at."""

    def __init__(self, config: Config, owned: CacheOwned) -> None:
        self._cache, self._owned = CacheView(config), owned
        self._view = View(self._cache, self._cache.given_back)
        self.close = self._cache.close

    def ask(self, verb: Verb[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        if not hasattr(self._view, verb.name):
            raise self._owned
        told: T = getattr(self._view, verb.name)(*args, **kwargs)
        return told


AnyOwner = Remote | Local  # the owner of the cache, wherever it is


@contextmanager
def open_to_look(config: Config) -> Iterator[AnyOwner | Seen]:
    """The same as `open_owner`, for verbs that View has: they need not wait until another command ends."""
    with ExitStack() as stack:
        asked: AnyOwner | Seen
        try:
            asked = stack.enter_context(open_owner(config))
        except CacheOwned as owned:
            if owned.what == SERVICE:
                raise  # it should answer
            try:
                asked = Seen(config, owned)
            except CacheError:
                raise owned from None  # there is nothing to see yet
            stack.callback(asked.close)
            warn(f"note: as of this moment: process {owned.pid} ({owned.what}) is at work")
        yield asked


@contextmanager
def open_owner(config: Config) -> Iterator[AnyOwner]:
    """The service, or the cache itself where nobody listens. One that hangs still has the cache."""
    service = Service(find_socket(None, config.socket))
    try:
        about = service.get("/status", timeout_s=HELLO_S)["service"]
    except ServiceSilent:
        raise
    except NoService:
        try:
            local = Local(config)
        except CacheOwned as owned:
            about = _when_started(service, owned)
        else:
            try:
                yield local
            finally:
                local.close()
            return
    if config.path is not None and Path(about["cache_dir"]) != config.cache_dir:
        raise CacheError(
            f"the service at {service.path} keeps {about['cache_dir']}, the config says {config.cache_dir}",
            hint="set [service] socket to another path for another cache",
        )
    yield Remote(service)


def _when_started(service: Service, owned: CacheOwned) -> dict[str, Any]:
    """What a service says of itself that has the cache, but did not answer yet: it may be starting."""
    deadline = time.monotonic() + STARTING_S
    while owned.what == SERVICE and time.monotonic() < deadline:
        try:
            return dict(service.get("/status", timeout_s=10)["service"])
        except NoService:
            time.sleep(LOOK_EVERY_S)
    raise owned
