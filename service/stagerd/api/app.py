"""The service's HTTP API, version 1. Handlers only translate: the loop does the work."""

import asyncio
import json
from collections.abc import Callable
from types import MethodType
from typing import Any, TypeVar

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from stager import __version__, errors
from stager.errors import NoService, StagerError, UsageError
from stager.owner.owner import Owner
from stager.owner.verbs import VERBS
from stager.reader.service import API
from stagerd.api.datasets import add_datasets
from stagerd.api.handlers import ONE_VERSION, on_loop
from stagerd.api.jobs import add_jobs
from stagerd.api.limits import BoundedBodies, Users
from stagerd.api.memos import add_memos
from stagerd.api.readers import add_readers

T = TypeVar("T")
_STATUS = {UsageError: 400, NoService: 503}


class AsciiJson(JSONResponse):
    """JSON that can carry any key: bytes that are no UTF-8 are escaped, as `decode_key` has them."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False).encode()


def make_app(owner: Owner) -> FastAPI:
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
        told = UsageError(f"{request.method} {request.url.path}: {error.detail}", hint=ONE_VERSION)
        return AsciiJson(errors.to_json(told), error.status_code, error.headers)

    @app.exception_handler(Exception)
    async def broke(request: Request, error: Exception) -> JSONResponse:
        told = f"the service failed: {type(error).__name__}: {error}"
        return AsciiJson(errors.to_json(StagerError(told, hint="see its log, and report it")), 500)

    @app.exception_handler(RequestValidationError)
    async def refused(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        told = UsageError(f"the request is not valid: {where}: {first['msg']}", hint=ONE_VERSION)
        return AsciiJson(errors.to_json(told), 422)

    app.add_middleware(BoundedBodies)
    routes, users = APIRouter(prefix=API), Users()
    for verb in VERBS:
        if not verb.posted:
            routes.get(verb.path)(on_loop(MethodType(verb.act, owner), ask))
    add_datasets(routes, owner, ask)
    add_readers(routes, owner, users, ask)
    add_jobs(routes, owner, users, ask)
    add_memos(routes, owner, ask)
    app.include_router(routes)
    return app
