"""Samples that are to be pinned when they come: what was there in their place was corrupt."""

from collections.abc import Iterable

from stager.cache.dataset import Dataset
from stager.catalog.rows import ShardRow
from stager.reader.values import Numbers


class PinsToCome:
    """By data set."""

    def __init__(self) -> None:
        self._samples: dict[int, set[int]] = {}

    def put(self, lost: Iterable[ShardRow]) -> None:
        """These shards were dropped: what comes in the place of pinned ones is pinned, too."""
        for shard in lost:
            if shard.is_pinned:
                self._samples.setdefault(shard.dataset, set()).update(
                    shard.samples[shard.samples >= 0].tolist()
                )

    def has_any(self, dataset: Dataset, samples: Numbers) -> bool:
        """Whether one of these is to be pinned."""
        return not self._samples.get(dataset.id, set()).isdisjoint(samples.tolist())

    def came(self, dataset: Dataset, samples: Numbers) -> None:
        self._samples.get(dataset.id, set()).difference_update(samples.tolist())

    def forget(self, dataset: Dataset) -> None:
        self._samples.pop(dataset.id, None)

    def datasets(self) -> set[int]:
        """The ids of data sets that wait for some."""
        return {number for number, samples in self._samples.items() if samples}
