"""What was read of a data set lately: how hot each sample is, and the trace for the simulator."""

from collections import deque
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from stager.reader.values import ByNumber, Mask, Numbers

READS_KEPT: Final = 4_000_000  # of a data set; the oldest are forgotten first
CHUNK_S: Final = 10.0  # reads that are so near are of one time
HALF_LIFE_S: Final = 6 * 3600.0  # a read so long ago counts half
ASKED_S: Final = 6 * 3600.0  # what a job has staged is not given up before: somebody asked for it

Floats = npt.NDArray[np.float64]


class Heat:
    """The last reads of a data set, in order, and when its samples were staged because somebody asked."""

    def __init__(self) -> None:
        self._chunks: deque[tuple[float, Numbers]] = deque()
        self._kept = 0
        self._asked_at = ByNumber(np.float64)  # 0: nobody has
        self._heat: tuple[float, ByNumber] | None = None  # when it was reckoned, and what it was

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
        self._asked_at[samples] = max(at, np.finfo(np.float64).tiny)

    def is_asked(self, samples: Numbers, now: float) -> npt.NDArray[np.bool_]:
        """Which of these samples a job has staged lately."""
        asked_at = self._asked_at[samples]
        return np.asarray((asked_at != 0) & (np.abs(now - asked_at) < ASKED_S))  # it may be set back

    def forget(self, samples: Numbers) -> None:
        """Somebody wants these gone: they are as if nobody had ever read them."""
        gone = ByNumber(np.bool_)
        gone[samples] = True
        self._chunks = deque((at, part[~gone[part]]) for at, part in self._chunks)
        self._kept = sum(len(part) for _, part in self._chunks)
        self._asked_at[samples] = 0
        self._heat = None

    def trace(self) -> Numbers:
        """The samples in the order they were read."""
        return np.concatenate([np.zeros(0, dtype=np.int64), *(part for _, part in self._chunks)])

    def of_all(self, now: float) -> ByNumber:
        """How often each sample was read, a read counting the less the longer ago it is. Some seconds old."""
        if self._heat is None or abs(now - self._heat[0]) > CHUNK_S:
            self._heat = now, self._heat_at(now)
        return self._heat[1]

    def hottest(self, of: Callable[[Numbers], Mask], count: int, now: float) -> Numbers:
        """The samples that are read most, of those that `of` takes: at most so many, in rising order."""
        read = ByNumber(np.bool_)
        warm: list[Numbers] = [np.zeros(0, dtype=np.int64)]
        for _, part in self._chunks:  # an epoch reads a million: each is asked about once
            fresh = np.unique(part[~read[part]])
            read[fresh] = True
            warm.append(fresh[of(fresh)])
        found = np.sort(np.concatenate(warm))
        if not len(found):  # most often all is resident: then heat need not be known
            return found
        return np.sort(found[np.argsort(-self.of_all(now)[found], kind="stable")[:count]])

    def _heat_at(self, now: float) -> ByNumber:
        # A clock that was set back makes reads of the future: they count as of now.
        ages = [(max(now - at, 0.0), len(part)) for at, part in self._chunks]
        weights = [np.full(count, 0.5 ** (age_s / HALF_LIFE_S)) for age_s, count in ages]
        heat = ByNumber(np.float64)
        heat.add(self.trace(), np.concatenate([np.zeros(0), *weights]))
        return heat


def waits_of(heat: Floats) -> Floats:
    """In how many seconds samples of this heat are read again, if all goes on as before."""
    with np.errstate(divide="ignore"):
        waits: Floats = HALF_LIFE_S / np.log(2) / heat
    return waits
