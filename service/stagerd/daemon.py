"""The service: one loop that owns all state, and an HTTP server on a Unix socket that asks it."""

import errno
import logging
import os
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Final

import numpy.ma  # noqa: F401 - np.unique wants it, and the first reader would wait for it
import uvicorn

from stager import __version__
from stager.cache.cache import Cache
from stager.cache.start.lock import SERVICE
from stager.config import Config
from stager.errors import CacheError, CacheOwned, NoService, ServiceSilent, StagerError
from stager.owner.loop import STOPPING
from stager.owner.owner import Owner
from stager.reader.service import Service
from stagerd import notify
from stagerd.api.app import make_app
from stagerd.peer import PeerProtocol
from stagerd.reload import reload_beside

log = logging.getLogger("stager")

TICK_S: Final = 0.2
OWNED_LOOK_S: Final = 0.5  # between looks whether a command that owns the cache has ended
START_S: Final = 30.0  # a start takes no longer, once the cache is ours
GRACE_S: Final = 5  # for requests that are under way when we stop


class LoopThread(threading.Thread):
    """Steps the owner's staging until it is told to stop; feeds systemd's watchdog while it is alive."""

    def __init__(self, owner: Owner) -> None:
        super().__init__(name="loop")
        self.owner = owner
        self.stop_now = threading.Event()
        self.failed: BaseException | None = None
        self._watchdog_s = notify.watchdog_interval_s()
        self._status = ""

    def run(self) -> None:
        fed_at = 0.0
        try:
            while not self.stop_now.is_set():
                self.owner.step(TICK_S)
                self._tell_status()
                if self._watchdog_s is not None and time.monotonic() - fed_at > self._watchdog_s:
                    fed_at = time.monotonic()
                    notify.watchdog()
            self.owner.stop()
        except BaseException as error:
            log.exception("loop failed")
            self.failed = error
            raise
        finally:
            self.owner.loop.events.close(STOPPING)  # or requests that come now would wait for ever

    def _tell_status(self) -> None:
        """One line for `systemctl status`, when it changes."""
        under_way = sum(not job.ended for job in self.owner.loop.jobs.by_id.values())
        status = f"{len(self.owner.cache.datasets)} data sets, {under_way} jobs under way"
        if status != self._status:
            self._status = status
            notify.status(status)


def run(config: Config) -> None:
    """Serve until SIGTERM or SIGINT."""
    cache = _own(config)
    try:
        listener = _listen(config.socket)
    except BaseException:
        cache.close()
        raise
    owner = Owner(cache, is_service=True)
    owner.loop.warm_up(config.datasets.values())
    owner.resume()
    thread = LoopThread(owner)
    server = _Server(
        uvicorn.Config(
            make_app(owner),
            http=PeerProtocol,
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=GRACE_S,
            timeout_keep_alive=60,
        ),
        thread,
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        # Also for uvicorn, which raises the signal again once it is done: we are not done by then.
        signal.signal(number, server.handle_exit)
    signal.signal(signal.SIGHUP, lambda number, frame: reload_beside(owner))
    thread.start()
    log.info(
        "service ready version=%s pid=%d socket=%s cache=%s datasets=%d",
        __version__,
        os.getpid(),
        config.socket,
        cache.directory,
        len({*config.datasets, *(row.name for row in cache.catalog.datasets())}),
    )
    if os.geteuid() == config.socket.stat().st_gid == 0:
        log.warning("only root can use this service hint=%r", "for other users: systemd/README.md")
    notify.ready()
    try:
        server.run(sockets=[listener])
    finally:
        thread.stop_now.set()
        thread.join()
        cache.close()
        config.socket.unlink(missing_ok=True)
        log.info("service stopped")
    if thread.failed is not None:
        raise StagerError(
            f"the service's loop failed: {thread.failed}", hint="see the log above, and report it"
        )


def _own(config: Config) -> Cache:
    """The cache, once it is ours. A command that has it ends by itself: wait. Another service does not."""
    waits_for = ""
    while True:
        try:
            return Cache(config, SERVICE)
        except CacheOwned as owned:
            if owned.what == SERVICE:
                raise
            told = f"waiting for process {owned.pid} ({owned.what}) to end"
            if told != waits_for:
                log.info("%s cache=%s", told, config.cache_dir)
                waits_for = told
            notify.still_starting(told, OWNED_LOOK_S + START_S)
            time.sleep(OWNED_LOOK_S)


class _Server(uvicorn.Server):
    """Tells systemd and the loop of a stop as soon as the signal comes: waiting readers are let go."""

    def __init__(self, config: uvicorn.Config, thread: LoopThread) -> None:
        super().__init__(config)
        self._thread = thread

    async def on_tick(self, counter: int) -> bool:
        if not self._thread.is_alive():
            return True
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        notify.stopping()
        log.info("service stopping")
        self._thread.stop_now.set()
        await super().shutdown(sockets)


def _listen(path: Path) -> socket.socket:
    """Bind the socket, group-readable from its first moment; take over one that nobody answers on."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
        if path.exists():
            try:
                other = Service(path).get("/status", timeout_s=5)["service"]
                raise CacheError(
                    f"{path} is in use by another service (process {other['pid']})",
                    hint="stop it, or set another [service] socket",
                )
            except ServiceSilent as error:  # it may go on
                raise CacheError(
                    f"{path} is in use: {error.message}", hint="stop it, or set another [service] socket"
                ) from None
            except NoService:
                if not path.is_socket():
                    raise FileExistsError(errno.EEXIST, "there is a file of another kind") from None
                path.unlink()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o117)
        try:
            listener.bind(str(path))
        finally:
            os.umask(before)
        listener.listen(128)
        return listener
    except OSError as error:
        raise CacheError(
            f"{path} cannot be the service's socket: {error.strerror or error}",
            hint="set [service] socket to a path in a directory you can write",
        ) from None
