"""How large samples and shards are, and how long functions work on them: as seen, or guessed."""

import mmap
from typing import Final

from stager.cache.budget import Budget
from stager.cache.dataset import Dataset
from stager.config import FIRST_SHARD_SAMPLES, SHARD_BYTES
from stager.worker.messages import Built

GUESS_ROW_BYTES: Final = 1 << 20  # for rows of unknown size, until the first ones are known
SHARD_OVERHEAD_BYTES: Final = 64 << 10
ROW_OVERHEAD_BYTES: Final = 512  # key, version, checksum, padding
MADE_OVERHEAD_BYTES: Final = 4096  # of its file
LMDB_PAGE_HEAD_BYTES: Final = 16  # a row that is larger than half a page has pages of its own
SHARD_SAMPLES_MAX: Final = 4096
SIZES_SPREAD: Final = 1.05  # a few samples tell the mean of all so well
SHARD_MADE_S: Final = 10.0  # that functions work on a shard: who waits has it as a whole
GUESS_MADE_S: Final = 1.0  # that one works on a sample, until the first ones are known


class Sizes:
    """What is known of data sets by the shards that were built of them."""

    def __init__(self, budget: Budget, processes: int) -> None:
        """`processes`: that run functions, in all workers."""
        self._budget, self._processes = budget, processes
        self._row_bytes: dict[int, float] = {}  # data set id -> mean bytes of a stored sample, as seen
        self._written: dict[
            int, int
        ] = {}  # data set id -> bytes of the shards that were built since the start
        self._made_s: dict[int, float] = {}  # data set id -> seconds of a function for a sample; 0: none does

    def note(self, dataset: Dataset, built: Built) -> None:
        """A shard was built, or measured."""
        self._row_bytes[dataset.id] = built.size_bytes / len(built.samples)
        self._made_s[dataset.id] = built.made_s / len(built.samples)
        self._written[dataset.id] = self._written.get(dataset.id, 0) + built.size_bytes

    def mean_row_bytes(self, dataset: Dataset) -> float:
        """As the fields say, as was measured, or a guess."""
        return dataset.row_bytes or self._row_bytes.get(dataset.id, GUESS_ROW_BYTES)

    def knows_row_bytes(self, dataset: Dataset) -> bool:
        """False: the mean is a guess."""
        return dataset.row_bytes is not None or dataset.id in self._row_bytes

    def shard_samples_max(self, dataset: Dataset) -> int:
        """So many that a shard is neither too large nor too long under way."""
        most = min(int(SHARD_BYTES / self.mean_row_bytes(dataset)), SHARD_SAMPLES_MAX)
        if made_s := self._made_seconds(dataset):
            most = min(most, int(SHARD_MADE_S * self._processes / made_s))
        return max(1, most)

    def _made_seconds(self, dataset: Dataset) -> float:
        """How long a function works on a sample, as seen or guessed; 0, if none does."""
        if dataset.id not in self._made_s:
            self._made_s[dataset.id] = GUESS_MADE_S if dataset.is_made else 0.0
        return self._made_s[dataset.id]

    def bytes_for(self, dataset: Dataset, samples: int, shard_format: str = "arrow") -> int:
        """What a shard of so many samples takes, at most or so."""
        return int(samples * self._stored_bytes(dataset, shard_format)) + SHARD_OVERHEAD_BYTES

    def bytes_for_all(self, dataset: Dataset, samples: int, shard_format: str) -> int:
        """What so many samples take in as many shards as they need, and a little more where rows differ."""
        spread = 1.0 if dataset.row_bytes is not None else SIZES_SPREAD
        small = (samples // FIRST_SHARD_SAMPLES).bit_length()  # each is twice as large as the one before
        shards = samples // self.shard_samples_max(dataset) + small + 2
        rows_bytes = samples * self._stored_bytes(dataset, shard_format)
        return int(spread * rows_bytes) + shards * SHARD_OVERHEAD_BYTES

    def samples_that_fit(self, dataset: Dataset, samples: int, shard_format: str = "arrow") -> int:
        """How many of so many samples the budget has room for."""
        return max(0, min(samples, int(self.room_bytes() / self._stored_bytes(dataset, shard_format))))

    def has_room_for_all(self, dataset: Dataset) -> bool:
        """Whether all of a data set fits, beside others: by what is free, and what was written of it."""
        needed = len(dataset.manifest) * self._stored_bytes(dataset, "arrow")
        return self.room_bytes() + self._written.get(dataset.id, 0) >= needed

    def room_bytes(self) -> int:
        """For the rows of one more shard."""
        return self._budget.room_bytes() - SHARD_OVERHEAD_BYTES

    def _stored_bytes(self, dataset: Dataset, shard_format: str) -> float:
        """What a sample takes on the disk. Where rows differ in size, files that are there have shown it."""
        row_bytes = self.mean_row_bytes(dataset)
        if shard_format == "lmdb" and dataset.row_bytes is not None:
            row_bytes = -(-(row_bytes + LMDB_PAGE_HEAD_BYTES) // mmap.PAGESIZE) * mmap.PAGESIZE
        if dataset.is_made:  # each is in a file of its own until its shard is durable
            row_bytes += row_bytes + MADE_OVERHEAD_BYTES
        return row_bytes + ROW_OVERHEAD_BYTES
