"""A watcher's process: it is told on stdin what to watch, and hints on stdout, in lines of JSON.

It holds no lock and no socket: it can be killed at any moment, and dies when its stdin ends. Where its mount
hangs, it hangs, and nobody else: that it is silent says so.
"""

import os
import queue
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Final

from stager.errors import SourceNotFound
from stager.lines import line_of
from stager.mounts import mounts
from stager.reader.values import SourceSpec
from stager.sources import directory_of
from stager.watch.helper.root import Root, find_root, kinds_of
from stager.watch.hint import EVERYTHING, Hint
from stager.watch.messages import (
    Beat,
    FromWatcher,
    Gone,
    Hinted,
    KnownFiles,
    Watching,
    WatchPlace,
    read_by_watcher,
)

LOOK_S: Final = 0.2  # between two looks at what was heard
ROOT_EVERY_S: Final = 1.0  # the root itself is looked at
BEAT_EVERY_S: Final = 5.0

Say = Callable[[FromWatcher], None]


class DirectoryWatch:
    """Watches one directory, whatever becomes of it."""

    def __init__(
        self, place: WatchPlace, path: str, known: "queue.SimpleQueue[KnownFiles]", say: Say
    ) -> None:
        self._place, self._path, self._known, self._say = place, path, known, say
        self._beat_at = self._root_at = 0.0
        self._newest: KnownFiles | None = None
        self._note = ""

    def run(self) -> None:
        """Until the process is killed."""
        before: Root | None = None
        while True:
            try:
                root = find_root(self._path)
                if before is not None and root.device != before.device:
                    self._say(Gone(f"{self._path}: another device is there"))
                before = root
                self._watch(root)
            except SourceNotFound as error:
                self._say(Gone(error.message))
                self._rest(ROOT_EVERY_S)
            except OSError as error:  # ESTALE, ENOTCONN, EIO: the mount is in trouble
                self._say(Gone(f"{self._path}: {error.strerror}"))
                self._rest(ROOT_EVERY_S)

    def _watch(self, root: Root) -> None:
        """Until the root is another one."""
        kinds = kinds_of(root.path, mounts())
        self._note = f"{', '.join(kinds)} tells of no changes" if kinds else ""
        if not kinds and not self._by_inotify(root):
            return
        self._by_rescans(root)

    def _by_inotify(self, root: Root) -> bool:
        """Return whether it must be done in another way."""
        from stager.watch.helper.inotify import InotifyWatch, TooManyFolders

        watch: InotifyWatch | None = None
        try:
            watch = InotifyWatch(root.path, tuple(self._place.endings), self._place.watches_most)
            self._begun(Watching("inotify", watches=watch.watches))
            told = watch.watches
            while self._is_still(root, watch.is_alive):
                self._hint(watch.take())
                if watch.watches != told:
                    told = watch.watches
                    self._say(Watching("inotify", watches=told))
                self._rest(LOOK_S)
            return False
        except TooManyFolders as error:
            self._note = str(error)
            return True
        finally:
            if watch is not None:
                watch.stop()

    def _by_rescans(self, root: Root) -> None:
        from stager.watch.helper.rescan import STATS_PER_S, Rescan

        rescan = Rescan(root.path, self._place.every_s, time.monotonic())
        is_told, newest = False, None
        while self._is_still(root):
            if self._newest is not newest:
                newest = self._newest
                rescan.know(newest) if newest is not None else None
            hint = rescan.go_on(round(STATS_PER_S * LOOK_S), time.monotonic(), time.time())
            if rescan.is_ready and not is_told:
                is_told = True
                self._begun(Watching("rescan", stats_per_s=STATS_PER_S, note=self._note))
            self._hint(hint)
            self._rest(LOOK_S)

    def _begun(self, watching: Watching) -> None:
        """No change is missed from here on. What changed before, one look at everything tells."""
        self._say(watching)
        self._say(Hinted(EVERYTHING))

    def _hint(self, hint: Hint) -> None:
        if hint:
            self._say(Hinted(hint))

    def _is_still(self, root: Root, is_alive: Callable[[], bool] = lambda: True) -> bool:
        """Whether the root is the one that it was, and whether it is still watched."""
        now = time.monotonic()
        if now < self._root_at:
            return True
        self._root_at = now + ROOT_EVERY_S
        try:
            return find_root(self._path) == root and is_alive()
        except SourceNotFound:
            return False

    def _rest(self, seconds: float) -> None:
        while not self._known.empty():
            self._newest = self._known.get()
        if time.monotonic() >= self._beat_at:
            self._beat_at = time.monotonic() + BEAT_EVERY_S
            self._say(Beat())
        time.sleep(seconds)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the service, which ends us
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints must not look like an answer
    lock = threading.Lock()

    def say(message: FromWatcher) -> None:
        with lock:
            answers.write(line_of(message))
            answers.flush()

    place = read_by_watcher(sys.stdin.readline())
    assert isinstance(place, WatchPlace), "the first message says what to watch"
    known: queue.SimpleQueue[KnownFiles] = queue.SimpleQueue()
    threading.Thread(target=_watch, args=(place, known, say), daemon=True).start()
    for line in sys.stdin:
        message = read_by_watcher(line)
        assert isinstance(message, KnownFiles)
        known.put(message)
    os._exit(0)  # the service is gone


def _watch(place: WatchPlace, known: "queue.SimpleQueue[KnownFiles]", say: Say) -> None:
    try:
        source = SourceSpec(**place.source)
        if place.events:
            from stager.watch.helper.bucket import watch_bucket

            watch_bucket(source, place.events, say, BEAT_EVERY_S)
        else:
            directory = directory_of(source)
            assert directory is not None, "a bucket without events needs no watcher"
            DirectoryWatch(place, str(directory.expanduser()), known, say).run()
    finally:
        os._exit(1)  # a watcher that watches nothing says so by its end


if __name__ == "__main__":
    main()
