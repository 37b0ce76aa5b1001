"""A client of the service's HTTP API on its Unix socket. Standard library only: readers import it."""

import http.client
import json
import os
import socket
from pathlib import Path
from typing import Any, Final

from stager import errors
from stager.errors import NoService, StagerError, UsageError

API: Final = "/v1"
CONNECT_TIMEOUT_S: Final = 2.0


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("stager", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(CONNECT_TIMEOUT_S)
        self.sock.connect(str(self._path))
        self.sock.settimeout(self.timeout)


class Service:
    """The service behind a socket. Each call connects anew, so it is safe in threads and after a fork."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def get(self, path: str, timeout_s: float = 30.0) -> Any:
        return self._ask("GET", path, None, timeout_s)

    def post(self, path: str, body: Any, timeout_s: float = 30.0) -> Any:
        return self._ask("POST", path, body, timeout_s)

    def _ask(self, method: str, path: str, body: Any, timeout_s: float) -> Any:
        connection = _UnixConnection(self.path, timeout_s)
        try:
            payload = None if body is None else json.dumps(body)
            connection.request(method, API + path, payload, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            value = json.loads(answer.read() or b"null")
        except PermissionError:
            raise StagerError(
                f"you may not use the service at {self.path}",
                hint="join its group: usermod -aG stager USER, and log in again",
            ) from None
        except TimeoutError:
            raise NoService(
                f"the service at {self.path} did not answer within {timeout_s:.0f} s",
                hint="look at its log: journalctl -u stager",
            ) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise NoService(
                f"no service answers at {self.path} ({_short(error)})",
                hint="start it: systemctl start stager, or stager serve",
            ) from None
        finally:
            connection.close()
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
        kind = getattr(errors, str(value["error"]), StagerError)
        return kind(value["message"], value.get("hint", ""))
    return UsageError(
        f"the service did not accept the request: {json.dumps(value)[:300]}",
        hint="are the service and this program of one version?",
    )


def _short(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) and error.strerror else str(error)) or type(
        error
    ).__name__
