"""Makes room for what readers need now by giving up what is needed later."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from stager.cache.cache import Cache
from stager.cache.dataset import Dataset
from stager.cache.heat import Floats, waits_of
from stager.eviction.policy import swap, waits_for
from stager.reader.index import is_resident, shard_of
from stager.reader.values import Mask, Numbers
from stager.sessions.course import Course
from stager.sessions.session import Sessions
from stager.shards.holes import BLOCK_BYTES

log = logging.getLogger("stager")

LOOK_PART = 0.05  # of our time, at most, goes into looking again when sessions have moved
OLD_S = 5.0
HEAT_MARGIN = 2.0  # a guess must be better by so much, or samples would only change places


@dataclass(slots=True)
class Candidates:
    """What could go, the latest needed first."""

    datasets: list[Dataset]
    dataset: Numbers  # number in `datasets`
    sample: Numbers
    waits: Floats
    sizes: Floats
    made_at: float
    took_s: float
    positions: dict[tuple[str, int], int]  # by session and epoch: in a new epoch it is all different
    courses: dict[int, list[Course]]  # by data set; what comes in is compared as of the same moment
    given_up: int = 0  # of the first ones


class Evictor:
    """Chooses and evicts single samples.

    Those that are pinned, that a job wants or has staged lately, and rows so small that nothing would come
    back, are no candidates.
    """

    def __init__(
        self,
        cache: Cache,
        sessions: Sessions,
        row_bytes: Callable[[Dataset], float],
        wanted: Callable[[Dataset, Numbers], Mask],
    ) -> None:
        self._cache, self._sessions, self._row_bytes, self._wanted = cache, sessions, row_bytes, wanted
        self._candidates: Candidates | None = None

    def make_room(self, dataset: Dataset, samples: Numbers, room_bytes: float) -> Numbers:
        """Those of the samples that are worth keeping; what is needed later than they are is gone then."""
        here = self._latest()
        heat = dataset.heat.of_all(self._cache.clock.wall())[samples]
        guess = waits_of(heat + 1) * HEAT_MARGIN
        waits = waits_for(samples, here.courses.get(dataset.id, []), guess, skip=True)
        order = np.argsort(waits, kind="stable")
        keep, victims = swap(
            room_bytes,
            waits[order],
            self._row_bytes(dataset),
            here.waits[here.given_up :],
            here.sizes[here.given_up :],
        )
        if victims:
            self._give_up(here, victims, dataset)
        return samples[np.sort(order[:keep])]

    def _give_up(self, here: Candidates, count: int, winner: Dataset) -> None:
        part = slice(here.given_up, here.given_up + count)
        here.given_up += count
        for number in np.unique(here.dataset[part]).tolist():
            dataset = here.datasets[number]
            samples = here.sample[part][here.dataset[part] == number]
            samples = samples[self._can_go(dataset, samples)]  # others may have gone since we looked
            freed = self._cache.departures.evict_samples(
                dataset, samples, "evicted", f"for samples of {winner.name} that are needed sooner"
            )
            log.debug("evicted dataset=%s samples=%d bytes=%d", dataset.name, len(samples), freed)

    def _latest(self) -> Candidates:
        known = self._candidates
        if known is None or self._is_old(known):
            known = self._candidates = self._look()
        return known

    def _is_old(self, known: Candidates) -> bool:
        """What was read since we looked counts as needed at once, and cannot go: so look often."""
        now, age_s = self._sessions.positions(), self._cache.clock.now() - known.made_at
        if now.keys() != known.positions.keys() or age_s > OLD_S:
            return True
        return now != known.positions and age_s > known.took_s / LOOK_PART

    def _look(self) -> Candidates:
        began = self._cache.clock.now()
        datasets = list(self._cache.open.values()) if self._cache.can_punch else []
        none = np.zeros(0, dtype=np.int64)
        numbers, samples, waits, sizes = [none], [none], [none.astype(float)], [none.astype(float)]
        courses: dict[int, list[Course]] = {}
        for number, dataset in enumerate(datasets):
            here = dataset.resident()
            here = here[self._can_go(dataset, here)]
            numbers.append(np.full(len(here), number))
            samples.append(here)
            courses[dataset.id] = self._sessions.courses(dataset)
            guess = waits_of(dataset.heat.of_all(self._cache.clock.wall())[here])
            waits.append(waits_for(here, courses[dataset.id], guess, skip=False))
            # A row begins and ends within a block, and only whole blocks come back.
            sizes.append(np.full(len(here), max(self._row_bytes(dataset) - BLOCK_BYTES, 0.0)))
        every = np.concatenate(waits)
        order = np.argsort(-every, kind="stable")
        return Candidates(
            datasets,
            np.concatenate(numbers)[order],
            np.concatenate(samples)[order],
            every[order],
            np.concatenate(sizes)[order],
            self._cache.clock.now(),
            self._cache.clock.now() - began,
            self._sessions.positions(),
            courses,
        )

    def _can_go(self, dataset: Dataset, samples: Numbers) -> Mask:
        """Which of these samples may be given up."""
        if not self._cache.is_open(dataset):
            return np.zeros(len(samples), dtype=np.bool_)
        words = dataset.index.words[samples]
        free = np.isin(shard_of(words), self._cache.catalog.evictable(dataset.id))
        asked = self._wanted(dataset, samples) | dataset.heat.is_asked(samples, self._cache.clock.wall())
        return np.asarray(is_resident(words) & free & ~asked)
