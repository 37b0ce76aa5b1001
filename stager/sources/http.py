"""As much HTTP/1.1 as an object store speaks: a request, an answer of known length, a connection that stays.

A GET costs a third of the CPU time it costs through obstore, and a twentieth of boto3's.
"""

import socket
import ssl
import time
import weakref
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import numpy as np
from botocore.exceptions import ConnectTimeoutError, EndpointConnectionError

HEAD_BYTES_MAX: Final = 64 << 10
ERROR_BYTES_MAX: Final = 64 << 10


class UnusualAnswer(Exception):
    """It comes in chunks, or ranges were ignored: let somebody read it who knows all of HTTP."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server said. Names of headers are lower case."""

    status: int
    headers: dict[str, str]
    body: memoryview


class Connection:
    """One connection to a server. Not for two threads at a time."""

    def __init__(self, sock: socket.socket, silence_s: float) -> None:
        self._socket, self._silence_s = sock, silence_s
        self.is_used = False
        self.can_stay = True

    def ask(self, head: bytes, whole_s: float, place: memoryview | None) -> Answer:
        """Send a request and take the answer, all in `whole_s`; its bytes go to `place`, if they fill it."""
        deadline = time.monotonic() + whole_s
        self.can_stay = False  # until all of the answer is there
        self._socket.settimeout(min(self._silence_s, whole_s))
        self._socket.sendall(head)
        status, headers, begun = self._head(deadline)
        self.is_used = True
        stays = headers.get("connection", "").lower() != "close"
        length = headers.get("content-length")
        if head.startswith(b"HEAD"):
            length = "0"
        if "transfer-encoding" in headers:
            raise UnusualAnswer
        if length is None:
            return Answer(status, headers, self._until_closed(begun, deadline))
        if status >= 300 and int(length) > ERROR_BYTES_MAX:
            return Answer(status, headers, memoryview(b""))
        if place is None or len(place) != int(length):
            place = np.empty(int(length), np.uint8).data
        if len(begun) > len(place):
            raise ConnectionError("more came than was announced")
        place[: len(begun)] = begun
        self._fill(place[len(begun) :], deadline)
        self.can_stay = stays
        return Answer(status, headers, place)

    def _head(self, deadline: float) -> tuple[int, dict[str, str], bytes]:
        data = b""
        while (end := data.find(b"\r\n\r\n")) < 0:
            more = self._wait(deadline).recv(4096)
            if not more or len(data) > HEAD_BYTES_MAX:
                raise ConnectionError("no answer")
            data += more
        first, *lines = data[:end].decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        return int(first.split(" ", 2)[1]), headers, data[end + 4 :]

    def _fill(self, rest: memoryview, deadline: float) -> None:
        while rest:
            got = self._wait(deadline).recv_into(rest)
            if not got:
                raise ConnectionError(f"{len(rest)} bytes are missing")
            rest = rest[got:]

    def _until_closed(self, begun: bytes, deadline: float) -> memoryview:
        pieces = [begun]
        while more := self._wait(deadline).recv(1 << 20):
            pieces.append(more)
        return memoryview(b"".join(pieces))

    def _wait(self, deadline: float) -> socket.socket:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._socket.settimeout(min(self._silence_s, left_s))
        return self._socket

    def close(self) -> None:
        self._socket.close()


class Server:
    """Connections to one server, kept for the next request. Any thread may ask."""

    def __init__(self, url: str, *, connect_s: float, silence_s: float, authority: str | None) -> None:
        parts = urlsplit(url)
        self.url, self.host = url, parts.hostname or ""
        self.port = parts.port or (443 if parts.scheme == "https" else 80)
        self.name = parts.netloc.rpartition("@")[2]  # as the host header has it
        self._connect_s, self._silence_s = connect_s, silence_s
        self._tls = ssl.create_default_context(cafile=authority) if parts.scheme == "https" else None
        self._idle: list[Connection] = []  # to append and to pop is safe in threads
        weakref.finalize(self, _close_all, self._idle)

    def ask(self, head: bytes, whole_s: float, place: memoryview | None = None) -> Answer:
        """Ask on a connection that is there, which the server may have closed meanwhile, or on a new one."""
        while True:
            connection = self._take()
            was_used, connection.is_used = connection.is_used, False
            try:
                return connection.ask(head, whole_s, place)
            except (ConnectionError, ssl.SSLError):
                if connection.is_used or not was_used:  # it answered, or it was new
                    raise
            finally:
                if connection.can_stay:
                    self._idle.append(connection)
                else:
                    connection.close()

    def _take(self) -> Connection:
        try:
            return self._idle.pop()
        except IndexError:
            return self._connect()

    def _connect(self) -> Connection:
        try:
            plain = socket.create_connection((self.host, self.port), self._connect_s)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            secured = self._tls.wrap_socket(plain, server_hostname=self.host) if self._tls else plain
        except ssl.SSLError:
            raise
        except TimeoutError:
            raise ConnectTimeoutError(endpoint_url=self.url) from None
        except OSError:
            raise EndpointConnectionError(endpoint_url=self.url) from None
        return Connection(secured, self._silence_s)


def _close_all(connections: list[Connection]) -> None:
    for connection in connections:
        connection.close()
