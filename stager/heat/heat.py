"""What was read of a data set lately: how hot each sample is, and the trace for the simulator."""

from collections import deque
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from stager.reader.samples.by_number import ByNumber
from stager.reader.values import Numbers

READS_KEPT: Final = 4_000_000  # of a data set, one by one; of older ones there is a sum for each sample
CHUNK_S: Final = 10.0  # reads that are so near are of one time
HALF_LIFE_S: Final = 6 * 3600.0  # a read so long ago counts half
ASKED_S: Final = 6 * 3600.0  # what a job has staged is not given up before: somebody asked for it
COLD: Final = 0.01  # of a read: what is less warm is as cold as what was never read

Floats = npt.NDArray[np.float64]


class Warm(NamedTuple):
    """Samples in rising order, and how often each was read, as of one time."""

    at: float
    samples: Numbers
    heat: Floats

    def part(self, now: float) -> float:
        """What of it is left. A clock that was set back makes reads of the future: they count as of now."""
        return float(0.5 ** (max(now - self.at, 0.0) / HALF_LIFE_S))


NOTHING_WARM: Final = Warm(0.0, np.zeros(0, dtype=np.int64), np.zeros(0))


class Heat:
    """The last reads of a data set, in order, and when its samples were staged because somebody asked."""

    def __init__(self, before: Warm = NOTHING_WARM) -> None:
        """`before`: what was known at the last stop."""
        self._before = before
        self._chunks: deque[tuple[float, Numbers]] = deque()
        self._kept = 0
        self._asked_at = ByNumber(np.float64)  # 0: nobody has
        self._heat: tuple[float, ByNumber] | None = None  # when it was reckoned, and what it was
        self.changes = 0  # how often anything was read or forgotten

    def add(self, samples: Numbers, at: float) -> None:
        """These were read."""
        if not len(samples):
            return
        self.changes += 1
        if self._chunks and 0 <= at - self._chunks[-1][0] < CHUNK_S:
            began, before = self._chunks.pop()
            self._chunks.append((began, np.concatenate([before, samples])))
        else:
            self._chunks.append((at, samples))
        self._kept += len(samples)
        if self._kept > READS_KEPT and len(self._chunks) > 1:
            self._fold(at)

    def _fold(self, now: float) -> None:
        """Keep only sums of the older half: seldom, for all that is warm is added up anew."""
        older = Heat(self._before)
        while self._kept > READS_KEPT // 2 and len(self._chunks) > 1:
            at, part = self._chunks.popleft()
            self._kept -= len(part)
            older._chunks.append((at, part))
        self._before = older.warm(now)

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
        at, known, heat = self._before
        self._before = Warm(at, known[~gone[known]], heat[~gone[known]])
        self._asked_at[samples] = 0
        self._heat = None
        self.changes += 1

    def trace(self) -> Numbers:
        """The samples in the order they were read, since the start."""
        return np.concatenate([np.zeros(0, dtype=np.int64), *(part for _, part in self._chunks)])

    def of_all(self, now: float) -> ByNumber:
        """How often each sample was read, a read counting the less the longer ago it is. Some seconds old."""
        if self._heat is None or abs(now - self._heat[0]) > CHUNK_S:
            self._heat = now, self._heat_at(now)
        return self._heat[1]

    def warm(self, now: float) -> Warm:
        """The samples that were read, but for those that are cold by now; as of just now."""
        heat = self._heat_at(now)
        read = heat.used()
        read = read[heat[read] >= COLD]
        return Warm(now, read, heat[read])

    def renumbered(self, numbers: Numbers, now: float) -> "Heat":
        """The same by other numbers: for each old one, the new one or -1."""
        at, known, heat = self.warm(now)
        moved = numbers[known]
        order = np.argsort(moved[moved >= 0], kind="stable")
        renumbered = Heat(Warm(at, moved[moved >= 0][order], heat[moved >= 0][order]))
        renumbered.changes = self.changes + 1
        return renumbered

    def _heat_at(self, now: float) -> ByNumber:
        ages = [(max(now - at, 0.0), len(part)) for at, part in self._chunks]
        weights = [np.full(count, 0.5 ** (age_s / HALF_LIFE_S)) for age_s, count in ages]
        heat = ByNumber(np.float64)
        heat[self._before.samples] = self._before.heat * self._before.part(now)
        heat.add(self.trace(), np.concatenate([np.zeros(0), *weights]))
        return heat


def waits_of(heat: Floats) -> Floats:
    """In how many seconds samples of this heat are read again, if all goes on as before."""
    with np.errstate(divide="ignore"):
        waits: Floats = HALF_LIFE_S / np.log(2) / heat
    return waits
