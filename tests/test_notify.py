"""What systemd hears, on a real datagram socket."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from stagerd import notify


@pytest.fixture(params=["path", "abstract"])
def systemd(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[socket.socket]:
    """systemd's end of the notify socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        if request.param == "path":
            monkeypatch.chdir(tmp_path)  # a socket's path holds 108 bytes, a temporary directory may not
            listener.bind("notify")
            monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        else:
            name = f"stager-test-{os.getpid()}"
            listener.bind(f"\0{name}")
            monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}")
        listener.settimeout(5)
        yield listener


def test_each_verb_is_one_datagram(systemd: socket.socket) -> None:
    notify.ready()
    notify.ready("2 data sets")
    notify.status("staging imagenet")
    notify.watchdog()
    notify.stopping("asked to")
    assert [systemd.recv(4096) for _ in range(5)] == [
        b"READY=1",
        b"READY=1\nSTATUS=2 data sets",
        b"STATUS=staging imagenet",
        b"WATCHDOG=1",
        b"STOPPING=1\nSTATUS=asked to",
    ]


def test_a_status_cannot_smuggle_in_another_assignment(systemd: socket.socket) -> None:
    notify.status("staging a\nMAINPID=1\r\n b\udcff")
    assert systemd.recv(4096) == b"STATUS=staging a MAINPID=1 b?"


def test_a_socket_no_one_reads_holds_up_no_one(
    systemd: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "SEND_TIMEOUT_S", 0.001)
    for _ in range(600):  # far more than a socket's queue takes
        notify.watchdog()
    assert systemd.recv(4096) == b"WATCHDOG=1"


@pytest.mark.parametrize(
    "address", [None, "", "relative/path", "vsock:2:1", "/nowhere/at/all", "@no-such-socket"]
)
def test_without_a_listener_nothing_happens(address: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if address is None:
        monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    else:
        monkeypatch.setenv("NOTIFY_SOCKET", address)
    notify.ready()
    notify.status("x")
    notify.watchdog()
    notify.stopping()


@pytest.mark.parametrize(
    ("usec", "pid", "interval_s"),
    [
        (None, None, None),
        ("30000000", None, 15.0),
        ("30000000", "ours", 15.0),
        ("30000000", "1", None),
        ("0", None, None),
        ("soon", None, None),
        ("-5", None, None),
    ],
)
def test_the_watchdog_interval_is_half_of_what_systemd_allows(
    usec: str | None, pid: str | None, interval_s: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("WATCHDOG_USEC", usec), ("WATCHDOG_PID", pid)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, str(os.getpid()) if value == "ours" else value)
    assert notify.watchdog_interval_s() == interval_s
