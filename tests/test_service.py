"""The service as a process: its API over the real socket, its signals, and what systemd hears."""

import http.client
import json
import os
import signal
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import stager
from countingproxy import CountingProxy, counting_proxy
from making import image_folder, jpeg
from running import Place
from s3server import S3Server
from sets import shard_files, staged, table, wait_for
from stager.control import Service
from stager.errors import NoService, StagerError
from stager.job import ENDED

COUNT = 12
FUZZ = int(os.environ.get("STAGER_FUZZ", "100"))  # bodies for each call
NAMES = ("pets", "other", "free")


def ask(path: Path, method: str, url: str, body: bytes | None = None) -> tuple[int, Any]:
    """One raw HTTP request: the status, and the JSON of the answer."""
    connection = http.client.HTTPConnection("stager", timeout=60)
    connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.sock.settimeout(60)
        connection.sock.connect(str(path))
        connection.request(method, url, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def is_our_error(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {"error", "message", "hint"} and bool(value["message"])


def ended(service: Service, job: int) -> dict[str, Any]:
    """The job, once it has ended."""
    value: dict[str, Any] = wait_for(lambda: _if_ended(service.get(f"/jobs/{job}")))
    return value


def _if_ended(job: dict[str, Any]) -> dict[str, Any] | None:
    return job if job["state"] in ENDED else None


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    place = Place(tmp_path_factory.mktemp("served"))
    image_folder(place.root / "source", 4, COUNT // 4)
    tables = [table(name, place.root / "source", f"crop = {32 + at}") for at, name in enumerate(NAMES)]
    place.configure("".join(tables))
    with place.service():
        service = Service(place.socket)
        for name in ("pets", "free"):
            ended(service, service.post("/jobs", {"dataset": name})["id"])
        yield place


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


# The API


def test_the_api_describes_itself_and_every_path_has_its_version(served: Place) -> None:
    status, document = ask(served.socket, "GET", "/v1/openapi.json")
    assert status == 200
    assert document["openapi"].startswith("3.")
    assert document["info"] == {"title": "stager", "version": stager.__version__}
    assert all(path.startswith("/v1/") for path in document["paths"])
    assert {(method.upper(), path) for path, verbs in document["paths"].items() for method in verbs} == {
        (method, path) for method, path, *_ in CALLS
    }


TOTALS = {"requests": 5, "hits": 3, "misses": 2, "wait_s": 0.5, "reasons": {"late": 1, "not_planned": 1}}
REPORT = {"dataset": "pets", "session": "s", "process": "p", "length": 4, "epoch": None, "totals": TOTALS}
ORDER = {
    "session": "s", "manifest": "", "subset": {"classes": 1}, "shuffle": True, "seed": 1, "epoch": 0,
    "rank": 0, "world_size": 1, "drop_last": False, "length": COUNT // 4, "start": 0,
}  # fmt: skip
PREFETCH = {"dataset": "pets", "subset": {"classes": 2}, "format": "lmdb", "stop_after": "plan"}
JOB = {"id", "dataset", "state", "done", "wanted", "rate", "eta_s", "staged", "already", "failed", "error"}
CALLS: list[tuple[str, str, Any, set[str]]] = [  # method, path, body, what the answer has
    ("GET", "/v1/status", None, {"service", "budget", "datasets", "jobs"}),
    ("GET", "/v1/stats", None, {"datasets", "sessions"}),
    ("GET", "/v1/datasets", None, {"name", "samples", "resident", "failed", "bytes", "format", "source"}),
    ("GET", "/v1/datasets/{name}", None, {"name", "directory", "manifest", "recipe"}),
    ("GET", "/v1/datasets/{name}/failures", None, set()),
    ("GET", "/v1/datasets/{name}/classes", None, {"class", "samples", "resident"}),
    (
        "POST",
        "/v1/datasets/{name}/want",
        {"manifest": "", "samples": [0, 3], "wait_s": 5},
        {"pending", "reasons"},
    ),
    ("POST", "/v1/datasets/{name}/why", {"sample": "0"}, {"index", "key", "resident", "why", "last"}),
    ("POST", "/v1/sessions", {"session": "nobody", "position": 3}, {"knows_order"}),
    ("GET", "/v1/datasets/{name}/reads", None, {"dataset", "reads", "sample_bytes"}),
    ("POST", "/v1/datasets/{name}/evict", {}, {"dataset", "shards", "samples", "bytes", "pinned"}),
    ("POST", "/v1/datasets/{name}/pin", {"pinned": True}, {"dataset", "shards", "samples", "bytes"}),
    ("POST", "/v1/datasets/{name}/sessions", ORDER, {"samples", "missing"}),
    ("POST", "/v1/reports", REPORT, {"knows_order"}),
    ("POST", "/v1/jobs", PREFETCH, JOB),
    ("GET", "/v1/jobs/{job}", None, JOB),
    ("POST", "/v1/jobs/{job}/cancel", None, JOB),
    ("GET", "/v1/shards", None, {"shard", "dataset", "samples", "bytes", "path"}),
    ("GET", "/v1/problems", None, set()),
    ("POST", "/v1/shards/verify", {"shards": [1]}, set()),
    ("POST", "/v1/shards/drop", {"shards": [1]}, {"dropped", "jobs"}),
]


@pytest.mark.parametrize(("method", "path", "body", "has"), CALLS, ids=[f"{c[0]} {c[1]}" for c in CALLS])
def test_every_path_answers_as_documented(
    method: str, path: str, body: Any, has: set[str], served: Place
) -> None:
    service = Service(served.socket)
    if body and "manifest" in body:
        body = {**body, "manifest": service.get("/datasets/pets")["manifest"]}
    name = "free" if path.endswith("evict") else "pets"
    url = path.format(name=name, job=service.get("/status")["jobs"][0]["id"])
    status, answer = ask(served.socket, method, url, None if body is None else json.dumps(body).encode())
    assert status == 200, answer
    rows = answer if isinstance(answer, list) else [answer]
    assert all(has <= set(row) for row in rows)
    assert rows or not has


ODD = [
    float("inf"),
    float("nan"),
    10**30,
    -1,
    "",
    None,
    [],
    {},
    "\ud800",
    "..",
    "/nowhere",
    "s3://",
    "\0",
    "()",
]
JUNK = st.recursive(
    st.sampled_from(ODD)
    | st.booleans()
    | st.integers(-3, 20)
    | st.integers(10**15, 10**40)
    | st.floats()
    | st.text(st.characters(exclude_characters="/"), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)
SUBSET = {
    "classes": ["class000"],
    "seed": 1,
    "per_class": 2,
    "fraction": 0.5,
    "where": "size > 1KB or label in (1, 2)",
    "split": None,
}
SOURCE = {"url": "/nowhere/at/all", "endpoint_url": None, "region": None, "profile": None, "anonymous": False}
RECIPE = {"kind": "image", "resize": 40, "crop": 32, "encode": "raw", "quality": 90, "max_pixels": 1000}
SPEC = {"name": "fuzz", "source": SOURCE, "layout": "folder", "recipe": RECIPE}
# What is sent is one of these, with one or two of its values replaced.
GOOD: list[tuple[str, dict[str, Any]]] = [
    ("/v1/datasets/pets/want", {"manifest": "right", "samples": [0, 3], "corrupt": [1], "wait_s": 0.01}),
    ("/v1/datasets/pets/sessions", {**ORDER, "manifest": "right"}),
    ("/v1/datasets/pets/evict", SUBSET),
    ("/v1/datasets/pets/pin", {"subset": SUBSET, "pinned": True}),
    ("/v1/reports", REPORT),
    ("/v1/reports", {**REPORT, "epoch": 3}),
    ("/v1/jobs", {"dataset": "other", "subset": SUBSET, "format": "auto", "stop_after": "plan"}),
    ("/v1/jobs", {"spec": SPEC, "stop_after": "plan"}),
    ("/v1/shards/verify", {"shards": [1, 2]}),
    ("/v1/shards/drop", {"shards": [1, 2]}),
]


def places_in(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to each value inside a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, inner in items for found in places_in(inner, (*path, key)))]


def replaced(value: Any, path: tuple[Any, ...], junk: Any) -> Any:
    if not path:
        return junk
    copy = value.copy()
    copy[path[0]] = replaced(copy[path[0]], path[1:], junk)
    return copy


@pytest.mark.parametrize(("path", "good"), GOOD, ids=[f"{path}-{at}" for at, (path, _) in enumerate(GOOD)])
def test_no_body_breaks_the_service_and_bad_ones_get_our_error(
    path: str, good: dict[str, Any], served: Place
) -> None:
    service = Service(served.socket)
    if "manifest" in good:
        good = {**good, "manifest": service.get("/datasets/pets")["manifest"]}

    @settings(
        max_examples=FUZZ,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(data=st.data())
    def any_body(data: st.DataObject) -> None:
        body: Any = good
        for _ in range(data.draw(st.integers(1, 2))):
            body = replaced(body, data.draw(st.sampled_from(places_in(body))), data.draw(JUNK))
        status, answer = ask(served.socket, "POST", path, json.dumps(body).encode())
        assert status in (200, 400, 409, 422), (body, answer)
        assert status == 200 or is_our_error(answer), (body, answer)

    any_body()
    assert ask(served.socket, "GET", "/v1/stats")[0] == 200
    wait_for(lambda: all(job["state"] in ENDED for job in service.get("/status")["jobs"]))
    assert "Traceback" not in served.log()


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b"null", b"[" * 5000], ids=range(5))
def test_a_body_that_is_no_json_is_refused(body: bytes, served: Place) -> None:
    status, answer = ask(served.socket, "POST", "/v1/jobs", body)
    assert status in (400, 422)
    assert is_our_error(answer)


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("GET", "/v1/nothing", 404),
        ("GET", "/", 404),
        ("DELETE", "/v1/status", 405),
        ("GET", "/v1/jobs/soon", 422),
        ("GET", "/v1/jobs/999999", 400),
        ("GET", f"/v1/jobs/{10**30}", 422),
        ("GET", f"/v1/datasets/{quote('no such')}", 400),
        ("GET", "/v1/datasets/%ff%00/failures", 400),
    ],
)
def test_a_path_nobody_has_is_our_error(method: str, path: str, code: int, served: Place) -> None:
    status, answer = ask(served.socket, method, path)
    assert (status, is_our_error(answer)) == (code, True), answer


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


def test_only_its_own_user_may_bring_a_source_that_is_not_in_the_config(
    tmp_path: Path, served: Place
) -> None:
    if os.getuid() != 0:
        pytest.skip("to become another user, one must be root")
    image_folder(tmp_path / "own", 1, 1)
    spec = {
        "name": "own",
        "source": {"url": str(tmp_path / "own")},
        "layout": "folder",
        "recipe": {"crop": 32},
    }
    body = json.dumps({"spec": spec}).encode()
    known = json.dumps({"dataset": "pets", "stop_after": "scan"}).encode()
    modes = {path: path.stat().st_mode for path in (served.socket, *served.socket.parents)}
    for path, mode in modes.items():
        path.chmod(mode | (0o666 if path.is_socket() else 0o001))
    try:
        status, answer = as_nobody(served.socket, body)
        assert (status, answer["error"]) == (409, "SourceForbidden")
        assert "only the service's own user" in answer["message"]
        assert as_nobody(served.socket, known)[0] == 200  # what the operator offers, everyone may ask for
    finally:
        for path, mode in modes.items():
            path.chmod(mode)
    status, job = ask(served.socket, "POST", "/v1/jobs", body)
    assert status == 200
    assert ended(Service(served.socket), job["id"])["staged"] == 1


def as_nobody(path: Path, body: bytes) -> tuple[int, Any]:
    """POST /v1/jobs from a process of another user. It forks, since that user may not run our Python."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            os.write(send, json.dumps(ask(path, "POST", "/v1/jobs", body)).encode())
        finally:
            os._exit(0)
    os.close(send)
    os.waitpid(child, 0)
    with os.fdopen(receive) as pipe:
        status, answer = json.loads(pipe.read())
    return status, answer


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
    manifest = service.get("/datasets/far")["manifest"]
    with counting_proxy(far.socket, far.root / "door") as door:

        def wait_in_want() -> None:
            body = {"manifest": manifest, "samples": list(range(80)), "wait_s": 60}
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
    for event in ("service ready", "shard staged", "job ended", "links passed by", "service stopped"):
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


def test_the_service_counts_what_it_keeps(served: Place) -> None:
    service = Service(served.socket)
    budget = service.get("/status")["budget"]
    files = [path for name in (*NAMES, "own") if (served.cache / "datasets" / name).exists()
             for path in shard_files(served, name)]  # fmt: skip
    assert budget["used_bytes"] == sum(path.stat().st_size for path in files)
