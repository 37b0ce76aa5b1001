"""Routes: a data set, one sample of it, and what of it shall go or stay."""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Body

from stager.owner.owner import DrawnPart, Owner
from stager.owner.verbs import COMPARE, REMOVE, WHY
from stager.reader.samples.changes import compare
from stager.reader.samples.subset import Subset, draw
from stagerd.api.bodies import CompareBody, PinBody, RemoveBody, SampleBody, SubsetBody
from stagerd.api.handlers import Ask


def add_datasets(routes: APIRouter, owner: Owner, ask: Ask) -> None:
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

    @routes.post(COMPARE.path)
    async def compare_versions(name: str, body: CompareBody) -> dict[str, Any]:
        """What one version has and another has not; off the loop: a million samples take a second."""
        before, after = await ask(lambda: owner.two_versions(name, body.before, body.after))
        return (await asyncio.to_thread(compare, before, after)).to_json()

    @routes.post(REMOVE.path)
    async def remove(name: str, body: RemoveBody) -> dict[str, Any]:
        """Forget a data set. Until it `is_gone`, ask again: what workers have under way ends first."""
        return await ask(lambda: owner.remove(name, body.force))

    async def draw_beside(name: str, subset: Subset) -> DrawnPart:
        """What a subset is, worked out off the loop: `where` may take seconds."""
        manifest = (await ask(lambda: owner.dataset(name))).manifest
        return DrawnPart(manifest, (await asyncio.to_thread(draw, manifest, subset)).numbers)

    @routes.post("/datasets/{name}/evict")
    async def evict(name: str, body: Annotated[SubsetBody, Body()]) -> dict[str, Any]:
        drawn = await draw_beside(name, body)
        return await ask(lambda: owner.evict(name, body, drawn))

    @routes.post("/datasets/{name}/pin")
    async def pin(name: str, body: PinBody) -> dict[str, Any]:
        drawn = await draw_beside(name, body.subset)
        return await ask(lambda: owner.pin(name, body.subset, body.pinned, drawn))
