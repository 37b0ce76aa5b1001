"""Makes room for what readers need now by giving up what is needed later."""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from stager.cache.cache import Cache
from stager.cache.dataset import Dataset
from stager.eviction.policy import swap, waits_for, waits_together
from stager.heat.guess import Guess
from stager.heat.heat import Floats, waits_of
from stager.reader.index import is_resident, shard_of
from stager.reader.values import Mask, Numbers
from stager.sessions.course import Course
from stager.sessions.session import Sessions
from stager.shards.holes import BLOCK_BYTES

log = logging.getLogger("stager")

LOOK_PART = 0.05  # of our time, at most, goes into looking again when sessions have moved
OLD_S = 5.0
HEAT_MARGIN = 2.0  # a guess must be better by so much, or samples would only change places


class Part(NamedTuple):
    """Samples of a data set that go, and the bytes that come back."""

    samples: Numbers
    bytes: int


Going = Mapping[Dataset, Part]


@dataclass(slots=True)
class Candidates:
    """What could go, the latest needed first: companies of samples that are fetched together.

    Samples that are fetched alone are companies of one.
    """

    datasets: list[Dataset]
    dataset: Numbers  # of each sample: number in `datasets`
    sample: Numbers
    ends: Numbers  # of each company: where its samples end
    waits: Floats
    sizes: Floats
    made_at: float
    took_s: float
    positions: dict[tuple[str, int], int]  # by session and epoch: in a new epoch it is all different
    guesses: list[Guess]  # of each data set; what comes in is compared by the same
    courses: dict[int, list[Course]]  # by data set; what comes in is compared as of the same moment
    given_up: int = 0  # of the first companies

    def samples_of(self, first: int, count: int) -> slice:
        """Those of so many companies."""
        start = int(self.ends[first - 1]) if first else 0
        return slice(start, int(self.ends[first + count - 1]) if count else start)


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

    def make_room(self, dataset: Dataset, samples: Numbers, read: Numbers, room_bytes: float) -> Numbers:
        """Those of the samples that are worth keeping; what is needed later than they are is gone then.

        `read`: those that are going to be read just now. The rest is fetched with them.
        """
        here, is_read = self._latest(), np.isin(samples, read)
        heat = dataset.guess(self._cache.clock.wall())[samples] + is_read
        return self._swap(here, dataset, samples, heat, room_bytes, is_read)

    def make_room_for_hot(self, dataset: Dataset, samples: Numbers, room_bytes: float) -> Numbers:
        """The same for samples that nobody has asked for: those that are likely to be read."""
        heat = dataset.guess(self._cache.clock.wall())[samples]
        return self._swap(
            self._latest(), dataset, samples, heat, room_bytes, np.zeros(len(samples), np.bool_)
        )

    def _swap(
        self,
        here: Candidates,
        dataset: Dataset,
        samples: Numbers,
        heat: Floats,
        room_bytes: float,
        is_read: Mask,
    ) -> Numbers:
        """Give up what is needed later than these, and return those of them that are worth it."""
        by_company, companies = _companies(dataset, samples)
        samples, heat, is_read = samples[by_company], heat[by_company], is_read[by_company]
        guess, courses = waits_of(heat) * HEAT_MARGIN, here.courses.get(dataset.id, [])
        waits = np.empty(len(samples))
        for some, skip in ((is_read, True), (~is_read, False)):
            waits[some] = waits_for(samples[some], courses, guess[some], skip)
        waits = waits_together(waits, companies) if dataset.records.is_computed else waits
        order = np.argsort(waits, kind="stable")  # a company has one wait, so it stays together
        firsts, counts = _runs(companies[order])
        keep, victims = swap(
            room_bytes,
            waits[order][firsts],
            counts.astype(float) * self._row_bytes(dataset),
            here.waits[here.given_up :],
            here.sizes[here.given_up :],
        )
        if victims:
            self._give_up(here, victims, f"for samples of {dataset.name} that are needed sooner")
        return np.sort(samples[order[: int(counts[:keep].sum())]])

    def coldest(self, size_bytes: int) -> Going | None:
        """What a person's prefetch may take the place of: what is needed latest; None: that is not enough.

        What a job has staged lately may go, too, but after all else; what somebody reads next may not.
        """
        here = self._look(is_told=True)
        freed = np.cumsum(here.sizes)
        count = int(np.searchsorted(freed, size_bytes)) + 1
        if count > len(freed):
            return None
        part, found = here.samples_of(0, count), {}
        for number in np.unique(here.dataset[part]).tolist():
            dataset = here.datasets[number]
            samples = np.sort(here.sample[part][here.dataset[part] == number])
            found[dataset] = Part(samples, int(len(samples) * self._freed_bytes(dataset)))
        return found

    def give_up(self, going: Going, why: str) -> None:
        """Take away what was told to go, as far as that still may."""
        for dataset, part in going.items():
            samples = part.samples[self._can_go(dataset, part.samples, is_told=True)]
            self._cache.departures.evict_samples(dataset, samples, "evicted", why)

    def give_way(self, size_bytes: int, winner: str) -> None:
        """Give up what is needed latest, if that gives so many bytes back."""
        here = self._candidates = self._look()
        freed = np.cumsum(here.sizes[here.given_up :])
        victims = int(np.searchsorted(freed, size_bytes)) + 1
        if victims <= len(freed):
            self._give_up(here, victims, f"for {winner}")

    def _give_up(self, here: Candidates, count: int, why: str) -> None:
        part = here.samples_of(here.given_up, count)
        here.given_up += count
        for number in np.unique(here.dataset[part]).tolist():
            dataset = here.datasets[number]
            samples = here.sample[part][here.dataset[part] == number]
            samples = samples[self._can_go(dataset, samples)]  # others may have gone since we looked
            freed = self._cache.departures.evict_samples(dataset, samples, "evicted", why)
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
        if self._guesses(known.datasets) != known.guesses:
            return True
        return now != known.positions and age_s > known.took_s / LOOK_PART

    def _guesses(self, datasets: Iterable[Dataset]) -> list[Guess]:
        wall = self._cache.clock.wall()
        return [dataset.guess(wall) for dataset in datasets if self._cache.is_open(dataset)]

    def _look(self, is_told: bool = False) -> Candidates:
        """All that could go. `is_told`: also what was staged because somebody asked, for he now says so."""
        began, wall = self._cache.clock.now(), self._cache.clock.wall()
        datasets = list(self._cache.open.values()) if self._cache.can_punch else []
        none = np.zeros(0, dtype=np.int64)
        numbers, samples, waits, sizes = [none], [none], [none.astype(float)], [none.astype(float)]
        companies = [none]
        courses: dict[int, list[Course]] = {}
        guesses = self._guesses(datasets)
        for number, dataset in enumerate(datasets):
            here = dataset.resident()
            here = here[self._can_go(dataset, here, is_told)]
            by_company, whose = _companies(dataset, here)
            here = here[by_company]
            numbers.append(np.full(len(here), number))
            samples.append(here)
            courses[dataset.id] = self._sessions.courses(dataset)
            waited = waits_for(here, courses[dataset.id], waits_of(guesses[number][here]), skip=False)
            if is_told:  # else they are not among these
                waited[dataset.heat.is_asked(here, wall)] = 0.0  # they go last
            companies.append(whose)
            waits.append(waits_together(waited, whose) if dataset.records.is_computed else waited)
            sizes.append(np.full(len(here), self._freed_bytes(dataset)))
        every, which = np.concatenate(waits), np.concatenate(numbers)
        order = np.argsort(-every, kind="stable")  # a company has one wait, so it stays together
        firsts, counts = _runs(np.concatenate(companies)[order], which[order])
        size_of = np.concatenate(sizes)[order]
        return Candidates(
            datasets,
            which[order],
            np.concatenate(samples)[order],
            np.cumsum(counts),
            every[order][firsts],
            np.add.reduceat(size_of, firsts) if len(firsts) else size_of,
            self._cache.clock.now(),
            self._cache.clock.now() - began,
            self._sessions.positions(),
            guesses,
            courses,
        )

    def _freed_bytes(self, dataset: Dataset) -> float:
        """What one row gives back. It begins and ends within a block, and only whole blocks come back."""
        return max(self._row_bytes(dataset) - BLOCK_BYTES, 0.0)

    def _can_go(self, dataset: Dataset, samples: Numbers, is_told: bool = False) -> Mask:
        """Which of these samples may be given up. `is_told`: somebody wants room, and knows what goes."""
        if not self._cache.is_open(dataset):
            return np.zeros(len(samples), dtype=np.bool_)
        words = dataset.index.words[samples]
        free = np.isin(shard_of(words), self._cache.catalog.evictable(dataset.id))
        asked = self._wanted(dataset, samples)
        if is_told:
            asked |= self._sessions.expected(dataset, samples)
        else:
            asked |= dataset.heat.is_asked(samples, self._cache.clock.wall())
        return np.asarray(is_resident(words) & free & ~asked)


def _companies(dataset: Dataset, samples: Numbers) -> tuple[Numbers | slice, Numbers]:
    """The order in which samples that are fetched together are neighbours; and a number of each company."""
    if not dataset.records.is_computed:
        return slice(None), samples
    companies = dataset.records.companies(samples)
    order = np.argsort(companies, kind="stable")
    return order, companies[order]


def _runs(*columns: Numbers) -> tuple[Numbers, Numbers]:
    """Where lines begin that differ from the one before, and how many there are until the next."""
    is_first = np.ones(len(columns[0]), np.bool_)
    is_first[1:] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    firsts = np.flatnonzero(is_first)
    return firsts, np.diff(firsts, append=len(is_first))
