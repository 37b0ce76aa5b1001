"""One reader's connection: what it counts, and the thread that reports it in the background."""

import atexit
import os
import threading
import time
import uuid
from contextlib import suppress
from multiprocessing import util
from typing import Any

import numpy as np

from stager.errors import ServiceSilent, StagerError, UsageError
from stager.reader.service import Service
from stager.reader.settings import REPORT_EVERY_S, REPORT_READS_MAX
from stager.reader.values import Numbers, pack_numbers

REPORT_TIMEOUT_S = 2.0
HELLO_TIMEOUT_S = 0.3  # if it is not heard, the first report says so, and we say it again
POSITION_EVERY_S = 0.2
POSITION_PART = 0.02  # of its samples, that a reader with misses reads before it says so: evictions go by it
POSITION_EVERY_MIN_S = 0.03
ORDER_TIMEOUT_S = 10.0
READS_HELD = 1000  # batches
EPOCHS_HELD = 1000  # whose counts nobody took; beyond, they count for the epoch after
EXIT_WAIT_S = 5.0  # that a process waits at its end for a service that is away: a restart takes less
EXIT_ANSWER_S = 1.0  # that it waits for one that is there and does not answer
EXIT_RETRY_S = 0.2


class Way:
    """How far an order has been read from its beginning, by threads that read its batches in any order."""

    def __init__(self) -> None:
        self.position = 0
        self._beyond: dict[int, int] = {}  # where a batch begins that is read, and how long it is
        self._lock = threading.Lock()

    def read(self, at: int, samples: int) -> None:
        with self._lock:
            self._beyond[at] = samples
            while self.position in self._beyond:
                self.position += self._beyond.pop(self.position)


class Session:
    """Counts hits, misses and waits of one data set in this process.

    Safe after a fork and after pickling: each process counts for itself, all in one session.
    """

    _order: dict[str, object]
    _way: Way | None  # through the order we told; None: there is none
    _told: int  # the position that the service knows

    def __init__(
        self, service: Service, dataset: str, length: int, version: dict[str, str], manifest: str
    ) -> None:
        """`version`: what sample numbers are of; `manifest`: the one that was opened."""
        self.service, self.dataset, self.length, self.version = service, dataset, length, version
        self.id = uuid.uuid4().hex
        self.epoch: int | None = None
        self._was_heard = False  # a service has answered us; without one, nobody waits for it at the end
        self._hello = {"session": self.id, "manifest": manifest, **version}
        self.refused: UsageError | None = None  # the service does not keep our version any more
        self._opened_by, self._has_ended = os.getpid(), False
        self._begin()
        self._say_hello()

    def _say_hello(self) -> None:
        """Have the service keep what we read. Without one, nobody takes anything away."""
        self.refused = None
        try:
            self.service.post(f"/datasets/{self.dataset}/hello", self._hello, HELLO_TIMEOUT_S)
        except UsageError as error:
            self.refused = error
        except StagerError:
            pass  # none is there

    def end(self) -> None:
        """Nobody reads our version any more: when our counts are sent, the service need not keep it for us.

        Called by the collector, at any moment: it takes no lock. In a fork of ours it says nothing.
        """
        if self._opened_by == self._pid == os.getpid() and not self._has_ended:
            self._has_ended = True
            with suppress(RuntimeError):  # our process ends, too, and no thread can be started
                _report_soon(self)

    def _say_bye(self, wait_s: float) -> None:
        self.service.post(f"/datasets/{self.dataset}/bye", {"session": self.id}, wait_s)

    def read_in_order(self, order: dict[str, object]) -> Way:
        """Tell the service in which order we are going to read, so that it stages ahead of us.

        It is told beside the first reads: what is resident needs no service.
        """
        way = Way()
        self._order, self._way, self._told, self._had_misses = {"session": self.id, **order}, way, 0, False
        self._tell_soon()
        _report_soon(self)
        return way

    def wait_until_told(self, wait_s: float) -> None:
        """Whoever asks for samples asks as a reader of the order, which the service should know by then."""
        self._is_told.wait(wait_s)

    def _tell_soon(self) -> None:
        """Tell our order on a thread beside us: one at a time, so that the newest is told last."""
        with self._lock:
            self._is_untold = True
            if not self._is_told.is_set():
                return  # the thread that tells the last one tells this one, too
            self._is_told.clear()
        threading.Thread(target=self._tell, name="stager-order", daemon=True).start()

    def _tell(self) -> None:
        """If no service answers, what is resident can be read all the same."""
        while True:
            with self._lock:
                if not self._is_untold:
                    self._is_told.set()
                    return
                self._is_untold = False
                order = self._order
            with suppress(StagerError):
                self.service.post(f"/datasets/{self.dataset}/sessions", order, ORDER_TIMEOUT_S)
                self._was_heard = True

    def has_read(self, way: Way, at: int, samples: int) -> None:
        """These samples of an order are in a batch: it may be given out later, but is read no more."""
        way.read(at, samples)
        if way is self._way and self._had_misses and way.position - self._told >= POSITION_PART * self.length:
            _is_due.set()

    def leave_order(self) -> None:
        """Nothing more will be read in the order we told."""
        self._way = None

    def told_place(self, wait_s: float = ORDER_TIMEOUT_S) -> dict[str, object]:
        """Who we are and how far, for the service that stages ahead of us, once it has our order."""
        self.wait_until_told(wait_s)
        return {"session": self.id, "position": self._note_told()}

    def tell_position(self) -> None:
        """Say how far we are: what is behind us can go, what is before us can come."""
        way = self._way
        if way is None or way.position == self._told or self._pid != os.getpid():
            return
        if not self._is_told.is_set():
            return  # of which order would it be?
        with suppress(StagerError):
            if not self.service.post("/sessions", self.told_place(0), REPORT_TIMEOUT_S)["knows_order"]:
                self._tell_soon()  # the service was started anew

    def _note_told(self) -> int | None:
        """How far we are, which is going to be told."""
        way = self._way
        if way is None:
            return None
        self._told = way.position
        return self._told

    def _begin(self) -> None:
        """Start counting in this process."""
        self._pid = os.getpid()
        self._process = f"{self._pid}-{uuid.uuid4().hex[:8]}"
        self._lock = threading.Lock()  # held for a moment only: a slow service must not hold up a reader
        self._sending = threading.Lock()
        self._requests = self._sent = 0
        self._way, self._told, self._had_misses = None, 0, False
        self._is_untold, self._is_told = False, threading.Event()
        self._is_told.set()
        self._ended: list[tuple[int | None, dict[str, Any]]] = []  # epochs, and the totals at their end
        self._wait_s = 0.0
        self._computed_s = 0.0
        self._reasons: dict[str, int] = {}
        self._reads: list[Numbers] = []

    def add_computed(self, seconds: float) -> None:
        """The reader computed for so long between two batches."""
        self._computed_s += seconds

    def count(
        self, requests: int, reasons: dict[str, int], wait_s: float, samples: Numbers | None = None
    ) -> None:
        """Note that so many samples were read; `reasons` has a count for each that had to be waited for.

        `samples`: which ones, if they are in no order that we told.
        """
        if self._pid != os.getpid():
            self._begin()
        with self._lock:
            self._requests += requests
            self._wait_s += wait_s
            self._had_misses |= bool(reasons)
            for reason, many in reasons.items():
                self._reasons[reason] = self._reasons.get(reason, 0) + many
            if samples is not None:
                self._reads.append(samples)
                del self._reads[:-READS_HELD]  # nobody takes them: the service is away
        _report_soon(self)

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next counts belong to. Those of the one before are sent beside us."""
        with self._lock:
            if epoch != self.epoch and self._requests != self._sent and self._pid == os.getpid():
                self._ended.append((self.epoch, self._totals()))
                del self._ended[:-EPOCHS_HELD]
            self.epoch = epoch

    def flush(self, wait_s: float = REPORT_TIMEOUT_S) -> bool:
        """Send what has not been sent. If no service answers, nothing is lost: totals are sent again.

        Whether it need not be tried again at once: all was sent, or nobody listens. False: the service hangs.
        """
        if self._pid != os.getpid():
            return True
        deadline = time.monotonic() + wait_s
        if not self._sending.acquire(timeout=wait_s):
            return False
        try:
            self._send(deadline)
        except ServiceSilent:
            _unsent.add(self)
            return False
        except StagerError:
            _unsent.add(self)
        finally:
            self._sending.release()
        return True

    def _send(self, deadline: float) -> None:
        """The totals at the end of each epoch that is over, and those of now."""
        with self._lock:
            parts = [part for part in self._ended if part[1]["requests"] > self._sent]
            parts.append((self.epoch, self._totals()))
            reads, self._reads = self._reads, []
        position = self._note_told() if self._is_told.is_set() else None
        if self._way is not None:
            _unsent.add(self)  # a report is a sign of life, too
        elif parts[-1][1]["requests"] == self._sent:
            parts = []
        try:
            for epoch, totals in parts:
                is_last = totals is parts[-1][1]
                body = {
                    **self.version,
                    "dataset": self.dataset,
                    "session": self.id,
                    "process": self._process,
                    "length": self.length,
                    "epoch": epoch,
                    "position": position,
                    "reads": _packed(reads) if is_last else "",
                    "totals": totals,
                }
                answer = self.service.post("/reports", body, deadline - time.monotonic())
                self._sent, self._was_heard = totals["requests"], True
                if not answer["knows_reader"] and not self._has_ended:
                    self._say_hello()
                if not answer["knows_order"] and position is not None:
                    self._tell_soon()  # the service was started anew
            if self._has_ended:
                self._say_bye(deadline - time.monotonic())
        except StagerError:
            with self._lock:
                self._reads[:0] = reads
            raise
        with self._lock:
            self._ended = [part for part in self._ended if part[1]["requests"] > self._sent]

    def _totals(self) -> dict[str, Any]:
        """What this process has read so far. The caller holds the lock."""
        misses = sum(self._reasons.values())
        return {
            "requests": self._requests,
            "hits": self._requests - misses,
            "misses": misses,
            "wait_s": self._wait_s,
            "reasons": dict(self._reasons),
            "computed_s": self._computed_s,
        }

    @property
    def waits(self) -> bool:
        """Whether it has counts for a service that was there, and is away."""
        return self._was_heard and self._requests != self._sent and self._pid == os.getpid()

    def __getstate__(self) -> dict[str, object]:
        names = ("service", "dataset", "length", "version", "id", "epoch", "_was_heard", "_hello", "refused")
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state)
        self._opened_by, self._has_ended = 0, False  # a copy: whoever made us says when we are done with
        self._begin()


def _packed(reads: list[Numbers]) -> str:
    """The last of what was read, as much as a report may have."""
    return pack_numbers(np.concatenate(reads)[-REPORT_READS_MAX:]) if reads else ""


# One reporter a process. A session is held here only while it has something to report.
_unsent: set[Session] = set()
_reporter_pid = 0
_ended_pids: set[int] = set()  # this process, once it has sent its last report
_flushing = threading.Lock()  # who ends the process must not overtake a report that is on its way
_is_due = threading.Event()  # somebody has read so much that it should be told at once


def _report_soon(session: Session) -> None:
    global _reporter_pid, _flushing, _is_due
    if _reporter_pid != os.getpid():  # also in a forked child: threads do not come along
        _reporter_pid, _flushing, _is_due = os.getpid(), threading.Lock(), threading.Event()
        _unsent.clear()
        threading.Thread(target=_report, name="stager-report", daemon=True).start()
        # A process of multiprocessing's (a DataLoader's worker) ends without atexit.
        util.Finalize(None, _flush_at_exit, exitpriority=100)
        atexit.register(_flush_at_exit)
    _unsent.add(session)


def _report() -> None:
    flushed_at = time.monotonic()
    while True:
        _is_due.wait(POSITION_EVERY_S)
        _is_due.clear()
        if time.monotonic() - flushed_at >= REPORT_EVERY_S:
            flushed_at = time.monotonic()
            flush_all()
        else:
            for session in list(_unsent):
                session.tell_position()
        time.sleep(POSITION_EVERY_MIN_S)


def flush_all() -> None:
    """Report what all sessions of this process have not reported."""
    if _reporter_pid != os.getpid():
        return  # forked, and nothing was read since
    with _flushing:
        while _unsent:
            waiting = list(_unsent)
            _unsent.clear()
            for session in waiting:
                session.flush()
            if not _unsent.isdisjoint(waiting):
                return  # nobody answers: at the next tick


def _flush_at_exit() -> None:
    """The last report of this process: a service that is being started anew shall have it, too.

    One that hangs does not hold up our end: it has a second for all sessions together.
    """
    if _reporter_pid != os.getpid() or os.getpid() in _ended_pids:
        return  # nothing was read since a fork; or this is the second call, see _report_soon
    _ended_pids.add(os.getpid())
    began = time.monotonic()
    if not _flushing.acquire(timeout=EXIT_ANSWER_S):
        return  # a report is on its way, and is not answered
    answer_s = max(EXIT_ANSWER_S - (time.monotonic() - began), EXIT_RETRY_S)
    try:
        while waiting := list(_unsent):
            _unsent.clear()
            if not all(session.flush(answer_s) for session in waiting):
                return
            if not any(session.waits for session in waiting) or time.monotonic() > began + EXIT_WAIT_S:
                return
            time.sleep(EXIT_RETRY_S)
    finally:
        _flushing.release()
