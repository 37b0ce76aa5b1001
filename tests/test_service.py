"""The service as a process: its jobs, its signals, and what systemd hears."""

import json
import signal
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from countingproxy import CountingProxy, counting_proxy
from making import image_folder, jpeg
from running import Place
from s3server import S3Server
from sets import ended, staged, table, wait_for
from stager.errors import NoService, StagerError
from stager.reader.service import Service


@pytest.fixture
def proxy(s3: S3Server) -> Iterator[CountingProxy]:
    address = urlsplit(s3.endpoint_url)
    with counting_proxy((str(address.hostname), int(address.port or 0))) as running:
        yield running


@pytest.fixture
def far(tmp_path: Path, s3: S3Server, proxy: CountingProxy) -> Place:
    """A place whose data set `far` is in S3, behind the proxy: 80 images."""
    for number in range(80):
        key = f"far/c{number % 2}/{number}.jpg"
        s3.client().put_object(Bucket=s3.public_bucket, Key=key, Body=jpeg(number))
    access: dict[str, str | bool] = {"endpoint_url": proxy.endpoint_url, "anonymous": True}
    return Place(tmp_path).configure(table("far", f"s3://{s3.public_bucket}/far", **access))


# Jobs


def test_prefetches_of_the_same_data_at_once_fetch_every_object_once(
    far: Place, proxy: CountingProxy
) -> None:
    with far.service():
        service = Service(far.socket)
        proxy.allow(10)
        jobs = [service.post("/jobs", {"dataset": "far"})["id"] for _ in range(2)]
        wait_for(lambda: len(proxy.objects()) > 10)
        jobs += [service.post("/jobs", {"dataset": "far", "subset": {"classes": 1}})["id"]]
        proxy.allow(None)
        results = [ended(service, job) for job in jobs]
        assert [(job["state"], job["wanted"], job["failed"]) for job in results] == [
            ("done", 80, 0), ("done", 80, 0), ("done", 40, 0),
        ]  # fmt: skip
        assert service.get("/stats")["datasets"]["far"]["origin_reads"] == 80
        assert sorted(proxy.objects()) == sorted(set(proxy.objects()))
        assert len(staged(far, "far")) == 80
        assert service.get("/problems") == []


def test_a_plan_beside_a_prefetch_takes_nothing_from_it(far: Place, proxy: CountingProxy) -> None:
    with far.service():
        service = Service(far.socket)
        proxy.allow(0)
        plan = service.post("/jobs", {"dataset": "far", "stop_after": "plan"})["id"]
        wait_for(lambda: len(proxy.objects()) >= 32)  # it measures these
        job = service.post("/jobs", {"dataset": "far"})["id"]
        wait_for(lambda: service.get(f"/jobs/{job}")["state"] in ("planning", "staging"))
        proxy.allow(None)
        assert ended(service, plan)["state"] == "done"
        assert ended(service, job)["staged"] == 80


def test_two_data_sets_of_one_source_are_staged_at_once(far: Place, proxy: CountingProxy) -> None:
    config = far.config.read_text()
    far.config.write_text(config + config[config.index("[datasets.far]") :].replace("far]", "wide]").replace(
        "far.recipe]\ncrop = 32", "wide.recipe]\ncrop = 33"))  # fmt: skip
    with far.service():
        service = Service(far.socket)
        proxy.allow(0)
        jobs = [service.post("/jobs", {"dataset": name})["id"] for name in ("far", "wide")]
        wait_for(lambda: len(proxy.objects()) >= 64)  # both have asked for their first samples
        proxy.allow(None)
        assert [ended(service, job)["staged"] for job in jobs] == [80, 80]
    assert {pixels.shape for pixels in staged(far, "far").values()} == {(32, 32, 3)}
    assert {pixels.shape for pixels in staged(far, "wide").values()} == {(33, 33, 3)}


def test_a_job_that_is_cancelled_leaves_nothing_behind(far: Place, proxy: CountingProxy) -> None:
    with far.service():
        service = Service(far.socket)
        proxy.allow(40)
        command = far.start("prefetch")
        wait_for(lambda: len(proxy.objects()) > 40)
        job = service.get("/status")["jobs"][0]["id"]
        assert service.post(f"/jobs/{job}/cancel", None)["state"] == "cancelled"
        again = service.post("/jobs", {"dataset": "far"})["id"]
        assert service.post(f"/jobs/{again}/cancel", None)["state"] == "cancelled"  # while it is scanned
        command.communicate(timeout=60)
        assert command.returncode == 3
        proxy.allow(None)
        for _ in range(3):  # by the end of these, the scan that nobody waits for is over, too
            ended(service, service.post("/jobs", {"dataset": "far"})["id"])
        assert far.leftovers() == []
        assert service.get("/problems") == []


# Start and stop


def test_systemd_hears_ready_watchdog_and_stopping_and_a_term_ends_it_with_0(tmp_path: Path) -> None:
    image_folder(tmp_path / "source", 1, 1)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(30)
        environ = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"}
        place = Place(tmp_path, environ).configure(table("pets", tmp_path / "source"))
        process = place.start_service()
        heard: list[str] = []
        while heard.count("WATCHDOG=1") < 3 or "READY=1" not in heard:
            heard += systemd.recv(4096).decode().splitlines()
        assert any(line.startswith("STATUS=") for line in heard)
        assert stat.S_IMODE(place.socket.stat().st_mode) == 0o660
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        while "STOPPING=1" not in heard:
            heard += systemd.recv(4096).decode().splitlines()
    assert not place.socket.exists()
    assert "service stopped" in place.log()


def test_a_stop_lets_waiting_readers_go_and_the_job_goes_on_at_the_next_start(
    far: Place, proxy: CountingProxy
) -> None:
    process = far.start_service()
    service = Service(far.socket)
    proxy.allow(50)
    job = service.post("/jobs", {"dataset": "far"})["id"]
    wait_for(lambda: len(proxy.objects()) > 50)
    wait_for(lambda: len(staged(far, "far")) >= 32)
    errors: list[StagerError] = []
    far_now = service.get("/datasets/far")
    version = {name: far_now[name] for name in ("recipe", "lineage")}
    with counting_proxy(far.socket, far.root / "door") as door:

        def wait_in_want() -> None:
            body = {**version, "samples": list(range(80)), "wait_s": 60}
            try:
                Service(far.root / "door").post("/datasets/far/want", body, timeout_s=60)
            except StagerError as error:
                errors.append(error)

        reader = threading.Thread(target=wait_in_want)
        reader.start()
        wait_for(lambda: door.requests)
        service.get("/status")  # what came before has been taken in
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        reader.join()
    assert [(type(error), error.message) for error in errors] == [(NoService, "the service is stopping")]
    assert far.leftovers() == []
    recorded = set(staged(far, "far"))
    assert len(recorded) >= 32

    proxy.allow(None)
    proxy.requests.clear()
    with far.service():
        result = ended(service, job)
        assert (result["state"], result["wanted"]) == ("done", 80)
        assert result["already"] >= 32
        assert len(staged(far, "far")) == 80
        assert recorded.isdisjoint(path.removeprefix("/public/far/") for path in proxy.objects())
    with far.service():
        assert service.get(f"/jobs/{job}")["state"] == "done"  # it is remembered


def test_with_log_json_every_line_is_json(tmp_path: Path) -> None:
    image_folder(tmp_path / "source", 2, 2)
    (tmp_path / "source/class000/bad.jpg").write_bytes(b"no image")
    (tmp_path / "source/class000/out.jpg").symlink_to("/etc/hostname")
    place = Place(tmp_path).configure(table("pets", tmp_path / "source") + table("none", tmp_path / "none"))
    with place.service("--log-json", "--log-level", "debug"):
        service = Service(place.socket)
        assert ended(service, service.post("/jobs", {"dataset": "pets"})["id"])["failed"] == 1
        assert ended(service, service.post("/jobs", {"dataset": "none"})["id"])["state"] == "failed"
    lines = [json.loads(line) for line in place.log().splitlines()]
    assert all({"at", "level", "event"} <= set(line) for line in lines)
    events = " ".join(line["event"] for line in lines)
    for event in (
        "service ready",
        "shard staged",
        "job ended",
        "left out: 1 link that leads out",
        "service stopped",
    ):
        assert event in events


def test_a_dead_services_socket_is_taken_over_but_no_other_file(tmp_path: Path) -> None:
    image_folder(tmp_path / "source", 1, 1)
    place = Place(tmp_path).configure(table("pets", tmp_path / "source"))
    process = place.start_service()
    process.kill()
    process.wait()
    assert place.socket.is_socket()
    with place.service():
        assert Service(place.socket).get("/status")["service"]["up"]
    place.socket.unlink(missing_ok=True)
    place.socket.write_text("my thesis")
    done = place.run("serve")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-2].startswith(f"stager: {place.socket} ")
    assert place.socket.read_text() == "my thesis"
