"""Many HTTP requests at a time by libcurl, in one thread: a thread a request costs more than the request."""

import os
import re
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from queue import SimpleQueue
from typing import Any, Final

import pycurl

CONNECTIONS: Final = 256  # kept open
UNLISTED_BYTES: Final = 512 << 20  # an object of unknown size is not read if it has more
REFUSAL_BYTES: Final = 64 << 10  # of what a server says when it refuses, no more is kept
OPTIONS: Final = {pycurl.NOSIGNAL: 1, pycurl.BUFFERSIZE: 256 << 10}  # of all requests
_FOR_EPOLL: Final = {
    pycurl.POLL_NONE: 0,
    pycurl.POLL_IN: select.EPOLLIN,
    pycurl.POLL_OUT: select.EPOLLOUT,
    pycurl.POLL_INOUT: select.EPOLLIN | select.EPOLLOUT,
}


Options = Mapping[int, Any]  # of libcurl


class Get:
    """One request: what is asked, where the body goes, and what came of it."""

    __slots__ = (
        "body",
        "came",
        "chunks",
        "done",
        "error",
        "headers",
        "lines",
        "options",
        "refusal",
        "status",
        "url",
    )

    def __init__(
        self,
        url: str,
        headers: Sequence[str],
        options: Options,
        body: memoryview | None,
        done: Callable[["Get"], None],
    ) -> None:
        """`body`: exactly as long as what should come; None: that is not known, it is made then.

        Gets that are alike share their `options`.
        """
        self.url, self.headers, self.options, self.body, self.done = url, headers, options, body, done
        self.status = self.came = 0  # `came`: bytes of the answer's body
        self.error = pycurl.E_OK  # libcurl's, if no whole answer came
        self.refusal = b""
        # libcurl appends to these, with no Python of ours in between: a GET has twenty such calls.
        self.lines: list[bytes] = []  # of the answer's head
        self.chunks: list[bytes] = []  # of its body

    def end(self, status: int, error: int) -> None:
        """Put what came where it belongs. What does not fit there is not kept."""
        self.status, self.error = status, error
        self.came = sum(map(len, self.chunks))
        if status >= 300:
            self.refusal = b"".join(self.chunks)[:REFUSAL_BYTES]
        elif self.body is None:
            self.body = memoryview(b"".join(self.chunks))
        elif self.came == len(self.body):
            at = 0
            for chunk in self.chunks:
                self.body[at : at + len(chunk)] = chunk
                at += len(chunk)
        self.chunks.clear()

    def answered(self, wanted: re.Pattern[bytes]) -> dict[str, str]:
        """The headers that are `wanted`: two groups, name and value, of a line. Names are in lower case."""
        _, _, head = b"".join(self.lines).rpartition(b"\r\n\r\nHTTP/")  # before that, a proxy's
        found = wanted.findall(head)
        return {name.lower().decode(): value.strip().decode("latin-1") for name, value in found}


class CurlLoop:
    """A thread that has any number of requests under way. It starts with the first one.

    libcurl says which sockets it waits for and when it wants to be called; what is ready is found by epoll.
    (Its `perform` looks at all of them each time: three times the CPU where bytes come in drips.)
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._lock = threading.Lock()
        self._news = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)  # wakes the loop
        self._thread: threading.Thread | None = None
        self._idle: deque[Any] = deque()
        self._timer_at: float | None = None  # when libcurl wants to be called, whatever happens

    def call(self, call: Callable[[], None]) -> None:
        """Have something done in the loop's thread: there, and only there, `get` may be called."""
        self._calls.put(call)
        if self._thread is None:
            self._begin()
        elif threading.get_ident() != self._thread.ident:
            os.eventfd_write(self._news, 1)

    def _begin(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="curl", daemon=True)
                self._thread.start()

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
        most = UNLISTED_BYTES if get.body is None else len(get.body)
        handle.setopt(pycurl.MAXFILESIZE_LARGE, max(most, REFUSAL_BYTES))
        handle.setopt(pycurl.WRITEFUNCTION, get.chunks.append)
        handle.setopt(pycurl.HEADERFUNCTION, get.lines.append)
        self._multi.add_handle(handle)

    def _new_handle(self) -> Any:
        handle = pycurl.Curl()
        handle.options = None
        return handle

    def _run(self) -> None:
        # Where all cores are busy it waits its turn, and then finds more to do at once: 2 % of all CPU.
        with suppress(OSError):  # some sandboxes do not let us, and systemd's is ours
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        self._multi = pycurl.CurlMulti()
        self._multi.setopt(pycurl.M_MAXCONNECTS, CONNECTIONS)
        self._multi.setopt(pycurl.M_SOCKETFUNCTION, self._watch)
        self._multi.setopt(pycurl.M_TIMERFUNCTION, self._set_timer)
        self._poll = select.epoll()
        self._poll.register(self._news, select.EPOLLIN)
        while True:
            while not self._calls.empty():
                self._calls.get()()
            for fd, events in self._poll.poll(self._patience_s()):
                if fd == self._news:
                    os.eventfd_read(fd)
                else:
                    self._multi.socket_action(fd, _for_curl(events))
            if self._timer_at is not None and time.monotonic() >= self._timer_at:
                self._timer_at = None
                self._multi.socket_action(pycurl.SOCKET_TIMEOUT, 0)
            self._finish()

    def _patience_s(self) -> float | None:
        """How long to wait for a socket; None: until one is ready."""
        if not self._calls.empty():
            return 0.0
        return None if self._timer_at is None else max(0.0, self._timer_at - time.monotonic())

    def _watch(self, what: int, fd: int, _multi: Any, is_watched: Any) -> None:
        """libcurl wants to know of a socket, or no longer."""
        if what == pycurl.POLL_REMOVE:
            with suppress(OSError):  # closed already
                self._poll.unregister(fd)
        elif is_watched:
            self._poll.modify(fd, _FOR_EPOLL[what])
        else:
            self._poll.register(fd, _FOR_EPOLL[what])
            self._multi.assign(fd, True)

    def _set_timer(self, timeout_ms: int) -> None:
        self._timer_at = None if timeout_ms < 0 else time.monotonic() + timeout_ms / 1000

    def _finish(self) -> None:
        left = 1
        while left:
            left, whole, broken = self._multi.info_read()
            ended = [(handle, pycurl.E_OK) for handle in whole]
            for handle, number in [*ended, *((handle, number) for handle, number, _ in broken)]:
                error = number
                self._multi.remove_handle(handle)
                get, handle.get = handle.get, None
                self._idle.append(handle)
                if error == pycurl.E_OPERATION_TIMEDOUT and not handle.getinfo(pycurl.REQUEST_SIZE):
                    error = pycurl.E_COULDNT_CONNECT
                get.end(handle.getinfo(pycurl.RESPONSE_CODE), error)
                get.done(get)


@cache
def curl_loop() -> CurlLoop:
    """The one of this process: sources come and go with the config, a thread and its connections stay."""
    return CurlLoop()


os.register_at_fork(after_in_child=curl_loop.cache_clear)  # threads are not forked


def _for_curl(events: int) -> int:
    """What epoll says of a socket, in libcurl's words."""
    reads = pycurl.CSELECT_IN if events & (select.EPOLLIN | select.EPOLLHUP) else 0
    writes = pycurl.CSELECT_OUT if events & select.EPOLLOUT else 0
    return reads | writes | (pycurl.CSELECT_ERR if events & select.EPOLLERR else 0)
