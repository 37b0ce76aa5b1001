"""The service's side of a watcher: a process that looks at one source, which may hang, and holds nothing."""

import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from stager.lines import line_of
from stager.watch.messages import FromWatcher, KnownFiles, ToWatcher, WatchPlace, read_by_service

Hear = Callable[["Watcher", FromWatcher | None], None]  # None: it has ended


class Watcher(Protocol):
    """Whoever watches one source."""

    def tell(self, known: KnownFiles) -> None:
        """What there should be, as of now."""

    def end(self) -> None:
        """Do without it from now on."""


StartWatcher = Callable[[WatchPlace, Hear], Watcher]


class WatchProcess:
    """One watcher process. What it says is heard on a thread of its own."""

    def __init__(self, place: WatchPlace, hear: Hear) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "stager.watch.helper"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # a Ctrl-C on the terminal is for the service alone
        )
        self._hear = hear
        self._write(place)
        threading.Thread(target=self._listen, name="watch", daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, known: KnownFiles) -> None:
        self._write(known)

    def end(self) -> None:
        """Kill it. It is not waited for: on a hung mount it cannot even die."""
        self._process.kill()
        with suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()

    def _write(self, message: ToWatcher) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has just died: its listener says so
            self._process.stdin.write(line_of(message))
            self._process.stdin.flush()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                try:
                    message = read_by_service(line)
                except (ValueError, KeyError, TypeError):
                    break  # a line cut off by a crash
                self._hear(self, message)
        self._process.wait()
        self._hear(self, None)
