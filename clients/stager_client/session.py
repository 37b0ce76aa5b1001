"""One reader's connection: what it counts, and the background thread that reports it."""

import atexit
import os
import threading
import uuid
from multiprocessing import util

from stager.config import REPORT_EVERY_S
from stager.control import Service
from stager.errors import StagerError


class Session:
    """Counts hits, misses and waits of one data set, and sends totals about once a second.

    It is safe to use after a fork and after pickling: each process counts for itself, in one session.
    """

    def __init__(self, service: Service, dataset: str, length: int) -> None:
        self.service, self.dataset, self.length = service, dataset, length
        self.id = uuid.uuid4().hex
        self.epoch: int | None = None
        self._begin()

    def _begin(self) -> None:
        """Start counting in this process."""
        self._pid = os.getpid()
        self._process = f"{self._pid}-{uuid.uuid4().hex[:8]}"
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._sent = 0
        self.requests = self.hits = self.misses = 0
        self.wait_s = 0.0
        self.reasons: dict[str, int] = {}

    def count(self, requests: int, reasons: dict[str, int], wait_s: float) -> None:
        """Note that so many samples were read; `reasons` has one count for each that had to be waited for."""
        if self._pid != os.getpid():
            self._begin()
        misses = sum(reasons.values())
        with self._lock:
            self.requests += requests
            self.misses += misses
            self.hits += requests - misses
            self.wait_s += wait_s
            for reason, many in reasons.items():
                self.reasons[reason] = self.reasons.get(reason, 0) + many
        if self._thread is None:
            self._thread = threading.Thread(target=self._report, name="stager-report", daemon=True)
            self._thread.start()
            # A process that multiprocessing started (a DataLoader's worker) ends without atexit.
            util.Finalize(self, self.flush, exitpriority=100)
            atexit.register(self.flush)

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next counts belong to."""
        self.flush()
        self.epoch = epoch

    def flush(self) -> None:
        """Send what has not been sent. If no service answers, nothing is lost: totals are sent again."""
        if self._pid != os.getpid():
            return
        with self._lock:
            body = {
                "dataset": self.dataset,
                "session": self.id,
                "process": self._process,
                "length": self.length,
                "epoch": self.epoch,
                "totals": {
                    "requests": self.requests,
                    "hits": self.hits,
                    "misses": self.misses,
                    "wait_s": self.wait_s,
                    "reasons": dict(self.reasons),
                },
            }
            if self.requests == self._sent:
                return
            try:
                self.service.post("/reports", body, timeout_s=2.0)
                self._sent = self.requests
            except StagerError:
                pass

    def _report(self) -> None:
        tick = threading.Event()
        while not tick.wait(REPORT_EVERY_S):
            self.flush()

    def __getstate__(self) -> dict[str, object]:
        return {
            "service": self.service,
            "dataset": self.dataset,
            "length": self.length,
            "id": self.id,
            "epoch": self.epoch,
        }

    def __setstate__(self, state: dict[str, object]) -> None:
        for name, value in state.items():
            setattr(self, name, value)
        self._begin()
