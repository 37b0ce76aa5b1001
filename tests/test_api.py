"""The service's API over the real socket: what it answers, to whom, and what no body can do to it."""

import http.client
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import stager
from making import image_folder
from running import Place
from sets import ended, shard_files, table, wait_for
from stager.errors import UsageError
from stager.jobs.job import ENDED
from stager.owner.verbs import CANCEL, FAILURES, STATUS, VERBS, WHY
from stager.reader.memo.store import MemoStore
from stager.reader.service import API, Service

COUNT = 12
FUZZ = int(os.environ.get("STAGER_FUZZ", "100"))  # bodies for each call
NAMES = ("pets", "other", "free", "gone")


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


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    place = Place(tmp_path_factory.mktemp("served"))
    image_folder(place.root / "source", 4, COUNT // 4)
    tables = [table(name, place.root / "source", f"crop = {32 + at}") for at, name in enumerate(NAMES)]
    place.configure("".join(tables))
    with place.service():
        service = Service(place.socket)
        for name in ("pets", "free", "gone"):
            ended(service, service.post("/jobs", {"dataset": name})["id"])
            MemoStore(place.cache).prepare(name)
        yield place


def test_the_api_describes_itself_and_every_path_has_its_version(served: Place) -> None:
    status, document = ask(served.socket, "GET", "/v1/openapi.json")
    assert status == 200
    assert document["openapi"].startswith("3.")
    assert document["info"] == {"title": "stager", "version": stager.__version__}
    assert all(path.startswith("/v1/") for path in document["paths"])
    assert {(method.upper(), path) for path, verbs in document["paths"].items() for method in verbs} == {
        (method, path) for method, path, *_ in CALLS
    }


def test_a_service_says_at_its_start_how_many_data_sets_it_serves(served: Place) -> None:
    (ready,) = [line for line in served.log().splitlines() if "service ready" in line]
    assert ready.endswith(f" datasets={len(NAMES)}")


def test_every_verb_has_its_route(served: Place) -> None:
    _, document = ask(served.socket, "GET", "/v1/openapi.json")
    for verb in VERBS:
        assert ("post" if verb.posted else "get") in document["paths"][API + verb.path]


def test_a_verb_is_asked_of_a_service_with_what_its_owner_takes() -> None:
    assert STATUS.request() == ("/status", None)
    assert FAILURES.request("pets") == FAILURES.request(name="pets") == ("/datasets/pets/failures", None)
    assert WHY.request("pets", "a/{b}.jpg") == ("/datasets/pets/why", {"sample": "a/{b}.jpg"})
    assert CANCEL.request(3, finish=True) == ("/jobs/3/cancel", {"finish": True})


TOTALS = {"requests": 5, "hits": 3, "misses": 2, "wait_s": 0.5, "reasons": {"late": 1, "not_planned": 1}}
VERSION = {"recipe": "", "lineage": ""}  # of the data set, filled in when it is asked for
REPORT = {
    **VERSION, "dataset": "pets", "session": "s", "process": "p", "length": 4, "epoch": None,
    "totals": TOTALS,
}  # fmt: skip
ORDER = {
    **VERSION, "session": "s", "manifest": "", "subset": {"classes": 1}, "shuffle": True, "seed": 1,
    "epoch": 0, "rank": 0, "world_size": 1, "drop_last": False, "length": COUNT // 4, "start": 0,
}  # fmt: skip
PREFETCH = {"dataset": "pets", "subset": {"classes": 2}, "format": "lmdb", "stop_after": "plan"}
JOB = {"id", "dataset", "state", "done", "wanted", "rate", "eta_s", "staged", "already", "failed", "error"}
CALLS: list[tuple[str, str, Any, set[str]]] = [  # method, path, body, what the answer has
    ("GET", "/v1/status", None, {"service", "budget", "datasets", "jobs"}),
    ("GET", "/v1/stats", None, {"datasets", "sessions"}),
    ("GET", "/v1/datasets", None, {"name", "samples", "resident", "failed", "bytes", "format", "source"}),
    ("GET", "/v1/datasets/{name}", None, {"name", "directory", "manifest", "recipe", "lineage"}),
    ("GET", "/v1/datasets/{name}/failures", None, set()),
    ("GET", "/v1/datasets/{name}/classes", None, {"class", "samples", "resident"}),
    ("GET", "/v1/datasets/{name}/versions", None, {"dataset", "version", "is_newest", "readers"}),
    ("GET", "/v1/datasets/{name}/heat", None, {"dataset", "warm", "classes", "samples"}),
    ("POST", "/v1/datasets/{name}/bye", {"session": "s"}, set()),
    ("POST", "/v1/datasets/{name}/compare", {"before": "", "after": ""}, {"same", "added", "keys"}),
    ("POST", "/v1/datasets/{name}/refresh", {"how": "look"}, JOB | {"refresh", "diff"}),
    (
        "POST",
        "/v1/datasets/{name}/want",
        {**VERSION, "samples": [0, 3], "wait_s": 5},
        {"pending", "reasons", "failed"},
    ),
    ("POST", "/v1/datasets/{name}/hello", {**VERSION, "manifest": "", "session": "s"}, set()),
    ("POST", "/v1/datasets/{name}/why", {"sample": "0"}, {"index", "key", "resident", "why", "last"}),
    ("POST", "/v1/sessions", {"session": "nobody", "position": 3}, {"knows_order"}),
    ("GET", "/v1/datasets/{name}/reads", None, {"dataset", "reads", "sample_bytes"}),
    ("POST", "/v1/datasets/{name}/evict", {}, {"dataset", "shards", "samples", "bytes", "pinned"}),
    ("POST", "/v1/datasets/{name}/remove", {"force": False}, {"dataset", "bytes", "is_gone"}),
    ("POST", "/v1/datasets/{name}/pin", {"pinned": True}, {"dataset", "shards", "samples", "bytes"}),
    ("POST", "/v1/datasets/{name}/sessions", ORDER, {"samples", "missing"}),
    ("POST", "/v1/reports", REPORT, {"knows_order"}),
    ("POST", "/v1/jobs", PREFETCH, JOB),
    ("POST", "/v1/hot", {"name": "pets"}, {"jobs"}),
    ("GET", "/v1/jobs/{job}", None, JOB),
    ("POST", "/v1/jobs/{job}/cancel", None, JOB),
    ("GET", "/v1/shards", None, {"shard", "dataset", "samples", "bytes", "path"}),
    ("GET", "/v1/problems", None, set()),
    ("POST", "/v1/shards/verify", {"shards": [1]}, set()),
    ("GET", "/v1/memos", None, set()),
    ("GET", "/v1/memos/{name}", None, {"name", "results"}),
    ("POST", "/v1/memos/{name}/room", {"key": "0" * 32, "size_bytes": 1000}, set()),
    ("POST", "/v1/memos/{name}/kept", {"key": "0" * 32}, set()),
    ("POST", "/v1/memos/{name}/evict", None, {"name", "results", "bytes"}),
    ("POST", "/v1/shards/drop", {"shards": [1]}, {"dropped", "jobs"}),
]


def opened(service: Service, body: dict[str, Any]) -> dict[str, Any]:
    """The body with the version that the data set has."""
    found = service.get("/datasets/pets")
    return {**body, **{name: found[name] for name in ("recipe", "lineage", "manifest") if name in body}}


@pytest.mark.parametrize(("method", "path", "body", "has"), CALLS, ids=[f"{c[0]} {c[1]}" for c in CALLS])
def test_every_path_answers_as_documented(
    method: str, path: str, body: Any, has: set[str], served: Place
) -> None:
    service = Service(served.socket)
    if body and "lineage" in body:
        body = opened(service, body)
    name = {"evict": "free", "remove": "gone"}.get(path.rpartition("/")[2], "pets")
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
    ("/v1/datasets/pets/want", {**VERSION, "samples": [0, 3], "corrupt": [1], "wait_s": 0.01}),
    ("/v1/datasets/pets/sessions", ORDER),
    ("/v1/datasets/pets/hello", {**VERSION, "manifest": "", "session": "s"}),
    ("/v1/datasets/pets/evict", SUBSET),
    ("/v1/datasets/pets/compare", {"before": "a", "after": "b"}),
    ("/v1/datasets/other/refresh", {"how": "look"}),
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
    if "lineage" in good:
        good = opened(service, good)

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


@pytest.mark.parametrize("name", ["no such", "größer", "a?b#c", "100%", "%41", "\x1b[2J", "\udcff"])
def test_a_name_nobody_has_is_told_whatever_is_in_it(name: str, served: Place) -> None:
    with pytest.raises(UsageError, match="nothing of '"):
        Service(served.socket).get(f"/datasets/{name}")


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


def test_the_service_counts_what_it_keeps(served: Place) -> None:
    service = Service(served.socket)
    budget = service.get("/status")["budget"]
    files = [path for name in (*NAMES, "own") if (served.cache / "datasets" / name).exists()
             for path in shard_files(served, name)]  # fmt: skip
    assert budget["used_bytes"] == sum(path.stat().st_size for path in files)
