"""Routes: what readers ask and tell."""

import asyncio
from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Request

from stager.cache.verify import problem_of
from stager.errors import UsageError
from stager.owner.owner import Owner
from stager.reader.cuts import open_cut
from stager.reader.settings import ORDER_NUMBERS_MAX
from stager.reader.values import Numbers, unpack_numbers
from stager.sessions.session import OpenSession, OrderRequest
from stagerd.api.bodies import ByeBody, HelloBody, OrderBody, PositionBody, ReportBody, WantBody
from stagerd.api.handlers import ONE_VERSION, Ask, user_of
from stagerd.api.limits import Users


def add_readers(routes: APIRouter, owner: Owner, users: Users, ask: Ask) -> None:
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

    @routes.post("/datasets/{name}/bye")
    async def bye(request: Request, name: str, body: ByeBody) -> dict[str, Any]:
        """A session reads no more: its version need not be kept for it."""
        pid = request.client.port if request.client else 0
        return await ask(lambda: owner.readers.bye(body.session, pid))

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
                f"a custom order has at most {ORDER_NUMBERS_MAX:,} positions", hint="send only its beginning"
            )
        told |= {"own_orders": orders, "cut": None if body.cut is None else open_cut(body.cut)}
        reading, user = OrderRequest(dataset=name, **told), user_of(request)

        def begin() -> Callable[[], OpenSession]:
            make = owner.readers.asked_to_read(reading)
            length = sum(map(len, orders)) or reading.length // reading.world_size
            users.may_read(user, reading.session, length, owner.loop.sessions.names())
            return make

        session = await asyncio.to_thread(await ask(begin))
        return await ask(lambda: owner.readers.read_in_order(session))


def _unpacked(text: str) -> Numbers:
    try:
        return unpack_numbers(text)
    except ValueError:
        raise UsageError("these are not sample numbers in base64", hint=ONE_VERSION) from None
