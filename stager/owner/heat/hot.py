"""The hot set: what is likely to be read is staged by itself, while nobody needs anything.

It comes after all else, one shard at a time for each worker. Without `hot` in the config, it is what was read
and lost again, as far as there is room, and nothing makes way for it. With it, the hottest samples of all
data sets that fit into so many bytes are kept; for those that are not there, colder ones go.

Nothing thrashes. All heat cools at one rate, so only reads change who is hotter. What comes in must be
hotter by a margin than what goes (`eviction.evictor`). And whom to keep is chosen anew only now and then.
"""

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from stager.cache.cache import Cache
from stager.cache.dataset import Dataset
from stager.dispatch.sizes import Sizes
from stager.dispatch.task import Lot, Purpose
from stager.dispatch.tasks import Tasks
from stager.heat.hottest import Likely, hottest_within
from stager.reader.amount import Amount
from stager.reader.index import is_failed, is_resident
from stager.reader.values import Mask, Numbers

LOOK_EVERY_S: Final = 5.0  # once there was nothing to do
CHOOSE_EVERY_S: Final = 60.0
FAILED_REST_S: Final = 600.0  # of a data set whose samples could not be staged
LEAST: Final = 0.05  # of a read: what is less likely to be read is not staged unasked
IDLE_CORES: Final = 0.5  # of all, that others leave free

MakeRoom = Callable[[Dataset, Numbers, float], Numbers]


class HotSet:
    """Chooses what is hot, and gives out what of it is missing."""

    def __init__(
        self,
        cache: Cache,
        sizes: Sizes,
        tasks: Tasks,
        make_room: MakeRoom,
        busy_cores: Callable[[], float],
    ) -> None:
        """`make_room`: those of some samples that colder ones made room for, of so many bytes that there are.

        `busy_cores`: the part of the cores that others use.
        """
        self._cache, self._sizes, self._tasks = cache, sizes, tasks
        self._make_room, self._busy_cores = make_room, busy_cores
        self._look_at = cache.clock.now() + LOOK_EVERY_S
        self._chosen: list[tuple[Dataset, Numbers]] = []  # the hottest of each first
        self._chosen_until = 0.0
        self._chosen_by: Amount | None = None
        self._rests: dict[int, float] = {}  # data set id -> until when it is left alone
        self.waits_for = ""  # what keeps it from staging, for people

    def next_lot(self) -> Lot | None:
        """What is hot and missing, if now is the time; nobody needs anything else."""
        if self._cache.clock.now() < self._look_at:
            return None
        lot = self._lot()
        if lot is None:
            self._look_at = self._cache.clock.now() + LOOK_EVERY_S
        return lot

    def _lot(self) -> Lot | None:
        if self._cache.config.hot is not None and self._busy_cores() > 1 - IDLE_CORES:
            self.waits_for = "idle cores"
            return None
        self.waits_for = ""
        for dataset, missing in self.missing():
            if self._rests.get(dataset.id, 0.0) > self._cache.clock.now():
                continue
            if not self._tasks.may_begin(dataset.spec, is_urgent=False):
                continue
            samples = missing[: self._sizes.shard_samples_max(dataset)]
            fit = self._sizes.samples_that_fit(dataset, len(samples))
            if fit < len(samples):
                samples = self._with_room(dataset, samples)
            if len(samples):
                shard_format = dataset.choose_format("auto")[0]
                return Lot(dataset, np.sort(samples), shard_format, Purpose.HOT)
        return None

    def _with_room(self, dataset: Dataset, samples: Numbers) -> Numbers:
        """Those of these samples that there is room for, if need be in the place of colder ones."""
        if self._cache.config.hot is None:
            return samples[:0]
        keep = self._make_room(dataset, samples, self._sizes.room_bytes())
        if not len(keep):
            self.waits_for = "samples that are colder"
        return keep[: self._sizes.samples_that_fit(dataset, len(keep))]

    def now(self, name: str | None) -> list[tuple[Dataset, Numbers]]:
        """What of a data set, or of all, is hot, missing, and has room: for somebody who asks for it.

        With `hot` in the config, colder samples make room for it.
        """
        self._chosen_until = 0.0  # by the reads until now
        found, room_bytes = [], self._sizes.room_bytes()
        for dataset, missing in self.missing():
            if name not in (None, dataset.name):
                continue
            size_bytes = self._sizes.bytes_for_all(dataset, len(missing), dataset.choose_format("auto")[0])
            if size_bytes > room_bytes:
                fit = int(len(missing) * max(room_bytes, 0) / size_bytes)
                can_give = self._cache.config.hot is not None
                missing = self._make_room(dataset, missing, room_bytes) if can_give else missing[:fit]  # noqa: PLW2901
                size_bytes = min(size_bytes, max(room_bytes, 0))
            room_bytes -= size_bytes
            if len(missing):
                found.append((dataset, missing))
        return found

    def rest(self, dataset: Dataset) -> None:
        """Leave a data set alone for a while: it could not be staged, or it is going."""
        self._rests[dataset.id] = self._cache.clock.now() + FAILED_REST_S

    def missing(self) -> list[tuple[Dataset, Numbers]]:
        """What is hot and neither staged nor being staged, the hottest first; so are the data sets."""
        found = []
        for dataset, samples in self.chosen():
            left = samples[self._is_missing(dataset, samples)]
            if len(left):
                found.append((dataset, left))
        wall = self._cache.clock.wall()
        return sorted(found, key=lambda one: -float(one[0].guess(wall)[one[1][:1]][0]))

    def chosen(self) -> list[tuple[Dataset, Numbers]]:
        """The hot set, some seconds old: samples of each data set, the hottest first."""
        hot = self._cache.config.hot
        if self._cache.clock.now() >= self._chosen_until or self._chosen_by != hot:
            every_s = LOOK_EVERY_S if hot is None else CHOOSE_EVERY_S  # all samples are looked at, or few
            self._chosen_until, self._chosen_by = self._cache.clock.now() + every_s, hot
            self._chosen = self._choose()
        return [(dataset, samples) for dataset, samples in self._chosen if self._cache.is_open(dataset)]

    def _choose(self) -> list[tuple[Dataset, Numbers]]:
        datasets = list(self._cache.datasets.values())
        likely = [self._likely(dataset) for dataset in datasets]
        return list(zip(datasets, hottest_within(likely, self.budget_bytes), strict=True))

    @property
    def budget_bytes(self) -> float:
        """What the hot set may have of the capacity."""
        hot, told = self._cache.config.hot, self._cache.budget.to_json()
        whole = told["capacity_bytes"]
        return float(whole if hot is None else min(hot.of(whole), whole))

    def _likely(self, dataset: Dataset) -> Likely:
        """The samples of a data set that are likely to be read, but for those that have failed for good."""
        guess = dataset.guess(self._cache.clock.wall())
        samples = guess.own.used()
        if self._cache.config.hot is not None and len(guess.means) and guess.means.any():
            samples = dataset.manifest.numbers[:]  # one that was not read yet is of a class that is
        samples = samples[dataset.manifest.has(samples)]
        samples = samples[~is_failed(dataset.index.words[samples])]
        heat = guess[samples]
        samples, heat = samples[heat >= LEAST], heat[heat >= LEAST]
        return Likely(samples, heat, self._sizes.mean_row_bytes(dataset))

    def _is_missing(self, dataset: Dataset, samples: Numbers) -> Mask:
        """Which of these samples could be staged, and nobody does. What has gone from the source cannot."""
        words = dataset.index.words[samples]
        cold = is_resident(words) | is_failed(words) | self._tasks.in_flight(dataset)[samples]
        return np.asarray(dataset.manifest.has(samples) & ~cold)

    def to_json(self) -> dict[str, Any]:
        """How much of the hot set is resident, and what keeps the rest away."""
        wanted = resident = missing = 0.0
        for dataset, samples in self.chosen():
            row_bytes = self._sizes.mean_row_bytes(dataset)
            here = int(np.count_nonzero(is_resident(dataset.index.words[samples])))
            wanted, resident = wanted + row_bytes * len(samples), resident + row_bytes * here
            missing += len(samples) - here
        return {
            "budget_bytes": round(self.budget_bytes),
            "wanted_bytes": round(wanted),
            "resident_bytes": round(resident),
            "missing_samples": round(missing),
            "waits_for": self.waits_for if missing else "",
        }
