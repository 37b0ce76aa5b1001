"""A proxy that notes every HTTP request, and holds requests for objects back when a test says so.

It passes heads and bodies on as they are, so that signatures stay valid. Between two TCP ports it stands
before an S3 server, between two Unix sockets before the service.
"""

import asyncio
import re
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final

HEAD_BYTES_MAX: Final = 1 << 20
Address = tuple[str, int] | Path


class CountingProxy:
    """All methods may be called from the test's thread."""

    def __init__(self, upstream: Address, listen: Path | None = None) -> None:
        self.upstream, self.listen = upstream, listen
        self.requests: list[str] = []  # "GET /bucket/key", in the order they came
        self.port = 0
        self._allowed: int | None = None  # so many more objects may pass; None: all
        self._pause_s = 0.0
        self._loop = asyncio.new_event_loop()
        self._changed = asyncio.Event()
        self._turn = asyncio.Lock()
        self._is_up = threading.Event()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._stop = asyncio.Event()

    @property
    def endpoint_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def objects(self) -> list[str]:
        """The paths of all objects that were asked for, those that are held back too."""
        gets = (line.removeprefix("GET ") for line in self.requests if line.startswith("GET "))
        return [path for path in gets if "list-type=" not in path]

    def allow(self, objects: int | None) -> None:
        """Let so many more objects pass and hold back what comes after them; None: let all pass."""
        self._loop.call_soon_threadsafe(self._allow, objects)

    def slow_down(self, pause_s: float) -> None:
        """Let one object pass after the other, with a pause between them; 0: all at once again."""
        self._pause_s = pause_s

    def _allow(self, objects: int | None) -> None:
        self._allowed = objects
        self._changed.set()
        self._changed = asyncio.Event()

    def _run(self) -> None:
        with closing(self._loop):
            self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        if self.listen is not None:
            server = await asyncio.start_unix_server(self._connected, self.listen, limit=HEAD_BYTES_MAX)
        else:
            server = await asyncio.start_server(self._connected, "127.0.0.1", 0, limit=HEAD_BYTES_MAX)
            self.port = server.sockets[0].getsockname()[1]
        self._is_up.set()
        await self._stop.wait()
        server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            if isinstance(self.upstream, Path):
                answers, onward = await asyncio.open_unix_connection(self.upstream)
            else:
                answers, onward = await asyncio.open_connection(*self.upstream)
            back = asyncio.ensure_future(_copy(answers, writer))
            try:
                while True:
                    head = await reader.readuntil(b"\r\n\r\n")
                    length = re.search(rb"(?im)^content-length: *(\d+)", head)
                    body = await reader.readexactly(int(length[1])) if length else b""
                    await self._note(head)
                    onward.write(head + body)
                    await onward.drain()
            finally:
                onward.close()
                back.cancel()
        writer.close()

    async def _note(self, head: bytes) -> None:
        method, path, _ = head.split(b"\r\n", 1)[0].decode().split(" ")
        self.requests.append(f"{method} {path}")
        if method != "GET" or "list-type=" in path or self.listen is not None:
            return
        while self._allowed == 0:
            await self._changed.wait()
        if self._allowed is not None:
            self._allowed -= 1
        if self._pause_s:
            async with self._turn:
                await asyncio.sleep(self._pause_s)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError, asyncio.CancelledError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.close()


@contextmanager
def counting_proxy(upstream: Address, listen: Path | None = None) -> Iterator[CountingProxy]:
    """A proxy that runs, on a free port or, before a Unix socket, at `listen`."""
    proxy = CountingProxy(upstream, listen)
    proxy._thread.start()
    proxy._is_up.wait()
    try:
        yield proxy
    finally:
        proxy._loop.call_soon_threadsafe(proxy._stop.set)
        proxy._thread.join()
