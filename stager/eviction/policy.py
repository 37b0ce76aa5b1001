"""What to keep when not all fits: keep what is needed soonest. Pure functions; evictor.py acts on them.

The order of a session says when it reads each sample. For one that is in no order, heat is the guess.
A job that reads each sample once an epoch gains nothing by giving one for another: all its samples count
as needed in an epoch's time, so none takes another's place and a fixed part stays. Where several jobs read
a sample, or an order repeats it, its very next use counts.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from stager.cache.heat import Floats
from stager.reader.values import ByNumber, Numbers

NEVER: Final = np.iinfo(np.int64).max


class Uses:
    """When an order reads each sample: every place of it."""

    def __init__(self, order: Numbers) -> None:
        self._length = max(len(order), 1)
        self._keys = np.sort(order * self._length + np.arange(len(order)))  # by sample, then by place

    def after(self, samples: Numbers, position: int) -> tuple[Numbers, Numbers]:
        """The first and the second place of each sample that is not before `position`, or NEVER."""
        if not len(self._keys):
            return np.full(len(samples), NEVER), np.full(len(samples), NEVER)
        at = np.searchsorted(self._keys, samples * self._length + position)
        return self._place(at, samples), self._place(at + 1, samples)

    def _place(self, at: Numbers, samples: Numbers) -> Numbers:
        keys = self._keys[np.minimum(at, len(self._keys) - 1)]
        is_same = (at < len(self._keys)) & (keys // self._length == samples)
        return np.where(is_same, keys % self._length, NEVER)


@dataclass(frozen=True, slots=True)
class Course:
    """What is known of one session: its order over this epoch and the next, where it is, and how fast."""

    job: Hashable  # sessions of one job share it: the ranks of a training
    is_uniform: bool  # the job reads each of its samples once an epoch
    uses: Uses
    members: ByNumber  # whether the job reads a sample
    position: int
    rate: float  # samples/s
    epoch_s: float


def waits_for(samples: Numbers, courses: Sequence[Course], heat_waits: Floats, skip: bool) -> Floats:
    """In how many seconds each sample is needed. `skip`: not the next use, but the one after it."""
    waits = heat_waits.copy()
    jobs: dict[Hashable, Course] = {course.job: course for course in courses}
    readers = np.zeros(len(samples), dtype=np.int64)
    for course in jobs.values():
        readers += course.members[samples]
    known = _known_waits(samples, courses, skip)
    is_known = np.isfinite(known)
    waits[is_known] = known[is_known]
    for course in jobs.values():
        if course.is_uniform:
            waits[(readers == 1) & course.members[samples]] = course.epoch_s
    return waits


def _known_waits(samples: Numbers, courses: Iterable[Course], skip: bool) -> Floats:
    uses = [np.full(len(samples), np.inf)] * (1 + skip)
    for course in courses:
        for places in course.uses.after(samples, course.position):
            ahead = np.where(places == NEVER, np.inf, (places - float(course.position)) / course.rate)
            uses.append(ahead)
    soonest: Floats = np.sort(np.stack(uses), axis=0)[int(skip)]
    return soonest


def swap(
    room_bytes: float, waits_in: Floats, size_in: float, waits_here: Floats, sizes_here: Floats
) -> tuple[int, int]:
    """How many of those that come in are kept, and how many of those that are here make room for them.

    Those that come in are sorted by wait, the soonest first; those that are here, the latest first.
    """
    need = np.arange(1, len(waits_in) + 1) * size_in - room_bytes
    freed = np.cumsum(sizes_here)
    victims = np.where(need <= 0, 0, np.searchsorted(freed, need) + 1)
    pays = victims <= len(freed)
    last_here = np.append(waits_here, -np.inf)[np.minimum(victims - 1, len(waits_here))]
    pays &= (victims == 0) | (waits_in < last_here)
    keep = int(np.argmin(np.append(pays, False)))
    return keep, int(victims[keep - 1]) if keep else 0
