"""Makes room for what readers need now by giving up what is needed later."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from stager.cache import Cache, Dataset
from stager.eviction import swap, waits_for
from stager.index import is_resident, shard_of
from stager.job import Mask
from stager.model import Numbers
from stager.reads import Floats, waits_of
from stager.sessions import Sessions

log = logging.getLogger("stager")

MOVED_PART = 0.01  # sessions that have moved by such a part of their order make us look again
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
    positions: dict[str, int]
    given_up: int = 0  # of the first ones


class Evictor:
    """Chooses and evicts single samples. Those that are pinned or that a job wants are no candidates."""

    def __init__(
        self,
        cache: Cache,
        sessions: Sessions,
        row_bytes: Callable[[Dataset], float],
        wanted: Callable[[Dataset], Mask],
    ) -> None:
        self._cache, self._sessions, self._row_bytes, self._wanted = cache, sessions, row_bytes, wanted
        self._candidates: Candidates | None = None

    def make_room(self, dataset: Dataset, samples: Numbers, room_bytes: float) -> Numbers:
        """Those of the samples that are worth keeping; what is needed later than they are is gone then."""
        waits = self._waits(dataset, samples, skip=True)
        order = np.argsort(waits, kind="stable")
        here = self._latest()
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
            samples = samples[self._can_go(dataset)[samples]]  # others may have gone since we looked
            freed = self._cache.evict_samples(
                dataset, samples, "evicted", f"for samples of {winner.name} that are needed sooner"
            )
            self._sessions.lost(dataset, samples)
            log.debug("evicted dataset=%s samples=%d bytes=%d", dataset.name, len(samples), freed)

    def _latest(self) -> Candidates:
        known = self._candidates
        if known is None or self._is_old(known):
            known = self._candidates = self._look()
        return known

    def _is_old(self, known: Candidates) -> bool:
        now = self._sessions.positions()
        if now.keys() != known.positions.keys() or time.monotonic() - known.made_at > OLD_S:
            return True
        lengths = self._sessions.lengths()
        return any(now[name] - was > MOVED_PART * lengths[name] for name, was in known.positions.items())

    def _look(self) -> Candidates:
        datasets = list(self._cache.datasets.values()) if self._cache.can_punch else []
        none = np.zeros(0, dtype=np.int64)
        numbers, samples, waits, sizes = [none], [none], [none.astype(float)], [none.astype(float)]
        for number, dataset in enumerate(datasets):
            here = np.flatnonzero(self._can_go(dataset))
            numbers.append(np.full(len(here), number))
            samples.append(here)
            waits.append(self._waits(dataset, here, skip=False))
            sizes.append(np.full(len(here), self._row_bytes(dataset)))
        every = np.concatenate(waits)
        order = np.argsort(-every, kind="stable")
        return Candidates(
            datasets,
            np.concatenate(numbers)[order],
            np.concatenate(samples)[order],
            every[order],
            np.concatenate(sizes)[order],
            time.monotonic(),
            self._sessions.positions(),
        )

    def _can_go(self, dataset: Dataset) -> Mask:
        if self._cache.datasets.get(dataset.name) is not dataset:
            return np.zeros(len(dataset.manifest), dtype=np.bool_)
        words = dataset.index.words
        free = np.isin(shard_of(words), self._cache.catalog.evictable(dataset.id))
        return np.asarray(is_resident(words) & free & ~self._wanted(dataset))

    def _waits(self, dataset: Dataset, samples: Numbers, skip: bool) -> Floats:
        heat = dataset.reads.heat(time.time())[samples]
        guess = waits_of(heat + 1) * HEAT_MARGIN if skip else waits_of(heat)
        return waits_for(samples, self._sessions.courses(dataset), guess, skip)
