"""A mount whose server does not answer: who looks into it hangs, and nobody else."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from making import image_folder
from mounts import hung_mount
from running import Place
from stager.cache.cache import Cache
from stager.config import Amount, Config
from stager.dispatch import tasks
from stager.errors import SourceBusy
from stager.jobs.job import Job, Request
from stager.owner.owner import Owner
from stager.reader.record import DatasetSpec
from stager.reader.samples.subset import Subset
from stager.reader.service import Service
from stager.reader.values import SourceSpec
from stager.recipes import check_recipe

SAMPLES = 20
RECIPE = {"kind": "image", "resize": 24, "crop": 16}


@pytest.fixture
def sources(tmp_path: Path) -> Iterator[dict[str, Path]]:
    image_folder(tmp_path / "data", 2, SAMPLES // 2)
    with hung_mount(tmp_path / "hung") as hung:
        yield {"data": tmp_path / "data", "hung": hung}


def test_the_service_answers_stages_and_stops_while_a_mount_hangs(
    tmp_path: Path, sources: dict[str, Path]
) -> None:
    table = '[datasets.{0}]\nsource = "{1}"\nrecipe = {{resize = 24, crop = 16}}\n'
    place = Place(tmp_path).configure("".join(table.format(*item) for item in sources.items()))
    with place.service():
        api = Service(place.socket)
        hung = api.post("/jobs", {"dataset": "hung"})
        assert place.json("prefetch", "data")["staged"] == SAMPLES
        assert place.json("status")["datasets"][0]["resident"] == SAMPLES
        assert api.get(f"/jobs/{hung['id']}")["state"] == "scanning"


def test_a_worker_that_hangs_in_its_source_is_given_up_and_another_goes_on(
    tmp_path: Path, sources: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "STALL_S", 2.0)
    cache = Cache(Config(None, tmp_path / "cache", tmp_path / "sock", Amount(bytes=10**9), Amount()))
    owner = Owner(cache)

    def stage(name: str) -> Job:
        spec = DatasetSpec(name, SourceSpec(str(sources[name])), "folder", check_recipe(RECIPE))
        job = owner.loop.jobs.submit(Request(spec, Subset(), "auto"))
        deadline = time.monotonic() + 60
        while not job.ended:
            assert time.monotonic() < deadline, job.to_json()
            owner.loop.step(0.05)
        return job

    try:
        hung = stage("hung")
        assert hung.state == "failed"
        assert isinstance(hung.error, SourceBusy)
        assert "hung: no answer for 2 s" in hung.error.message
        data = stage("data")
        assert (data.state, data.staged) == ("done", SAMPLES)
    finally:
        owner.loop.stop()
        cache.close()
