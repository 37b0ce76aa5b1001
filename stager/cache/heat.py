"""What was read of a data set lately: how hot each sample is, and the trace for the simulator."""

from collections import deque
from typing import Final

import numpy as np
import numpy.typing as npt

from stager.reader.values import Numbers, grown

READS_KEPT: Final = 4_000_000  # of a data set; the oldest are forgotten first
CHUNK_S: Final = 10.0  # reads that are so near are of one time
HALF_LIFE_S: Final = 6 * 3600.0  # a read so long ago counts half
ASKED_S: Final = 6 * 3600.0  # what a job has staged is not given up before: somebody asked for it

Floats = npt.NDArray[np.float64]


class Heat:
    """The last reads of a data set, in order, and when its samples were staged because somebody asked."""

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self._chunks: deque[tuple[float, Numbers]] = deque()
        self._kept = 0
        self._asked_at: Floats | None = None
        self._heat: tuple[float, Floats] | None = None  # when it was reckoned, and what it was

    def grow(self, samples: int) -> None:
        """The data set has more samples by now."""
        self._samples, self._heat = samples, None
        if self._asked_at is not None:
            self._asked_at = grown(self._asked_at, samples, -np.inf)

    def add(self, samples: Numbers, at: float) -> None:
        """These were read."""
        if not len(samples):
            return
        if self._chunks and 0 <= at - self._chunks[-1][0] < CHUNK_S:
            began, before = self._chunks.pop()
            self._chunks.append((began, np.concatenate([before, samples])))
        else:
            self._chunks.append((at, samples))
        self._kept += len(samples)
        while self._kept > READS_KEPT and len(self._chunks) > 1:
            self._kept -= len(self._chunks.popleft()[1])

    def asked(self, samples: Numbers, at: float) -> None:
        """These were staged by a job."""
        if self._asked_at is None:
            self._asked_at = np.full(self._samples, -np.inf)
        self._asked_at[samples] = at

    def is_asked(self, samples: Numbers, now: float) -> npt.NDArray[np.bool_]:
        """Which of these samples a job has staged lately."""
        if self._asked_at is None:
            return np.zeros(len(samples), dtype=np.bool_)
        return np.asarray(np.abs(now - self._asked_at[samples]) < ASKED_S)  # the clock may be set back

    def forget(self, samples: Numbers) -> None:
        """Somebody wants these gone: they are as if nobody had ever read them."""
        gone = np.zeros(self._samples, dtype=np.bool_)
        gone[samples] = True
        self._chunks = deque((at, part[~gone[part]]) for at, part in self._chunks)
        self._kept = sum(len(part) for _, part in self._chunks)
        if self._asked_at is not None:
            self._asked_at[samples] = -np.inf
        self._heat = None

    def trace(self) -> Numbers:
        """The samples in the order they were read."""
        return np.concatenate([np.zeros(0, dtype=np.int64), *(part for _, part in self._chunks)])

    def of_all(self, now: float) -> Floats:
        """How often each sample was read, a read counting the less the longer ago it is. Some seconds old."""
        if self._heat is None or abs(now - self._heat[0]) > CHUNK_S:
            self._heat = now, self._heat_at(now)
        return self._heat[1]

    def hottest(self, of: npt.NDArray[np.bool_], count: int, now: float) -> Numbers:
        """The samples among these that are read most, at most so many, in order of their numbers."""
        if not self._chunks or not of.any():  # most often all is resident: then heat need not be known
            return np.zeros(0, dtype=np.int64)
        heat = self.of_all(now)
        warm = np.flatnonzero(of & (heat > 0))
        return np.sort(warm[np.argsort(-heat[warm], kind="stable")[:count]])

    def _heat_at(self, now: float) -> Floats:
        # A clock that was set back makes reads of the future: they count as of now.
        ages = [(max(now - at, 0.0), len(part)) for at, part in self._chunks]
        weights = [np.full(count, 0.5 ** (age_s / HALF_LIFE_S)) for age_s, count in ages]
        heat: Floats = np.bincount(
            self.trace(), np.concatenate([np.zeros(0), *weights]), minlength=self._samples
        ).astype(np.float64)
        return heat


def waits_of(heat: Floats) -> Floats:
    """In how many seconds samples of this heat are read again, if all goes on as before."""
    with np.errstate(divide="ignore"):
        waits: Floats = HALF_LIFE_S / np.log(2) / heat
    return waits
