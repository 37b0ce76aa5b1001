"""What is known of the reads to come of one session: when it reads each sample."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final

import numpy as np

from stager.reader.values import Mask, Numbers

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
    members: Callable[[Numbers], Mask]  # which of some samples the job reads
    position: int
    rate: float  # samples/s
    epoch_s: float
