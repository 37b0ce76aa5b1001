"""A client of the service's HTTP API on its Unix socket. Standard library only: readers import it."""

import http.client
import json
import os
import select
import socket
import struct
import time
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import quote

from stager import errors
from stager.errors import NoService, ServiceSilent, StagerError, UsageError
from stager.reader.places import how_to_join

API: Final = "/v1"
CONNECT_AGAIN_S: Final = 0.02
LOOK_EVERY_S: Final = 0.1  # whether the answer is still wanted


class Flag(Protocol):
    """A threading.Event, as far as we need one."""

    def is_set(self) -> bool: ...


class _Call(socket.socket):
    """A socket whose connect, sends and receives have one deadline together.

    A service that hangs lets us connect, until its queue is full, and never answers.
    """

    def __init__(self, timeout_s: float, stopped: Flag | None) -> None:
        super().__init__(socket.AF_UNIX, socket.SOCK_STREAM)
        self._deadline, self._stopped = time.monotonic() + timeout_s, stopped

    def connect(self, address: Any) -> None:
        while True:
            self.settimeout(self._left_s())
            try:
                return super().connect(address)
            except BlockingIOError:  # its queue of calls is full
                time.sleep(CONNECT_AGAIN_S)

    def sendall(self, data: Any, flags: int = 0) -> None:
        self.settimeout(self._left_s())
        super().sendall(data, flags)

    def recv_into(self, *arguments: Any) -> int:
        arrival = select.poll()  # select() knows no descriptors above 1023
        arrival.register(self, select.POLLIN)
        while True:
            left_s = self._left_s()
            if arrival.poll(1000 * (left_s if self._stopped is None else min(left_s, LOOK_EVERY_S))):
                return super().recv_into(*arguments)

    def peer(self) -> str:
        """The process that listens, if it can be told."""
        try:
            told = self.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        except OSError:
            return ""
        pid = struct.unpack("3i", told)[0]
        return f" (process {pid})" if pid else ""

    def _left_s(self) -> float:
        left_s = self._deadline - time.monotonic()
        if left_s <= 0 or (self._stopped is not None and self._stopped.is_set()):
            raise TimeoutError
        return left_s


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, call: _Call) -> None:
        super().__init__("stager")
        self._path, self._call = path, call

    def connect(self) -> None:
        self.sock = self._call
        self.sock.connect(str(self._path))


class Service:
    """The service behind a socket. Each call connects anew, so it is safe in threads and after a fork.

    `timeout_s` is for the whole call. Raise NoService where nobody listens, at once, and ServiceSilent where
    somebody does who did not answer in time.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def get(self, path: str, timeout_s: float = 30.0) -> Any:
        return self._ask("GET", path, None, timeout_s)

    def post(self, path: str, body: Any, timeout_s: float = 30.0, stopped: Flag | None = None) -> Any:
        """`stopped`: once it is set, nobody needs the answer any more."""
        return self._ask("POST", path, body, timeout_s, stopped)

    def _ask(self, method: str, path: str, body: Any, timeout_s: float, stopped: Flag | None = None) -> Any:
        payload = None if body is None else json.dumps(body)
        call = _Call(timeout_s, stopped)
        connection = _UnixConnection(self.path, call)
        try:
            url = API + quote(path, errors="surrogateescape")  # with names of others in it
            connection.request(method, url, payload, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            value = json.loads(answer.read() or b"null")
        except PermissionError:
            raise StagerError(
                f"you may not use the service at {self.path}", hint=how_to_join(self.path)
            ) from None
        except TimeoutError:
            raise ServiceSilent(
                f"the service at {self.path}{call.peer()} did not answer within {timeout_s:.0f} s",
                hint="it is stopped, stuck or very busy; its log says more: journalctl -u stager",
            ) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise NoService(
                f"no service answers at {self.path} ({_short(error)})",
                hint="start it: systemctl start stager, or stager serve",
            ) from None
        finally:
            connection.close()
            call.close()
        if answer.status >= 400:
            raise _error(value)
        return value


def find_socket(service: str | None, default: Path) -> Path:
    """Where the service is: as named, else $STAGER_SERVICE, else the config's socket."""
    named = service or os.environ.get("STAGER_SERVICE")
    if not named:
        return default
    if "://" in named and not named.startswith("unix://"):
        raise UsageError(
            f"{named}: only Unix sockets are served by this version", hint="give the socket's path"
        )
    return Path(named.removeprefix("unix://")).expanduser()


def _error(value: Any) -> StagerError:
    """The service's error as the error it was."""
    if isinstance(value, dict) and "error" in value:
        return errors.from_json(value)
    return UsageError(
        f"the service did not accept the request: {json.dumps(value)[:300]}",
        hint="are the service and this program of one version?",
    )


def _short(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) and error.strerror else str(error)) or type(
        error
    ).__name__
