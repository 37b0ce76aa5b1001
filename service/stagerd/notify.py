"""What systemd is told: READY, RELOADING, STATUS, EXTEND_TIMEOUT, WATCHDOG, STOPPING. Else nothing.

The protocol is one datagram a message to the socket $NOTIFY_SOCKET names. A message that cannot be
sent is dropped: a service that works must not fail because its manager is slow to listen.
"""

import contextlib
import os
import socket
import time

SEND_TIMEOUT_S = 0.5  # the service's one loop may call us: a full socket must not hold it up


def ready(status: str = "") -> None:
    """The socket is bound and the index is rebuilt: clients may come."""
    _send("READY=1", *_status(status))


def status(text: str) -> None:
    """The line `systemctl status` shows."""
    _send(*_status(text))


def still_starting(text: str, seconds: float) -> None:
    """The start takes so long more, and why: systemd waits for it."""
    _send(f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}", *_status(text))


def watchdog() -> None:
    """The loop is alive. Call it at least every `watchdog_interval_s()`."""
    _send("WATCHDOG=1")


def reloading() -> None:
    """The config is read again; `ready` says that this is done. systemd wants to know when it began."""
    _send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")


def stopping(status: str = "") -> None:
    """A stop has begun, asked for or not."""
    _send("STOPPING=1", *_status(status))


def watchdog_interval_s() -> float | None:
    """Half of the time after which systemd would kill us, or None if it does not watch this process."""
    usec = os.environ.get("WATCHDOG_USEC", "")
    pid = os.environ.get("WATCHDOG_PID", "")
    if not usec.isascii() or not usec.isdigit() or int(usec) == 0:
        return None
    if pid and pid != str(os.getpid()):  # meant for the parent: workers inherit the environment
        return None
    return int(usec) / 2 / 1e6


def _status(text: str) -> list[str]:
    return [f"STATUS={' '.join(text.split())}"] if text else []  # a line break would start a new assignment


def _send(*assignments: str) -> None:
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not assignments or address[:1] not in ("/", "@"):
        return
    if address[0] == "@":
        address = "\0" + address[1:]  # the abstract namespace
    message = "\n".join(assignments).encode("utf-8", "replace")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notify:
        notify.settimeout(SEND_TIMEOUT_S)
        with contextlib.suppress(OSError):
            notify.sendto(message, address)
