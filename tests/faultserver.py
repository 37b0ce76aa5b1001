"""A small S3 server that fails on demand, over real sockets. It checks no signature.

with fault_server() as server:
    server.objects["a"] = b"..."
    server.fail("a", error(503, "SlowDown"), truncated)  # the first two GETs; the third is answered
"""

import hashlib
import re
import socket
import struct
import threading
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from urllib.parse import parse_qs, quote, unquote
from xml.sax.saxutils import escape

BUCKET = "data"
PAGE_KEYS = 1000
ALL = 1 << 30


class FaultServer(ThreadingHTTPServer):
    """One bucket in memory. `fail` says how the next requests for a key go wrong.

    "" is the listing, "/" that of its folders.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.endpoint_url = f"http://127.0.0.1:{self.server_port}"
        self.objects: dict[str, bytes] = {}
        self.etags: dict[str, str] = {}  # where it is not the MD5
        self.page_keys = PAGE_KEYS
        self.headers: dict[str, dict[str, str]] = {}  # further ones, by key
        self.sums: dict[str, str] = {}  # headers with checksums of every object, for those who ask for them
        self.ranges: list[str] = []  # as they were asked for
        self.asked: list[str] = []  # the paths as they came
        self.listings: list[dict[str, list[str]]] = []  # the queries of listings
        self.stopping = threading.Event()
        self._faults: dict[str, list[Fault]] = defaultdict(list)
        self._lock = threading.Lock()

    def fail(self, key: str, *faults: "Fault") -> None:
        self._faults[key] += faults

    def next_fault(self, key: str) -> "Fault":
        with self._lock:
            return self._faults[key].pop(0) if self._faults[key] else good

    def etag(self, key: str) -> str:
        return self.etags.get(key) or hashlib.md5(self.objects[key], usedforsecurity=False).hexdigest()

    def keys(self, start: int, count: int) -> list[str]:
        return sorted(self.objects, key=str.encode)[start : start + count]

    def place_after(self, key: str) -> int:
        return bisect_right(self.keys(0, ALL), key.encode(), key=str.encode)

    def folders(self, prefix: str) -> list[str]:
        keys = [key[len(prefix) :] for key in self.keys(0, ALL) if key.startswith(prefix)]
        return sorted({f"{prefix}{key.partition('/')[0]}/" for key in keys if "/" in key}, key=str.encode)

    def item(self, key: str) -> tuple[int, str]:
        return len(self.objects[key]), self.etag(key)


class _Handler(BaseHTTPRequestHandler):
    server: FaultServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        self.server.asked.append(path)
        _, bucket, *rest = path.split("/", 2)
        self.key = key = unquote("".join(rest))
        if bucket != BUCKET:
            error(404, "NoSuchBucket")(self, b"", "")
        elif not key:
            asked = parse_qs(query)
            self.server.listings.append(asked)
            body = self._folders(asked) if "delimiter" in asked else self._listing(asked)
            self.server.next_fault("/" if "delimiter" in asked else "")(self, body, "")
        elif key not in self.server.objects:
            error(404, "NoSuchKey")(self, b"", "")
        else:
            self.server.next_fault(key)(self, self.server.objects[key], self.server.etag(key))

    def _listing(self, query: dict[str, list[str]]) -> bytes:
        page_keys = self.server.page_keys
        start = int(query.get("continuation-token", ["0"])[0])
        if "start-after" in query:
            start = self.server.place_after(query["start-after"][0])
        keys = self.server.keys(start, page_keys + 1)
        prefix = query.get("prefix", [""])[0]
        more = len(keys) > page_keys
        items = "".join(
            f"<Contents><Key>{quote(key)}</Key><Size>{size}</Size>"
            f"<LastModified>2026-01-01T00:00:00.000Z</LastModified>"
            f"<ETag>&quot;{etag}&quot;</ETag><StorageClass>STANDARD</StorageClass></Contents>"
            for key in keys[:page_keys]
            if key.startswith(prefix)
            for size, etag in [self.server.item(key)]
        )
        token = f"<NextContinuationToken>{start + page_keys}</NextContinuationToken>" if more else ""
        return (
            f"<ListBucketResult><EncodingType>url</EncodingType><IsTruncated>{str(more).lower()}</IsTruncated>"
            f"{token}{items}</ListBucketResult>"
        ).encode()

    def _folders(self, query: dict[str, list[str]]) -> bytes:
        folders = "".join(
            f"<CommonPrefixes><Prefix>{quote(folder)}</Prefix></CommonPrefixes>"
            for folder in self.server.folders(query.get("prefix", [""])[0])
        )
        return (
            f"<ListBucketResult><EncodingType>url</EncodingType><IsTruncated>false</IsTruncated>"
            f"{folders}</ListBucketResult>"
        ).encode()

    def begin(
        self,
        status: int,
        etag: str = "",
        length: int | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.send_response(status)
        for name, value in {**headers, **self.server.headers.get(self.key, {})}.items():
            self.send_header(name, value)
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        if etag:
            self.send_header("ETag", f'"{etag}"')
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


Fault = Callable[[_Handler, bytes, str], None]


def good(answer: _Handler, body: bytes, etag: str) -> None:
    if etag and answer.headers.get("If-Match", f'"{etag}"') != f'"{etag}"':
        error(412, "PreconditionFailed")(answer, body, etag)
        return
    asked, sums = answer.headers.get("Range"), answer.server.sums
    if asked:
        answer.server.ranges.append(asked)
        first, last = map(int, asked.removeprefix("bytes=").split("-"))
        whole = {"Content-Range": f"bytes {first}-{last}/{len(body)}"}
        answer.begin(206, etag, last + 1 - first, whole)
        answer.wfile.write(body[first : last + 1])
        return
    answer.begin(200, etag, len(body), sums if answer.headers.get("x-amz-checksum-mode") else {})
    answer.wfile.write(body)


def deaf_to_ranges(answer: _Handler, body: bytes, etag: str) -> None:
    """All of it, whatever part was asked for."""
    answer.begin(200, etag, len(body))
    answer.wfile.write(body)


def another_part(answer: _Handler, body: bytes, etag: str) -> None:
    """As many bytes as were asked for, but not those."""
    first, last = map(int, answer.headers["Range"].removeprefix("bytes=").split("-"))
    count = last + 1 - first
    start = 0 if first else 1
    answer.begin(206, etag, count, {"Content-Range": f"bytes {start}-{start + count - 1}/{len(body)}"})
    answer.wfile.write(body[start : start + count])


def too_long(answer: _Handler, body: bytes, etag: str) -> None:
    answer.begin(200, etag, len(body) + 1)
    answer.wfile.write(body + b"!")


def error(status: int, code: str, message: str = "") -> Fault:
    def fault(answer: _Handler, _body: bytes, _etag: str) -> None:
        xml = (
            f"<Error><Code>{code}</Code><Message>{escape(message)}</Message></Error>".encode()
            if code
            else b""
        )
        answer.begin(status, length=len(xml))
        answer.wfile.write(xml)

    return fault


def truncated(answer: _Handler, body: bytes, etag: str) -> None:
    _half(answer, body, etag)
    answer.close_connection = True


def truncated_without_length(answer: _Handler, body: bytes, etag: str) -> None:
    answer.begin(200, etag)
    answer.wfile.write(body[: len(body) // 2])
    answer.close_connection = True


def reset(answer: _Handler, body: bytes, etag: str) -> None:
    _half(answer, body, etag)
    answer.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    answer.close_connection = True
    answer.connection.close()


def stalled(answer: _Handler, body: bytes, etag: str) -> None:
    _half(answer, body, etag)
    answer.server.stopping.wait()
    answer.close_connection = True


def silent(answer: _Handler, _body: bytes, _etag: str) -> None:
    answer.server.stopping.wait()
    answer.close_connection = True


def dripping(answer: _Handler, body: bytes, etag: str) -> None:
    """A byte at a time: it is slow without ever being silent."""
    answer.begin(200, etag, len(body))
    for at in range(len(body)):
        answer.wfile.write(body[at : at + 1])
        answer.wfile.flush()
        if answer.server.stopping.wait(0.02):
            break
    answer.close_connection = True


def damaged(answer: _Handler, body: bytes, etag: str) -> None:
    """One bit is wrong, and nothing says so."""
    good(answer, bytes([body[0] ^ 1]) + body[1:], etag)


def another_version(answer: _Handler, body: bytes, _etag: str) -> None:
    """The object was overwritten, and the server does not know If-Match."""
    answer.begin(200, "0" * 32, len(body))
    answer.wfile.write(body)


def late(answer: _Handler, body: bytes, etag: str) -> None:
    time.sleep(0.05)
    good(answer, body, etag)


def after(wait_s: float) -> Fault:
    """A right answer, late."""

    def fault(answer: _Handler, body: bytes, etag: str) -> None:
        answer.server.stopping.wait(wait_s)
        good(answer, body, etag)

    return fault


def as_aws_lists(answer: _Handler, body: bytes, etag: str) -> None:
    """A listing whose items have their parts in the order of AWS."""
    good(answer, re.sub(rb"(<Size>.*?</Size>)(.*?</ETag>)", rb"\2\1", body), etag)


def as_aws_lists_in_lines(answer: _Handler, body: bytes, etag: str) -> None:
    """The same, with an item a line."""
    as_aws_lists(answer, body.replace(b"</Contents>", b"</Contents>\n "), etag)


def without_etags(answer: _Handler, body: bytes, etag: str) -> None:
    good(answer, re.sub(rb"<ETag>.*?</ETag>", b"", body), etag)


def going_on_nowhere(answer: _Handler, body: bytes, etag: str) -> None:
    """A page says that another one follows, and not which."""
    body = re.sub(rb"<NextContinuationToken>.*?</NextContinuationToken>", b"", body)
    good(answer, body.replace(b">false</IsTruncated>", b">true</IsTruncated>"), etag)


def going_back(answer: _Handler, body: bytes, etag: str) -> None:
    """A page says that the first one follows."""
    good(answer, re.sub(rb"(<NextContinuationToken>).*?<", rb"\g<1>0<", body), etag)


def error_in_200(answer: _Handler, _body: bytes, etag: str) -> None:
    """S3 begins to answer before it knows that it will fail."""
    good(answer, b"<Error><Code>InternalError</Code><Message>We are sorry.</Message></Error>", etag)


def no_listing(answer: _Handler, _body: bytes, etag: str) -> None:
    """The page of a proxy, in letters of its own."""
    good(answer, "<html>déjà vu</html>".encode("latin-1"), etag)


def _half(answer: _Handler, body: bytes, etag: str) -> None:
    answer.begin(200, etag, len(body))
    answer.wfile.write(body[: len(body) // 2])
    answer.wfile.flush()


@contextmanager
def fault_server() -> Iterator[FaultServer]:
    server = FaultServer()
    thread = threading.Thread(target=server.serve_forever, args=[0.01])
    thread.start()
    try:
        yield server
    finally:
        server.stopping.set()
        server.shutdown()
        thread.join()
        server.server_close()
