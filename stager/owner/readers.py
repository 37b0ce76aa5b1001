"""What readers ask of the owner of a cache, and what they tell it."""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from stager.cache.cache import Cache
from stager.cache.dataset import Dataset
from stager.errors import REASONS_BEFORE, UsageError
from stager.owner import meter
from stager.owner.loop import Loop
from stager.owner.meter import Report, Totals
from stager.reader.index import is_resident, shard_of
from stager.reader.values import Numbers
from stager.sessions.session import OpenSession, OrderRequest

_TOLD: Final = {now: before for before, now in REASONS_BEFORE.items()} | {"bad_row": "corrupt"}


@dataclass(frozen=True, slots=True)
class Version:
    """What a reader has open: a data set by one recipe, and the list that its sample numbers are of."""

    dataset: str
    recipe: str
    lineage: str


class Readers:
    """Every method runs on the loop's thread. Samples are told by their numbers."""

    def __init__(self, cache: Cache, loop: Loop) -> None:
        self._cache, self._loop = cache, loop

    def hello(self, version: Version, session: str, manifest: str, pid: int) -> dict[str, Any]:
        """A session reads this version of a data set: what it reads is kept while its process lives."""
        if not self.opened(version).keeps(manifest):
            raise UsageError(
                f"the version of {version.dataset} that was opened is not kept any more",
                hint="open the data set again",
            )
        self._loop.leases.take(session, version.dataset, manifest, pid)
        return {}

    def bye(self, session: str, pid: int) -> dict[str, Any]:
        """A session reads no more, says the process that opened it: its version is kept for others only."""
        if self._loop.leases.give_up(session, pid):
            self._loop.sessions.forget(session)
        return {}

    def want(
        self, version: Version, samples: Iterable[int], corrupt: Iterable[int], wait_s: float
    ) -> "Future[dict[str, Any]]":
        dataset = self.opened(version)
        return self._loop.want(
            dataset, self._numbers(dataset, samples), self._numbers(dataset, corrupt), wait_s
        )

    def failed(self, version: Version, samples: Iterable[int]) -> list[dict[str, Any]]:
        """Why samples cannot be had, of those that cannot.

        In the words of version 1 of the API: a client of then ends at a reason that it does not know.
        """
        dataset, wanted = self.opened(version), set(samples)
        rows = self._cache.catalog.failures(dataset.id) if wanted else []
        return [
            {"sample": row.sample, "reason": _TOLD.get(row.reason, row.reason), "detail": row.detail}
            for row in rows
            if row.sample in wanted
        ]

    def opened(self, version: Version) -> Dataset:
        """The data set that a reader has open. Raise UsageError if we have nothing to do with it any more."""
        self._loop.removals.check(version.dataset)
        if (dataset := self._find(version)) is not None:
            return dataset
        self._cache.named(version.dataset)  # if there is no such data set at all, that is what is told
        raise UsageError(
            f"the version of {version.dataset} that was opened is not kept any more",
            hint="open the data set again",
        )

    def _find(self, version: Version) -> Dataset | None:
        for dataset in self._cache.of_name(version.dataset):
            if (dataset.record.recipe, dataset.record.lineage) == (version.recipe, version.lineage):
                return dataset
        return None

    def suspects(self, version: Version, corrupt: Iterable[int]) -> list[tuple[list[int], Path, list[int]]]:
        """The shards of samples that a reader calls corrupt: those samples, the file, its dead rows."""
        dataset = self.opened(version)
        samples = self._numbers(dataset, corrupt)
        self._cache.mend(dataset, samples)
        words = dataset.index.words[samples]
        samples, numbers = samples[is_resident(words)], shard_of(words[is_resident(words)])
        found = []
        for number in np.unique(numbers).tolist():
            shard = self._cache.catalog.find_shard(number)  # None: it is in memory, or not durable yet
            if shard is not None:
                found.append((samples[numbers == number].tolist(), dataset.path_of(shard), shard.dead_rows))
        return found

    def asked_to_read(self, reading: OrderRequest) -> Callable[[], OpenSession]:
        """Check what a reader says of itself; return what makes a session of it.

        That takes a fifth of a second for a million samples and touches nothing of ours: off the loop.
        """
        dataset = self.opened(Version(reading.dataset, reading.recipe, reading.lineage))
        for order in reading.own_orders:
            self._in_range(dataset, order)
        room = self._loop.sizes.samples_that_fit(dataset, dataset.count)

        def make() -> OpenSession:
            manifest = dataset.version(reading.manifest)
            session = OpenSession(reading, dataset, manifest, self._cache.clock)
            if session.missing > room:  # samples will have to make room for others
                session.look_ahead()
            return session

        return make

    def read_in_order(self, session: OpenSession) -> dict[str, Any]:
        """Stage ahead of a reader whose order is known from now on."""
        if not self._cache.is_open(session.dataset):
            raise UsageError(
                f"the version of {session.dataset.name} that was opened is not kept any more",
                hint="open the data set again",
            )
        self._loop.sessions.register(session)
        return {"samples": len(session.order), "missing": session.missing}

    def heard(self, session: str, position: int) -> dict[str, Any]:
        return {"knows_order": self._loop.sessions.heard(session, position)}

    def report(self, value: Mapping[str, Any]) -> dict[str, Any]:
        dataset = self._find(Version(value["dataset"], value["recipe"], value["lineage"]))
        knows_order = True
        if value["position"] is not None:
            knows_order = self._loop.sessions.heard(value["session"], value["position"])
        if dataset is not None:
            dataset.heat.add(self._in_range(dataset, value["reads"]), self._cache.clock.wall())
        report = {name: value[name] for name in ("dataset", "session", "process", "length", "epoch")}
        if self._cache.of_name(value["dataset"]):  # else it was removed, and what was counted with it
            totals = Totals(**value["totals"])
            meter.absorb(self._cache.catalog, Report(**report, totals=totals), self._cache.clock.wall())
        # If not, we have been restarted, or were away when it opened: tell us again.
        return {"knows_order": knows_order, "knows_reader": self._loop.leases.heard(value["session"])}

    def _numbers(self, dataset: Dataset, samples: Iterable[int]) -> Numbers:
        return self._in_range(dataset, np.unique(np.fromiter(samples, dtype=np.int64)))

    def _in_range(self, dataset: Dataset, numbers: Numbers) -> Numbers:
        if len(numbers) and not 0 <= numbers.min() <= numbers.max() < dataset.count:
            raise UsageError(f"{dataset.name} has samples 0 to {dataset.count - 1}")
        return numbers
