"""A mount whose server does not answer, or that vanishes: who looks into it waits, and nobody else."""

import errno
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

import hung
from making import image_folder
from mounts import ServedMount, hung_mount, served_mount
from running import Place
from sets import complaint, table, wait_for
from stager.cache.cache import Cache
from stager.config import Config
from stager.dispatch import tasks
from stager.errors import SourceBusy, SourceError
from stager.interfaces import Fetched
from stager.jobs.job import Job, Request
from stager.owner.owner import Owner
from stager.reader.amount import Amount
from stager.reader.record import DatasetSpec
from stager.reader.samples.subset import Subset
from stager.reader.service import Service
from stager.reader.values import Part, SourceSpec
from stager.recipes import check_recipe
from stager.sources.mount.directory import DirectorySource
from stager.sources.retry import RetryingSource
from stager.sources.threads import ThreadedSource
from warm import command, forked, warm_up

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
    place = Place(tmp_path).configure("".join(table(*item) for item in sources.items()))
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


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[ServedMount]:
    """A mount with images in two classes, beside a directory with as many."""
    image_folder(tmp_path / "data", 2, SAMPLES // 2)
    image_folder(tmp_path / "server", 2, SAMPLES // 2)
    with served_mount(tmp_path / "lab", tmp_path / "server") as mount:
        yield mount


def place_of(tmp_path: Path) -> Place:
    return Place(tmp_path).configure(table("lab", tmp_path / "lab") + table("data", tmp_path / "data"))


def test_status_says_since_when_and_for_what_a_mount_hangs_and_the_job_goes_on_by_itself(
    tmp_path: Path, lab: ServedMount
) -> None:
    place = place_of(tmp_path)
    with place.service():
        api = Service(place.socket)
        assert place.json("status")["hung"] == []
        lab.hang()
        job = api.post("/jobs", {"dataset": "lab"})
        (told,) = wait_for(lambda: place.json("status")["hung"])
        assert (told["dataset"], told["source"]) == ("lab", str(tmp_path / "lab"))
        assert told["hung_s"] >= 5
        assert told["what"] == f"a look at {tmp_path}/lab"
        assert f"lab: hung since {told['hung_s']:.0f}"[:15] in place.run("status").stdout
        assert wait_for(lambda: api.get(f"/jobs/{job['id']}")["paused"]).endswith(f"a look at {tmp_path}/lab")
        assert place.json("prefetch", "data")["staged"] == SAMPLES
        lab.answer()
        done = wait_for(lambda: _ended(api, job["id"]))
        assert (done["state"], done["staged"], done["failed"]) == ("done", SAMPLES, 0)
        assert place.json("status")["hung"] == []


def _ended(api: Service, number: int) -> dict[str, Any] | None:
    job = api.get(f"/jobs/{number}")
    return job if job["state"] in ("done", "failed", "cancelled") else None


def test_a_mount_that_is_mounted_anew_while_a_job_hangs_in_it_is_found_by_itself(
    tmp_path: Path, lab: ServedMount
) -> None:
    place = place_of(tmp_path)
    with place.service():
        api = Service(place.socket)
        lab.hang()
        job = api.post("/jobs", {"dataset": "lab"})
        assert wait_for(lambda: place.json("status")["hung"])
        lab.replace()
        done = wait_for(lambda: _ended(api, job["id"]))
        assert (done["state"], done["staged"], done["failed"]) == ("done", SAMPLES, 0)


VANISHED: dict[str, Callable[[ServedMount], None]] = {
    "unmounted": ServedMount.vanish,
    "no_server": ServedMount.disconnect,
    "EIO": lambda mount: mount.fail(errno.EIO),
    "ESTALE": lambda mount: mount.fail(errno.ESTALE),
}


@pytest.mark.parametrize("how", VANISHED)
def test_a_mount_that_vanishes_is_a_told_error_and_nothing_is_evicted_or_forgotten(
    tmp_path: Path, lab: ServedMount, how: str
) -> None:
    place = place_of(tmp_path)
    with place.service():
        assert place.json("prefetch", "lab", "--classes", "class000,")["staged"] == SAMPLES // 2
        VANISHED[how](lab)
        told = complaint(place.run("prefetch", "lab"), 2 if how == "unmounted" else 1)
        assert str(lab.path) in told
        assert place.json("status")["datasets"][0]["resident"] == SAMPLES // 2
        assert place.json("status")["datasets"][0]["samples"] == SAMPLES
        assert place.run("refresh", "lab").returncode in (1, 2)
        lab.end()
        lab.come_back()
        done = place.json("prefetch", "lab")
        assert (done["staged"], done["already"], done["failed"]) == (SAMPLES // 2, SAMPLES // 2, 0)


@pytest.mark.parametrize("how", VANISHED)
def test_a_source_that_vanishes_between_scan_and_read_is_no_missing_sample(
    tmp_path: Path, lab: ServedMount, how: str
) -> None:
    source = RetryingSource(ThreadedSource(DirectorySource(lab.path)), (), lambda seconds: None)
    infos = list(source.scan())
    VANISHED[how](lab)
    came: SimpleQueue[Fetched] = SimpleQueue()
    source.start(Part(infos[0]), came.put)
    assert isinstance(came.get(timeout=20), SourceError)
    with suppress(SourceError):
        assert not list(source.scan()), "an empty folder: the job says so"


def test_another_device_in_the_place_of_a_mount_is_no_deletion(tmp_path: Path, lab: ServedMount) -> None:
    source = DirectorySource(lab.path)
    infos = list(source.scan())
    lab.vanish()
    (lab.path / "README").touch()
    with pytest.raises(SourceBusy, match="another directory took its place"):
        source.read(Part(infos[0]))
    scan = source.scan()
    assert [info.key for info in scan] == ["README"], (
        "what is there now; that much has gone is told by others"
    )


def test_no_command_waits_long_for_a_mount_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does a start of the service, its reload, or a client that opens a data set by its path."""
    image_folder(tmp_path / "data", 2, SAMPLES // 2)
    with hung_mount(tmp_path / "hung") as hung_path:
        (tmp_path / "link").symlink_to(hung_path)
        tables = '[datasets.{0}]\nsource = "{1}"\nlayout = "table"\ntable = "{2}"\nlabel = "a"\n'
        place = Place(tmp_path).configure(
            table("data", tmp_path / "data")
            + table("lab", hung_path)
            + tables.format("inside", hung_path, f"{hung_path}/t.csv")
            + tables.format("beside", tmp_path / "data", "link/t.csv")
        )
        assert place.json("prefetch", "data")["staged"] == SAMPLES
        monkeypatch.setenv("STAGER_CONFIG", str(place.config))
        warm_up("stager.cli.status", "stager.cli.check", "stager.cli.upkeep.evict")
        for verb in (("status",), ("ls",), ("stats",), ("why", "data", "0"), ("verify",), ("evict", "lab")):
            assert not (ended := forked(command(*verb))).wrong, (verb, ended)
        looked = forked(command("check", str(hung_path)))
        assert (looked.code, looked.hung) == (1, False), looked
        assert "no answer for 10 s" in looked.said
        with place.service() as service:
            service.send_signal(signal.SIGHUP)
            wait_for(lambda: "config reloaded" in place.log())
            code = f"""
import os
os.chdir({str(tmp_path)!r})
from stager.errors import StagerError
from stager_client.numpy import StagedArrays
for name in ({str(hung_path)!r}, "lab", "inside"):
    try:
        StagedArrays(name, 4, timeout_s=2)
    except StagerError as error:
        print("told:", error)
"""
            done = place.python(code, timeout_s=60)
            assert done.stdout.count("told:") == 3, done.stdout + done.stderr
            assert place.json("status")["datasets"][0]["resident"] == SAMPLES


def test_while_a_mount_hangs_others_go_on_and_nothing_is_lost(tmp_path: Path) -> None:
    """The programme `tests/hung.py`, shortly, without its verdict on times."""
    told = hung.measure(tmp_path, samples=300, rounds=1)
    assert told["resident_before"] > 0
    assert told["lost"] == 0
    assert told["hung_told"] > 0
    assert told["job_after"] == "done"
    assert told["failed"] == 0
    assert told["stop_s"] < 30
