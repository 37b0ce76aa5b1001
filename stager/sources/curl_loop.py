"""Many HTTP requests at a time by libcurl, in one thread: a thread a request costs more than the request."""

import re
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue
from typing import Any, Final

import pycurl

CONNECTIONS: Final = 256  # kept open
REFUSAL_BYTES: Final = 64 << 10  # of what a server says when it refuses, no more is kept
OPTIONS: Final = {pycurl.NOSIGNAL: 1, pycurl.BUFFERSIZE: 256 << 10}  # of all requests
NEWS_S: Final = 0.005  # while requests are under way, new ones wait no longer than this


Options = Mapping[int, Any]  # of libcurl


class Get:
    """One request: what is asked, where the body goes, and what came of it."""

    __slots__ = ("body", "came", "done", "error", "headers", "lines", "options", "refusal", "status", "url")

    def __init__(
        self,
        url: str,
        headers: Sequence[str],
        options: Options,
        body: memoryview,
        done: Callable[["Get"], None],
    ) -> None:
        """`body`: exactly as long as what should come. Gets that are alike share their `options`."""
        self.url, self.headers, self.options, self.body, self.done = url, headers, options, body, done
        self.status = self.came = 0  # `came`: bytes of the body
        self.error = pycurl.E_OK  # libcurl's, if no whole answer came
        self.lines: list[bytes] = []  # of the answer's head
        self.refusal = b""

    def head(self, line: bytes) -> None:
        if line.startswith(b"HTTP/"):  # a new one: what was before is of a proxy
            self.status, self.lines = int(line.split(None, 2)[1]), []
        self.lines.append(line)

    def write(self, data: bytes) -> int | None:
        if self.status >= 300:
            self.refusal = (self.refusal + data)[:REFUSAL_BYTES]
            return None
        end = self.came + len(data)
        if end > len(self.body):
            self.came = end
            return 0  # more than there should be: libcurl breaks it off
        self.body[self.came : end] = data
        self.came = end
        return None

    def answered(self, wanted: re.Pattern[bytes]) -> dict[str, str]:
        """The headers that are `wanted`: two groups, name and value, of a line. Names are in lower case."""
        found = wanted.findall(b"".join(self.lines))
        return {name.lower().decode(): value.strip().decode("latin-1") for name, value in found}


class CurlLoop:
    """A thread that has any number of requests under way. It starts with the first one."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._lock = threading.Lock()
        self._runs = False
        self._idle: deque[Any] = deque()
        self._under_way = 0

    def call(self, call: Callable[[], None]) -> None:
        """Have something done in the loop's thread: there, and only there, `get` may be called."""
        self._calls.put(call)
        with self._lock:
            must_start, self._runs = not self._runs, True
        if must_start:
            threading.Thread(target=self._run, name="curl", daemon=True).start()

    def get(self, get: Get) -> None:
        handle = self._idle.pop() if self._idle else self._new_handle()
        handle.get = get
        if handle.options is not get.options:
            handle.reset()
            for option, value in {**OPTIONS, **get.options}.items():
                handle.setopt(option, value)
            handle.options = get.options
        handle.setopt(pycurl.URL, get.url)
        handle.setopt(pycurl.HTTPHEADER, list(get.headers))
        handle.setopt(pycurl.WRITEFUNCTION, get.write)
        handle.setopt(pycurl.HEADERFUNCTION, get.head)
        self._multi.add_handle(handle)
        self._under_way += 1

    def _new_handle(self) -> Any:
        handle = pycurl.Curl()
        handle.options = None
        return handle

    def _run(self) -> None:
        self._multi = pycurl.CurlMulti()
        self._multi.setopt(pycurl.M_MAXCONNECTS, CONNECTIONS)
        while True:
            if not self._under_way:
                self._calls.get()()
            while not self._calls.empty():
                self._calls.get()()
            self._multi.perform()
            self._finish()
            if self._under_way and self._calls.empty() and self._multi.select(NEWS_S) < 0:
                time.sleep(NEWS_S)  # nothing to wait for yet: a name is being looked up

    def _finish(self) -> None:
        left = 1
        while left:
            left, whole, broken = self._multi.info_read()
            ended = [(handle, pycurl.E_OK) for handle in whole]
            for handle, error in [*ended, *((handle, number) for handle, number, _ in broken)]:
                self._multi.remove_handle(handle)
                self._under_way -= 1
                get, handle.get = handle.get, None
                self._idle.append(handle)
                get.error = error
                if error == pycurl.E_OPERATION_TIMEDOUT and not handle.getinfo(pycurl.CONNECT_TIME):
                    get.error = pycurl.E_COULDNT_CONNECT
                get.done(get)
