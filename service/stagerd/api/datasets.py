"""Routes: a data set, one sample of it, and what of it shall go or stay."""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Body

from stager.owner.owner import Owner, Part
from stager.owner.verbs import WHY
from stager.reader.samples.subset import Subset, draw
from stagerd.api.bodies import PinBody, SampleBody, SubsetBody
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
