"""Calls to a service that does not answer: each has one deadline, and says who is silent."""

import itertools
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from stager.errors import NoService, ServiceSilent
from stager.reader import service as calls
from stager.reader.service import Service

TIMEOUT_S = 1.0
SLACK_S = 10.0  # the machine may be busy; without a deadline it would take far longer


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    """A socket on which somebody listens, and nobody answers."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / "service.sock"))
        listener.listen(0)
        yield listener


def path_of(listener: socket.socket) -> Path:
    return Path(listener.getsockname())


def test_a_service_that_never_answers_is_named_at_the_deadline(listener: socket.socket) -> None:
    began = time.monotonic()
    with pytest.raises(ServiceSilent) as caught:
        Service(path_of(listener)).get("/status", TIMEOUT_S)
    assert TIMEOUT_S <= time.monotonic() - began < TIMEOUT_S + SLACK_S
    told = f"the service at {path_of(listener)} (process {os.getpid()}) did not answer within 1 s"
    assert caught.value.message == told


def test_a_service_that_takes_no_more_calls_is_silent_and_not_gone(listener: socket.socket) -> None:
    """One that hangs has a full queue after a while: the kernel refuses the next call with EAGAIN."""
    held = []
    for _ in range(10):
        call = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        call.setblocking(False)
        held.append(call)
        with suppress(BlockingIOError):
            call.connect(listener.getsockname())
    began = time.monotonic()
    with pytest.raises(ServiceSilent, match="did not answer within 1 s"):
        Service(path_of(listener)).get("/status", TIMEOUT_S)
    assert time.monotonic() - began >= TIMEOUT_S  # it may answer again before
    for call in held:
        call.close()


def test_an_answer_that_drips_has_the_same_deadline(listener: socket.socket) -> None:
    is_over = threading.Event()

    def drip() -> None:
        call, _ = listener.accept()
        with call, suppress(OSError):
            call.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
            while not is_over.wait(0.1):
                call.sendall(b" ")

    thread = threading.Thread(target=drip)
    thread.start()
    began = time.monotonic()
    try:
        with pytest.raises(ServiceSilent):
            Service(path_of(listener)).get("/status", TIMEOUT_S)
        assert time.monotonic() - began < TIMEOUT_S + SLACK_S
    finally:
        is_over.set()
        thread.join()


def test_a_call_ends_at_its_deadline_by_the_clock_and_not_later(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that goes on by a second at each look, and an answer that never ends."""
    looks = itertools.count()
    clock = SimpleNamespace(monotonic=lambda: float(next(looks)), sleep=time.sleep)
    monkeypatch.setattr(calls, "time", clock)

    def answer() -> None:
        call, _ = listener.accept()
        with call, suppress(OSError):
            call.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n")
            while True:
                call.sendall(b" " * 100)

    thread = threading.Thread(target=answer)
    thread.start()
    with pytest.raises(ServiceSilent, match="did not answer within 20 s"):
        Service(path_of(listener)).get("/status", 20.0)
    thread.join()
    assert 20 <= next(looks) <= 22


def test_a_body_that_nobody_takes_has_the_same_deadline(listener: socket.socket) -> None:
    began = time.monotonic()
    with pytest.raises(ServiceSilent):
        Service(path_of(listener)).post("/jobs", "x" * (4 << 20), TIMEOUT_S)
    assert time.monotonic() - began < TIMEOUT_S + SLACK_S


def test_a_call_that_is_not_needed_any_more_ends_before_its_deadline(listener: socket.socket) -> None:
    stopped = threading.Event()
    threading.Timer(0.2, stopped.set).start()
    began = time.monotonic()
    with pytest.raises(ServiceSilent):
        Service(path_of(listener)).post("/want", {}, 600.0, stopped)
    assert time.monotonic() - began < 60


def test_where_nobody_listens_there_is_no_service_and_no_wait(listener: socket.socket) -> None:
    path = path_of(listener)
    listener.close()
    began = time.monotonic()
    for gone in (path, path.with_name("never")):
        with pytest.raises(NoService, match="no service answers") as caught:
            Service(gone).get("/status", 60.0)
        assert not isinstance(caught.value, ServiceSilent)
    assert time.monotonic() - began < 30
