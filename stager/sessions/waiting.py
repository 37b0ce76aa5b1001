"""Readers that wait: what for, until when, and the answer they get."""

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from stager.cache.dataset import Dataset
from stager.clock import Clock
from stager.errors import StagerError
from stager.reader.index import is_failed, is_resident
from stager.reader.values import Numbers

LAST_KEPT: Final = 100_000
LATE_S: Final = 0.5

WantAnswer = dict[str, Any]  # {"pending": [...], "reasons": {sample: reason}, "failed": [...]}


@dataclass(slots=True)
class WaitingReader:
    """One reader that waits for samples."""

    dataset: Dataset
    waiting: set[int]
    reasons: dict[int, str]
    until: float  # monotonic
    since: float
    answer: "Future[WantAnswer]"
    is_late: bool = False  # what was under way for others has not come: it is staged for this reader

    def failed(self) -> list[int]:
        """Those of its samples that cannot be had."""
        numbers = np.fromiter(self.reasons, dtype=np.int64)
        found: list[int] = numbers[is_failed(self.dataset.index.words[numbers])].tolist()
        return found


class WaitingReaders:
    """All readers that wait."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._open: list[WaitingReader] = []
        self.last: dict[tuple[str, int, int], dict[str, Any]] = {}  # (lineage, data set, sample) -> last miss

    def __len__(self) -> int:
        return len(self._open)

    def add(self, dataset: Dataset, reasons: dict[int, str], wait_s: float) -> "Future[WantAnswer]":
        """Wait for the samples that `reasons` has, each with why it is missing."""
        now = self._clock.now()
        want = WaitingReader(dataset, set(reasons), reasons, now + wait_s, now, Future())
        want.answer.set_running_or_notify_cancel()  # from now on it can only be answered
        self._open.append(want)
        return want.answer

    def answer(self) -> None:
        """Answer those who have all they wait for, or whose time is up."""
        now = self._clock.now()
        for want in list(self._open):
            if want.waiting:
                numbers = np.fromiter(want.waiting, dtype=np.int64)
                words = want.dataset.index.words[numbers]
                want.waiting -= set(numbers[is_resident(words) | is_failed(words)].tolist())
            if not want.waiting or now >= want.until:
                self._open.remove(want)
                self._remember(want)
                want.answer.set_result(
                    {"pending": sorted(want.waiting), "reasons": want.reasons, "failed": want.failed()}
                )

    def late(self) -> list[tuple[Dataset, Numbers]]:
        """What is waited for since some time, and so is not to be left to whoever has it; each told once."""
        now = self._clock.now()
        found = []
        for want in self._open:
            if not want.is_late and now - want.since >= LATE_S:
                want.is_late = True
                found.append((want.dataset, np.sort(np.fromiter(want.waiting, dtype=np.int64))))
        return found

    def _remember(self, want: WaitingReader) -> None:
        wait_s = round(self._clock.now() - want.since, 3)
        for number, reason in want.reasons.items():
            about = {"outcome": "miss", "reason": reason, "at": self._clock.wall(), "wait_s": wait_s}
            sample = want.dataset.record.lineage, want.dataset.id, number
            self.last.pop(sample, None)
            self.last[sample] = about
        while len(self.last) > LAST_KEPT:
            del self.last[next(iter(self.last))]

    def datasets(self) -> set[int]:
        """The ids of data sets that somebody waits for."""
        return {want.dataset.id for want in self._open}

    def fail(self, dataset: Dataset, samples: Numbers, error: StagerError) -> None:
        """Tell those who wait for any of these samples that they cannot be had now."""
        self._fail(
            [w for w in self._open if w.dataset is dataset and not w.waiting.isdisjoint(samples.tolist())],
            error,
        )

    def leave(self, dataset: Dataset, error: StagerError) -> None:
        """A data set is going: whoever waits for any of it is told."""
        self._fail([want for want in self._open if want.dataset is dataset], error)

    def fail_all(self, error: StagerError) -> None:
        self._fail(list(self._open), error)

    def _fail(self, wants: list[WaitingReader], error: StagerError) -> None:
        for want in wants:
            self._open.remove(want)
            want.answer.set_exception(error)
