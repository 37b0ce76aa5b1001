"""Readers that wait: what for, until when, and the answer they get."""

import time
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from stager.cache import Dataset
from stager.errors import StagerError
from stager.index import is_failed, is_resident
from stager.model import Numbers

LAST_KEPT: Final = 100_000

Answer = dict[str, Any]  # {"pending": [...], "reasons": {sample: reason}}


@dataclass(slots=True)
class Want:
    """One reader that waits for samples."""

    dataset: Dataset
    waiting: set[int]
    reasons: dict[int, str]
    until: float  # monotonic
    since: float
    answer: "Future[Answer]"


class Wants:
    """All readers that wait."""

    def __init__(self) -> None:
        self._open: list[Want] = []
        self.last: dict[tuple[int, int], dict[str, Any]] = {}  # (data set id, sample) -> its last miss

    def add(self, dataset: Dataset, reasons: dict[int, str], wait_s: float) -> "Future[Answer]":
        """Wait for the samples that `reasons` has, each with why it is missing."""
        now = time.monotonic()
        want = Want(dataset, set(reasons), reasons, now + wait_s, now, Future())
        want.answer.set_running_or_notify_cancel()  # from now on it can only be answered
        self._open.append(want)
        return want.answer

    def answer(self) -> None:
        """Answer those who have all they wait for, or whose time is up."""
        now = time.monotonic()
        for want in list(self._open):
            if want.waiting:
                numbers = np.fromiter(want.waiting, dtype=np.int64)
                words = want.dataset.index.words[numbers]
                want.waiting -= set(numbers[is_resident(words) | is_failed(words)].tolist())
            if not want.waiting or now >= want.until:
                self._open.remove(want)
                self._remember(want)
                want.answer.set_result({"pending": sorted(want.waiting), "reasons": want.reasons})

    def _remember(self, want: Want) -> None:
        wait_s = round(time.monotonic() - want.since, 3)
        for number, reason in want.reasons.items():
            about = {"outcome": "miss", "reason": reason, "at": time.time(), "wait_s": wait_s}
            self.last.pop((want.dataset.id, number), None)
            self.last[want.dataset.id, number] = about
        while len(self.last) > LAST_KEPT:
            del self.last[next(iter(self.last))]

    def fail(self, dataset: Dataset, samples: Numbers, error: StagerError) -> None:
        """Tell those who wait for any of these samples that they cannot be had now."""
        self._fail(
            [w for w in self._open if w.dataset is dataset and not w.waiting.isdisjoint(samples.tolist())],
            error,
        )

    def fail_all(self, error: StagerError) -> None:
        self._fail(list(self._open), error)

    def _fail(self, wants: list[Want], error: StagerError) -> None:
        for want in wants:
            self._open.remove(want)
            want.answer.set_exception(error)
