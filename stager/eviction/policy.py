"""What to keep when not all fits: keep what is needed soonest. Pure functions; evictor.py acts on them.

The order of a session says when it reads each sample. For one that is in no order, heat is the guess.
A job that reads each sample once an epoch gains nothing by giving one for another: all its samples count
as needed in an epoch's time, so none takes another's place and a fixed part stays. Where several jobs read
a sample, or an order repeats it, its very next use counts.
"""

from collections.abc import Hashable, Iterable, Sequence

import numpy as np

from stager.heat.heat import Floats
from stager.reader.values import Numbers
from stager.sessions.course import NEVER, Course


def waits_for(samples: Numbers, courses: Sequence[Course], heat_waits: Floats, skip: bool) -> Floats:
    """In how many seconds each sample is needed. `skip`: not the next use, but the one after it."""
    waits = heat_waits.copy()
    jobs: dict[Hashable, Course] = {course.job: course for course in courses}
    readers = np.zeros(len(samples), dtype=np.int64)
    for course in jobs.values():
        readers += course.members(samples)
    known = _known_waits(samples, courses, skip)
    is_known = np.isfinite(known)
    waits[is_known] = known[is_known]
    for course in jobs.values():
        if course.is_uniform:
            waits[(readers == 1) & course.members(samples)] = course.epoch_s
    return waits


def _known_waits(samples: Numbers, courses: Iterable[Course], skip: bool) -> Floats:
    uses = [np.full(len(samples), np.inf)] * (1 + skip)
    for course in courses:
        for places in course.uses.after(samples, course.position):
            ahead = np.where(places == NEVER, np.inf, (places - float(course.position)) / course.rate)
            uses.append(ahead)
    soonest: Floats = np.sort(np.stack(uses), axis=0)[int(skip)]
    return soonest


def waits_together(waits: Floats, companies: Numbers) -> Floats:
    """The same where samples are fetched together: a company waits for the first of it that is needed.

    Of a chunk that is kept in part, the rest is fetched again at its next use: nothing would be gained.
    """
    found, of = np.unique(companies, return_inverse=True)
    soonest = np.full(len(found), np.inf)
    np.minimum.at(soonest, of, waits)
    return np.asarray(soonest[of])


def swap(
    room_bytes: float, waits_in: Floats, sizes_in: Floats | float, waits_here: Floats, sizes_here: Floats
) -> tuple[int, int]:
    """How many of those that come in are kept, and how many of those that are here make room for them.

    Those that come in are sorted by wait, the soonest first; those that are here, the latest first. Each may
    be one sample, or a company of them.
    """
    need = np.cumsum(np.broadcast_to(sizes_in, len(waits_in))) - room_bytes
    freed = np.cumsum(sizes_here)
    victims = np.where(need <= 0, 0, np.searchsorted(freed, need) + 1)
    pays = victims <= len(freed)
    last_here = np.append(waits_here, -np.inf)[np.minimum(victims - 1, len(waits_here))]
    pays &= (victims == 0) | (waits_in < last_here)
    keep = int(np.argmin(np.append(pays, False)))
    return keep, int(victims[keep - 1]) if keep else 0
