"""Routes: room for kept results, and their end."""

from typing import Any

from fastapi import APIRouter

from stager.owner.owner import Owner
from stagerd.api.bodies import MemoBody, MemoRoomBody
from stagerd.api.handlers import Ask


def add_memos(routes: APIRouter, owner: Owner, ask: Ask) -> None:
    @routes.post("/memos/{name}/room")
    async def find_room(name: str, body: MemoRoomBody) -> dict[str, Any]:
        """A client is about to write a result of so many bytes."""
        return await ask(lambda: owner.memos.find_room(name, body.key, body.size_bytes))

    @routes.post("/memos/{name}/kept")
    async def kept(name: str, body: MemoBody) -> dict[str, Any]:
        """It is written."""
        return await ask(lambda: owner.memos.kept(name, body.key))

    @routes.post("/memos/{name}/evict")
    async def evict(name: str) -> dict[str, Any]:
        return await ask(lambda: owner.memos.evict(name))
