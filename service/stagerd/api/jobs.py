"""Routes: jobs, and shards that are read whole."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi import Path as InPath

from stager.cache.verify import problem_of
from stager.config import Config
from stager.errors import SourceForbidden, UsageError
from stager.jobs.job import Request as JobRequest
from stager.layouts import check_layout
from stager.owner.owner import Owner
from stager.owner.verbs import CANCEL, REFRESH, STAGE_HOT
from stager.reader.record import DatasetSpec
from stager.recipes import check_recipe, is_code
from stagerd.api.bodies import CancelBody, HotBody, PrefetchBody, RefreshBody, ShardsBody
from stagerd.api.handlers import Ask, user_of
from stagerd.api.limits import Users

JobId = Annotated[int, InPath(gt=-(2**63), lt=2**63)]


def add_jobs(routes: APIRouter, owner: Owner, users: Users, ask: Ask) -> None:
    @routes.post("/jobs")
    async def prefetch(request: Request, body: PrefetchBody) -> dict[str, Any]:
        spec = _spec(owner.cache.config, body, request)
        how = body.format, body.stop_after, False, body.retry_failed, body.evict_cold
        asked = JobRequest(spec, body.subset, *how)
        return await begin(user_of(request), lambda: owner.prefetch(asked))

    @routes.post(REFRESH.path)
    async def refresh(request: Request, name: str, body: RefreshBody) -> dict[str, Any]:
        """What has changed at the source; and to take that for the newest version."""
        return await begin(user_of(request), lambda: owner.refresh(name, body.how))

    @routes.post(STAGE_HOT.path)
    async def stage_hot(request: Request, body: HotBody) -> dict[str, Any]:
        """Stage what is hot and missing now: a job a data set."""
        user = user_of(request)

        def act() -> dict[str, Any]:
            users.may_begin(user, owner.loop.jobs.unfinished())
            begun = owner.stage_hot(body.name)
            for job in begun["jobs"]:
                users.began(user, job["id"])
            return begun

        return await ask(act)

    async def begin(user: int, ask_for: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        def act() -> dict[str, Any]:
            users.may_begin(user, owner.loop.jobs.unfinished())
            job = ask_for()
            users.began(user, job["id"])
            return job

        return await ask(act)

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


def _spec(config: Config, body: PrefetchBody, request: Request) -> DatasetSpec:
    """What a data set is: as the service's config says. Only our own user may bring a source of their own."""
    if body.spec is None:
        return config.dataset(body.dataset)
    if user_of(request) not in (os.getuid(), 0):
        raise SourceForbidden(
            "only the service's own user may stage a source that is not in its config",
            hint=f"ask the operator to add it to {config.path or '/etc/stager/stager.toml'}",
        )
    spec = DatasetSpec.from_json({**body.spec.model_dump(), "recipe": check_recipe(body.spec.recipe)})
    if is_code(spec.recipe):
        raise SourceForbidden(
            "a function runs only if the service's config names it", hint="add the data set to the config"
        )
    if spec.name in config.datasets:
        raise UsageError(f"{spec.name!r} is in the service's config", hint="leave out the spec")
    check_layout(spec.layout, spec.options)
    return spec
