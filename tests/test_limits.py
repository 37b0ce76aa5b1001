"""What one caller may ask: bodies, orders, sessions and jobs have a bound, and the service stays small."""

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from making import image_folder
from running import Place
from sets import ended, table
from stager.errors import UsageError
from stager.reader.service import Service
from stager.reader.settings import ORDER_NUMBERS_MAX, WANT_SAMPLES_MAX
from stager.reader.values import pack_numbers
from stagerd.api.limits import BODY_BYTES_MAX, JOBS_A_USER_MAX, ORDERED_A_USER_MAX, SESSIONS_A_USER_MAX, Users
from test_api import ORDER, ask, is_our_error, opened

COUNT = 12


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    place = Place(tmp_path_factory.mktemp("limits"))
    image_folder(place.root / "source", 4, COUNT // 4)
    place.configure(table("pets", place.root / "source"))
    with place.service():
        service = Service(place.socket)
        ended(service, service.post("/jobs", {"dataset": "pets"})["id"])
        yield place


def memory_peak_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


def service_pid(place: Place) -> int:
    return int(Service(place.socket).get("/status")["service"]["pid"])


def send_endlessly(path: Path, url: str, headers: str, piece: bytes, bytes_max: int) -> bytes:
    """Send a request with a body that does not end; return what is answered."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.settimeout(60)
        peer.connect(str(path))
        peer.sendall(f"POST {url} HTTP/1.1\r\nHost: stager\r\n{headers}\r\n\r\n".encode())
        sent = 0
        with contextlib.suppress(OSError):
            while sent < bytes_max:
                peer.sendall(piece)
                sent += len(piece)
        assert sent < bytes_max
        return peer.recv(65536)


@pytest.mark.parametrize(
    "url", ["/v1/jobs", "/v1/reports", "/v1/datasets/pets/sessions", "/v1/datasets/pets/want"]
)
@pytest.mark.parametrize("told", [True, False], ids=["told", "chunked"])
def test_a_body_of_a_gibibyte_is_refused_before_it_is_read_whole(url: str, told: bool, served: Place) -> None:
    pid = service_pid(served)
    before = memory_peak_bytes(pid)
    piece = b"[" + b" " * 65535
    if told:
        answer = send_endlessly(served.socket, url, f"Content-Length: {1 << 30}", piece, 1 << 30)
    else:
        chunk = f"{len(piece):x}\r\n".encode() + piece + b"\r\n"
        answer = send_endlessly(served.socket, url, "Transfer-Encoding: chunked", chunk, 1 << 30)
    assert answer.startswith(b"HTTP/1.1 413 "), answer
    assert is_our_error(json.loads(answer.partition(b"\r\n\r\n")[2]))
    assert memory_peak_bytes(pid) - before < 400 << 20


def test_a_body_within_the_bound_is_read(served: Place) -> None:
    names = ["x" * 1000] * (BODY_BYTES_MAX // 1100)
    status, answer = ask(
        served.socket, "POST", "/v1/datasets/pets/evict", json.dumps({"classes": names}).encode()
    )
    assert (status, answer["error"]) == (400, "UsageError"), answer
    assert "no class" in answer["message"]


def test_an_order_of_ones_own_has_a_bound(served: Place) -> None:
    order = pack_numbers(np.zeros(ORDER_NUMBERS_MAX // 2 + 1, dtype=np.int64))
    body = opened(Service(served.socket), {**ORDER, "own_orders": [order, order]})
    status, answer = ask(served.socket, "POST", "/v1/datasets/pets/sessions", json.dumps(body).encode())
    assert (status, answer["error"]) == (400, "UsageError")
    assert "at most 16,000,000 positions" in answer["message"]
    assert memory_peak_bytes(service_pid(served)) < 1 << 30


def test_more_samples_than_a_reader_may_want_at_once_are_refused(served: Place) -> None:
    manifest = Service(served.socket).get("/datasets/pets")["manifest"]
    for name in ("samples", "corrupt"):
        body = {"manifest": manifest, "samples": [], name: [0] * (WANT_SAMPLES_MAX + 1)}
        status, _ = ask(served.socket, "POST", "/v1/datasets/pets/want", json.dumps(body).encode())
        assert status == 422


def test_a_batch_of_more_than_that_is_asked_for_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path)
    image_folder(tmp_path / "source", 4, 5)
    place.configure(table("pets", tmp_path / "source"))
    code = """
import stager_client.samples as samples
samples.WANT_SAMPLES_MAX = 3
from stager_client.numpy import StagedArrays
batches = list(StagedArrays("pets", 20))
print(len(batches[0][1]))
"""
    with place.service():
        service = Service(place.socket)
        ended(service, service.post("/jobs", {"dataset": "pets", "stop_after": "scan"})["id"])
        done = place.python(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["20"]


def test_a_user_may_have_so_many_sessions_and_no_more() -> None:
    users = Users()
    known: set[str] = set()
    for number in range(SESSIONS_A_USER_MAX):
        users.may_read(1, f"s{number}", 1, known)
        known.add(f"s{number}")
    with pytest.raises(UsageError, match="user 1 has 1,000 sessions"):
        users.may_read(1, "more", 1, known)
    users.may_read(1, "s3", 1, known)  # the next epoch of one of them
    users.may_read(2, "more", 1, known)  # another user
    known.remove("s5")  # it has ended
    users.may_read(1, "more", 1, known)


def test_the_orders_of_a_user_have_a_bound_together() -> None:
    users = Users()
    users.may_read(1, "a", ORDERED_A_USER_MAX // 2, set())
    with pytest.raises(UsageError, match="orders of user 1"):
        users.may_read(1, "b", ORDERED_A_USER_MAX // 2 + 1, {"a"})
    users.may_read(1, "a", ORDERED_A_USER_MAX, {"a"})


def test_a_user_may_have_so_many_jobs_under_way_and_the_service_says_so(tmp_path: Path) -> None:
    """The source takes the request for its listing and never answers: no job ends."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        tables = table("hung", "s3://bucket/x", endpoint_url=endpoint, anonymous=True)
        place = Place(tmp_path).configure(tables)
        with place.service():
            service = Service(place.socket)
            jobs = [service.post("/jobs", {"dataset": "hung"})["id"] for _ in range(JOBS_A_USER_MAX)]
            with pytest.raises(UsageError, match=f"user {os.getuid()} has 100 unfinished jobs"):
                service.post("/jobs", {"dataset": "hung"})
            service.post(f"/jobs/{jobs[0]}/cancel", None)
            service.post("/jobs", {"dataset": "hung"})


def test_sessions_of_one_user_are_counted_by_the_service(served: Place) -> None:
    service = Service(served.socket)
    order: dict[str, Any] = opened(service, {**ORDER, "subset": {}, "length": COUNT})
    for number in range(SESSIONS_A_USER_MAX):
        service.post("/datasets/pets/sessions", {**order, "session": f"s{number}"})
    with pytest.raises(UsageError, match="sessions open"):
        service.post("/datasets/pets/sessions", {**order, "session": "more"})
