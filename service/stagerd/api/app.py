"""The service's HTTP API, version 1. Handlers only translate: the loop does the work."""

import asyncio
import json
import os
from collections.abc import Callable, Coroutine
from functools import wraps
from pathlib import Path
from types import MethodType
from typing import Annotated, Any, Protocol, TypeVar

from fastapi import APIRouter, Body, FastAPI, Request
from fastapi import Path as InPath
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from stager import __version__, errors
from stager.cache.verify import problem_of
from stager.config import Config
from stager.errors import NoService, SourceForbidden, StagerError, UsageError, nearest
from stager.jobs.job import Request as JobRequest
from stager.layouts import LAYOUTS
from stager.owner.owner import Owner, Part
from stager.owner.verbs import CANCEL, VERBS, WHY
from stager.reader.record import DatasetSpec
from stager.reader.service import API
from stager.reader.settings import ORDER_NUMBERS_MAX
from stager.reader.subset import Subset, draw
from stager.reader.values import Numbers, unpack_numbers
from stager.recipes import check_recipe
from stager.sessions.session import OpenSession, OrderRequest
from stagerd.api.bodies import (
    CancelBody,
    HelloBody,
    OrderBody,
    PinBody,
    PositionBody,
    PrefetchBody,
    ReportBody,
    SampleBody,
    ShardsBody,
    SubsetBody,
    WantBody,
)
from stagerd.api.limits import BoundedBodies, Users

T = TypeVar("T")
JobId = Annotated[int, InPath(gt=-(2**63), lt=2**63)]
_STATUS = {UsageError: 400, NoService: 503}
_ONE_VERSION = "are the service and this program of one version?"


class AsciiJson(JSONResponse):
    """JSON that can carry any key: bytes that are no UTF-8 are escaped, as `decode_key` has them."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False).encode()


class Ask(Protocol):
    """Has the loop do something, and waits for it."""

    async def __call__(self, act: Callable[[], T]) -> T: ...


def make_app(owner: Owner, config: Config) -> FastAPI:
    app = FastAPI(
        title="stager",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=f"{API}/openapi.json",
        default_response_class=AsciiJson,
    )

    async def ask(act: Callable[[], T]) -> T:
        return await asyncio.wrap_future(owner.loop.events.call(act))

    @app.exception_handler(StagerError)
    async def told(request: Request, error: StagerError) -> JSONResponse:
        status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 409)
        return AsciiJson(errors.to_json(error), status)

    @app.exception_handler(HTTPException)
    async def unknown(request: Request, error: HTTPException) -> JSONResponse:
        told = UsageError(f"{request.method} {request.url.path}: {error.detail}", hint=_ONE_VERSION)
        return AsciiJson(errors.to_json(told), error.status_code, error.headers)

    @app.exception_handler(Exception)
    async def broke(request: Request, error: Exception) -> JSONResponse:
        told = f"the service failed: {type(error).__name__}: {error}"
        return AsciiJson(errors.to_json(StagerError(told, hint="see its log, and report it")), 500)

    @app.exception_handler(RequestValidationError)
    async def refused(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        told = UsageError(f"the request is not valid: {where}: {first['msg']}", hint=_ONE_VERSION)
        return AsciiJson(errors.to_json(told), 422)

    app.add_middleware(BoundedBodies)
    routes, users = APIRouter(prefix=API), Users()
    for verb in VERBS:
        if not verb.posted:
            routes.get(verb.path)(_on_loop(MethodType(verb.act, owner), ask))
    _add_datasets(routes, owner, ask)
    _add_readers(routes, owner, users, ask)
    _add_work(routes, owner, config, users, ask)
    app.include_router(routes)
    return app


def _on_loop(method: Callable[..., T], ask: Ask) -> Callable[..., Coroutine[Any, Any, T]]:
    """A handler that takes what the owner's method takes, as its signature tells FastAPI."""

    @wraps(method)
    async def answer(**told: Any) -> T:
        return await ask(lambda: method(**told))

    return answer


def _add_datasets(routes: APIRouter, owner: Owner, ask: Ask) -> None:
    """A data set, one sample of it, and what of it shall go or stay."""

    @routes.get("/datasets/{name}")
    async def dataset(name: str) -> dict[str, Any]:
        """Where a reader finds the data set: it maps the files, and a hit needs no further call."""
        found = await ask(lambda: owner.dataset(name))
        return {
            "name": name,
            "directory": str(found.directory),
            "manifest": found.record.manifest,
            "recipe": found.record.recipe,
            "lineage": found.record.lineage,
        }

    @routes.post(WHY.path)
    async def why(name: str, body: SampleBody) -> dict[str, Any]:
        """Is a sample resident, since when, and if it is not: why not."""
        return await ask(lambda: owner.why(name, body.sample))

    async def draw_beside(name: str, subset: Subset) -> Part:
        """What a subset is, worked out off the loop: `where` may take seconds."""
        manifest = (await ask(lambda: owner.dataset(name))).manifest
        return Part(manifest, (await asyncio.to_thread(draw, manifest, subset)).numbers)

    @routes.post("/datasets/{name}/evict")
    async def evict(name: str, body: Annotated[SubsetBody, Body()]) -> dict[str, Any]:
        drawn = await draw_beside(name, body)
        return await ask(lambda: owner.evict(name, body, drawn))

    @routes.post("/datasets/{name}/pin")
    async def pin(name: str, body: PinBody) -> dict[str, Any]:
        drawn = await draw_beside(name, body.subset)
        return await ask(lambda: owner.pin(name, body.subset, body.pinned, drawn))


def _add_readers(routes: APIRouter, owner: Owner, users: Users, ask: Ask) -> None:
    """What readers ask and tell."""

    @routes.post("/datasets/{name}/want")
    async def want(name: str, body: WantBody) -> dict[str, Any]:
        """Stage these samples before all else; answers when they are resident or time is up."""
        if body.position is not None:
            await ask(lambda: owner.readers.heard(body.session, body.position or 0))
        version = body.version(name)
        corrupt: list[int] = []
        if (
            body.corrupt
        ):  # to look at a shard takes long: the loop looks again, but only at those that are bad
            for samples, path, dead in await ask(lambda: owner.readers.suspects(version, body.corrupt)):
                corrupt += samples if await asyncio.to_thread(problem_of, path, dead) else []
        answer = await ask(lambda: owner.readers.want(version, body.samples, corrupt, body.wait_s))
        told = await asyncio.wrap_future(answer)
        if told["failed"]:
            told["failed"] = await ask(lambda: owner.readers.failed(version, told["failed"]))
        return told

    @routes.post("/datasets/{name}/hello")
    async def hello(request: Request, name: str, body: HelloBody) -> dict[str, Any]:
        """A session reads this version: it is kept while the process lives that says so."""
        pid = request.client.port if request.client else 0
        return await ask(lambda: owner.readers.hello(body.version(name), body.session, body.manifest, pid))

    @routes.post("/reports")
    async def report(body: ReportBody) -> dict[str, Any]:
        """Totals of one reading process; they only grow, so a report may be sent again."""
        told = {**body.model_dump(), "reads": _unpacked(body.reads)}
        return await ask(lambda: owner.readers.report(told))

    @routes.post("/sessions")
    async def heard(body: PositionBody) -> dict[str, Any]:
        """A session is alive, and this far in its order."""
        return await ask(lambda: owner.readers.heard(body.session, body.position))

    @routes.post("/datasets/{name}/sessions")
    async def read_in_order(request: Request, name: str, body: OrderBody) -> dict[str, Any]:
        """The order in which a session is going to read: it is staged ahead of it, before all jobs."""
        told = {key: getattr(body, key) for key in OrderBody.model_fields}
        orders = tuple([await asyncio.to_thread(_unpacked, order) for order in body.own_orders])
        if sum(map(len, orders)) > ORDER_NUMBERS_MAX:
            raise UsageError(
                f"an order of one's own has at most {ORDER_NUMBERS_MAX:,} numbers", hint="tell its beginning"
            )
        reading, user = OrderRequest(dataset=name, **{**told, "own_orders": orders}), _user(request)

        def begin() -> Callable[[], OpenSession]:
            make = owner.readers.asked_to_read(reading)
            length = sum(map(len, orders)) or reading.length // reading.world_size
            users.may_read(user, reading.session, length, owner.loop.sessions.names())
            return make

        session = await asyncio.to_thread(await ask(begin))
        return await ask(lambda: owner.readers.read_in_order(session))


def _add_work(routes: APIRouter, owner: Owner, config: Config, users: Users, ask: Ask) -> None:
    """Jobs and shards."""

    @routes.post("/jobs")
    async def prefetch(request: Request, body: PrefetchBody) -> dict[str, Any]:
        spec = _spec(config, body, request)
        asked = JobRequest(spec, body.subset, body.format, body.stop_after, retry_failed=body.retry_failed)
        user = _user(request)

        def begin() -> dict[str, Any]:
            users.may_begin(user, owner.loop.jobs.unfinished())
            job = owner.prefetch(asked)
            users.began(user, job["id"])
            return job

        return await ask(begin)

    @routes.get("/jobs/{job}")
    async def job(job: JobId) -> dict[str, Any]:
        return await ask(lambda: owner.job(job))

    @routes.post(CANCEL.path)
    async def cancel(job: JobId, body: CancelBody | None = None) -> dict[str, Any]:
        return await ask(lambda: owner.cancel(job, body is not None and body.finish))

    @routes.post("/shards/verify")
    async def verify(body: ShardsBody) -> list[dict[str, Any]]:
        """Read these shards whole, off the loop, and say which are bad."""
        bad: list[dict[str, Any]] = []
        wanted = set(body.shards)
        for _ in range(2):  # a row that was evicted while we read looked bad
            rows = [row for row in await ask(owner.shards) if row["shard"] in wanted]
            told = [await asyncio.to_thread(problem_of, Path(row["path"]), row["dead_rows"]) for row in rows]
            bad = [{**row, "problem": problem} for row, problem in zip(rows, told, strict=True) if problem]
            wanted = {row["shard"] for row in bad}
        return bad

    @routes.post("/shards/drop")
    async def drop(body: ShardsBody) -> dict[str, Any]:
        """Check these shards again and drop those that are bad; what they held is staged again."""
        bad = await verify(body)
        return await ask(lambda: owner.drop_bad([row["shard"] for row in bad]))


def _user(request: Request) -> int:
    """Who asks, by the kernel's word."""
    return int(request.client.host) if request.client else -1


def _unpacked(text: str) -> Numbers:
    try:
        return unpack_numbers(text)
    except ValueError:
        raise UsageError("these are no sample numbers in base64", hint=_ONE_VERSION) from None


def _spec(config: Config, body: PrefetchBody, request: Request) -> DatasetSpec:
    """What a data set is: as the service's config says. Only our own user may bring a source of their own."""
    if body.spec is None:
        return config.dataset(body.dataset)
    if _user(request) not in (os.getuid(), 0):
        raise SourceForbidden(
            "only the service's own user may stage a source that is not in its config",
            hint=f"ask the operator to add it to {config.path or '/etc/stager/stager.toml'}",
        )
    spec = DatasetSpec.from_json({**body.spec.model_dump(), "recipe": check_recipe(body.spec.recipe)})
    if spec.name in config.datasets:
        raise UsageError(f"{spec.name!r} is in the service's config", hint="leave out the spec")
    if spec.layout not in LAYOUTS:
        raise UsageError(f"there is no layout {spec.layout!r}", hint=nearest(spec.layout, LAYOUTS))
    return spec
