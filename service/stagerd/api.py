"""The service's HTTP API, version 1. Handlers only translate: the loop does the work."""

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Protocol, Self, TypeVar

from fastapi import Body, FastAPI, Request
from fastapi import Path as InPath
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from starlette.exceptions import HTTPException

from stager import __version__
from stager.check import problem_of
from stager.config import WANT_WAIT_S, Config
from stager.dataset import DatasetSpec
from stager.errors import NoService, SourceForbidden, StagerError, UsageError, nearest
from stager.job import Request as JobRequest
from stager.job import error_to_json
from stager.layouts import LAYOUTS
from stager.meter import MISS_REASONS
from stager.model import unpack_numbers
from stager.owner import Owner, Part
from stager.recipes import check_recipe
from stager.sessions import Reading
from stager.subset import Subset, draw
from stager.where import parse

T = TypeVar("T")
_STATUS = {UsageError: 400, NoService: 503}
_ONE_VERSION = "are the service and this program of one version?"


def _unpackable(text: str) -> str:
    unpack_numbers(text)
    return text


Number = Annotated[int, Field(ge=0, lt=2**32)]  # of a sample or a shard
Count = Annotated[int, Field(ge=0, le=10**15)]
Packed = Annotated[str, Field(max_length=2**28), AfterValidator(_unpackable)]  # little-endian u32 in base64
JobId = Annotated[int, InPath(gt=-(2**63), lt=2**63)]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class SubsetBody(Strict):
    classes: int | list[str] | None = None
    seed: int = 0
    per_class: int | None = None
    fraction: float | None = None
    where: str | None = None
    split: str | None = None

    def subset(self) -> Subset:
        """As the loop takes it: what it asks makes sense, and is not too much."""
        if self.where is not None:
            parse(self.where)
        return Subset.from_json(self.model_dump())


class SourceBody(Strict):
    url: str = Field(pattern=r"^(/|[A-Za-z0-9]+://)", description="s3://bucket/prefix, or an absolute path")
    endpoint_url: str | None = None
    region: str | None = None
    profile: str | None = None
    anonymous: bool = False


class SpecBody(Strict):
    name: str
    source: SourceBody
    layout: str = "folder"
    recipe: dict[str, Any]


class PrefetchBody(Strict):
    dataset: str | None = Field(None, description="a data set of the service's config; none: its only one")
    spec: SpecBody | None = Field(None, description="a data set that is in no config: own user only")
    subset: SubsetBody = SubsetBody()
    format: str = Field("auto", pattern="^(auto|arrow|lmdb)$")
    stop_after: str = Field("", pattern="^(|scan|plan)$", description="go no further than this")


class WantBody(Strict):
    manifest: str
    samples: list[Number] = Field(max_length=1_000_000)
    corrupt: list[Number] = Field([], max_length=1_000_000)
    wait_s: float = Field(WANT_WAIT_S, ge=0, le=60)
    session: str = Field("", max_length=100)
    position: Number | None = Field(None, description="in the order that the session told")


class TotalsBody(Strict):
    requests: Count
    hits: Count
    misses: Count
    wait_s: float = Field(ge=0, le=1e12)
    computed_s: float = Field(0.0, ge=0, le=1e12)
    reasons: dict[str, Count]

    @model_validator(mode="after")
    def add_up(self) -> Self:
        if self.requests != self.hits + self.misses or self.misses != sum(self.reasons.values()):
            raise ValueError("requests are hits and misses, and each miss has a reason")
        if not set(self.reasons) <= set(MISS_REASONS):
            raise ValueError(f"a reason is one of {', '.join(MISS_REASONS)}")
        return self


class ReportBody(Strict):
    dataset: str
    session: str = Field(max_length=100)
    process: str = Field(max_length=100)
    length: int = Field(ge=1, lt=2**32)
    epoch: Number | None
    position: Number | None = Field(None, description="in the order that the session told")
    reads: Packed = Field("", description="sample numbers, for a session that told no order")
    totals: TotalsBody


class OrderBody(Strict):
    session: str = Field(max_length=100)
    manifest: str
    subset: SubsetBody
    shuffle: bool
    seed: int
    epoch: Number
    rank: Number
    world_size: Number = Field(ge=1)
    drop_last: bool
    length: Number
    start: Number
    own_orders: list[Packed] = Field(
        [], max_length=2, description="sample numbers of this epoch and the next, if no seed gives them"
    )


class PositionBody(Strict):
    session: str = Field(max_length=100)
    position: Number


class SampleBody(Strict):
    sample: str = Field(max_length=4096, description="a key of the source, or a number")


class PinBody(Strict):
    subset: SubsetBody = SubsetBody()
    pinned: bool = True


class ShardsBody(Strict):
    shards: list[int] = Field(max_length=1_000_000)


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
        openapi_url="/v1/openapi.json",
        default_response_class=AsciiJson,
    )

    async def ask(act: Callable[[], T]) -> T:
        return await asyncio.wrap_future(owner.staging.events.call(act))

    @app.exception_handler(StagerError)
    async def told(request: Request, error: StagerError) -> JSONResponse:
        status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 409)
        return AsciiJson(error_to_json(error), status)

    @app.exception_handler(HTTPException)
    async def unknown(request: Request, error: HTTPException) -> JSONResponse:
        told = UsageError(f"{request.method} {request.url.path}: {error.detail}", hint=_ONE_VERSION)
        return AsciiJson(error_to_json(told), error.status_code)

    @app.exception_handler(Exception)
    async def broke(request: Request, error: Exception) -> JSONResponse:
        told = f"the service failed: {type(error).__name__}: {error}"
        return AsciiJson(error_to_json(StagerError(told, hint="see its log, and report it")), 500)

    @app.exception_handler(RequestValidationError)
    async def refused(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        told = UsageError(f"the request is not valid: {where}: {first['msg']}", hint=_ONE_VERSION)
        return AsciiJson(error_to_json(told), 422)

    _add_readers(app, owner, ask)
    _add_work(app, owner, config, ask)
    return app


def _add_readers(app: FastAPI, owner: Owner, ask: Ask) -> None:
    """What is there, and what readers ask."""

    @app.get("/v1/status")
    async def status() -> dict[str, Any]:
        return await ask(lambda: owner.status(is_up=True))

    @app.get("/v1/stats")
    async def stats() -> dict[str, Any]:
        return await ask(owner.stats)

    @app.get("/v1/datasets")
    async def datasets() -> list[dict[str, Any]]:
        return await ask(owner.datasets)

    @app.get("/v1/datasets/{name}")
    async def dataset(name: str) -> dict[str, Any]:
        """Where a reader finds the data set: it maps the files, and a hit needs no further call."""
        found = await ask(lambda: owner.dataset(name))
        return {
            "name": name,
            "directory": str(found.directory),
            "manifest": found.record.manifest,
            "recipe": found.record.recipe,
        }

    @app.get("/v1/datasets/{name}/failures")
    async def failures(name: str) -> list[dict[str, Any]]:
        return await ask(lambda: owner.failures(name))

    @app.get("/v1/datasets/{name}/classes")
    async def classes(name: str) -> list[dict[str, Any]]:
        return await ask(lambda: owner.classes(name))

    @app.post("/v1/datasets/{name}/want")
    async def want(name: str, body: WantBody) -> dict[str, Any]:
        """Stage these samples before all else; answers when they are resident or time is up."""
        if body.position is not None:
            await ask(lambda: owner.heard(body.session, body.position or 0))
        answer = await ask(lambda: owner.want(name, body.manifest, body.samples, body.corrupt, body.wait_s))
        return await asyncio.wrap_future(answer)

    @app.post("/v1/datasets/{name}/why")
    async def why(name: str, body: SampleBody) -> dict[str, Any]:
        """Is a sample resident, since when, and if it is not: why not."""
        return await ask(lambda: owner.why(name, body.sample))

    @app.get("/v1/datasets/{name}/reads")
    async def reads(name: str) -> dict[str, Any]:
        return await ask(lambda: owner.reads(name))

    async def draw_beside(name: str, subset: Subset) -> Part:
        """What a subset is, worked out off the loop: `where` may take seconds."""
        manifest = (await ask(lambda: owner.dataset(name))).manifest
        return Part(manifest, (await asyncio.to_thread(draw, manifest, subset)).numbers)

    @app.post("/v1/datasets/{name}/evict")
    async def evict(name: str, body: Annotated[SubsetBody, Body()]) -> dict[str, Any]:
        subset = body.subset()
        drawn = await draw_beside(name, subset)
        return await ask(lambda: owner.evict(name, subset, drawn))

    @app.post("/v1/datasets/{name}/pin")
    async def pin(name: str, body: PinBody) -> dict[str, Any]:
        subset = body.subset.subset()
        drawn = await draw_beside(name, subset)
        return await ask(lambda: owner.pin(name, subset, body.pinned, drawn))

    @app.post("/v1/reports")
    async def report(body: ReportBody) -> dict[str, Any]:
        """Totals of one reading process; they only grow, so a report may be sent again."""
        return await ask(lambda: owner.report(body.model_dump()))

    @app.post("/v1/sessions")
    async def heard(body: PositionBody) -> dict[str, Any]:
        """A session is alive, and this far in its order."""
        return await ask(lambda: owner.heard(body.session, body.position))

    @app.post("/v1/datasets/{name}/sessions")
    async def read_in_order(name: str, body: OrderBody) -> dict[str, Any]:
        """The order in which a session is going to read: it is staged ahead of it, before all jobs."""
        told = {key: value for key, value in body.model_dump().items() if key not in ("subset", "own_orders")}
        orders = tuple(unpack_numbers(order) for order in body.own_orders)
        reading = Reading(dataset=name, subset=body.subset.subset(), own_orders=orders, **told)
        make = await ask(lambda: owner.asked_to_read(reading))
        session = await asyncio.to_thread(make)
        return await ask(lambda: owner.read_in_order(session))


def _add_work(app: FastAPI, owner: Owner, config: Config, ask: Ask) -> None:
    """Jobs and shards."""

    @app.post("/v1/jobs")
    async def prefetch(request: Request, body: PrefetchBody) -> dict[str, Any]:
        spec = _spec(config, body, request)
        asked = JobRequest(spec, body.subset.subset(), body.format, body.stop_after)
        return await ask(lambda: owner.prefetch(asked))

    @app.get("/v1/jobs/{job}")
    async def job(job: JobId) -> dict[str, Any]:
        return await ask(lambda: owner.job(job))

    @app.post("/v1/jobs/{job}/cancel")
    async def cancel(job: JobId) -> dict[str, Any]:
        return await ask(lambda: owner.cancel(job))

    @app.get("/v1/shards")
    async def shards() -> list[dict[str, Any]]:
        return await ask(owner.shard_paths)

    @app.get("/v1/problems")
    async def problems() -> list[str]:
        """Where catalog, index and disk disagree."""
        return await ask(owner.check_books)

    @app.post("/v1/shards/verify")
    async def verify(body: ShardsBody) -> list[dict[str, Any]]:
        """Read these shards whole, off the loop, and say which are bad."""
        bad: list[dict[str, Any]] = []
        wanted = set(body.shards)
        for _ in range(2):  # a row that was evicted while we read looked bad
            rows = [row for row in await ask(owner.shard_paths) if row["shard"] in wanted]
            told = [await asyncio.to_thread(problem_of, Path(row["path"]), row["dead_rows"]) for row in rows]
            bad = [{**row, "problem": problem} for row, problem in zip(rows, told, strict=True) if problem]
            wanted = {row["shard"] for row in bad}
        return bad

    @app.post("/v1/shards/drop")
    async def drop(body: ShardsBody) -> dict[str, Any]:
        """Check these shards again and drop those that are bad; what they held is staged again."""
        bad = await verify(body)
        return await ask(lambda: owner.drop_bad([row["shard"] for row in bad]))


def _spec(config: Config, body: PrefetchBody, request: Request) -> DatasetSpec:
    """What a data set is: as the service's config says. Only our own user may bring a source of their own."""
    if body.spec is None:
        return config.dataset(body.dataset)
    uid = int(request.client.host) if request.client else -1
    if uid not in (os.getuid(), 0):
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
