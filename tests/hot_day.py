"""A simulated day of trainings that take some classes more often than others, and a hot set.

The decisions are the real ones: heat, its guess by class, the choice of the hot set, and the swap of the
evictor. Only the clock, the disk and the readers are simulated. `python tests/hot_day.py` prints the figures.
"""

import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from making import manifest_of
from stager.eviction.evictor import HEAT_MARGIN
from stager.eviction.policy import swap
from stager.eviction.simulation import hits_of_lru, hits_of_next_use
from stager.heat.guess import Guess
from stager.heat.heat import Heat, waits_of
from stager.heat.hottest import Likely, hottest_within
from stager.reader.samples.manifest import Manifest
from stager.reader.values import Mask, Numbers

CLASSES, PER_CLASS = 100, 40
SAMPLES: Final = CLASSES * PER_CLASS
EPOCH_CLASSES: Final = 10  # that a training takes,
EPOCH_PART: Final = 0.5  # and so much of each, drawn anew in each epoch
EPOCH_S: Final = 360.0  # from the beginning of one to that of the next
BATCH: Final = 20
DAY_S: Final = 86_400.0
EPOCHS_A_DAY: Final = int(DAY_S / EPOCH_S)


@dataclass
class Day:
    """What came of one day: parts of all reads, and how many samples were staged unasked."""

    hits: float
    best_fixed: float  # of the set that is best for just this day, chosen in hindsight
    best: float  # of whoever knows each read to come (Belady, with bypass)
    lru: float
    filled: int
    trace: Numbers = field(repr=False)


class Site:
    """A cache with room for so many samples, of a data set whose classes are not read alike."""

    def __init__(self, seed: int, room: float, skew: float, has_hot: bool, manifest: Manifest) -> None:
        self.rng = np.random.default_rng(seed)
        self.room, self.has_hot = int(room * SAMPLES), has_hot
        self.manifest = manifest
        popular = 1 / np.arange(1, CLASSES + 1) ** skew
        self.popular = self.rng.permutation(popular / popular.sum())
        self.heat, self.here = Heat(), np.zeros(SAMPLES, dtype=np.bool_)
        self.now, self.filled, self.hits = 1e9, 0, 0

    def day(self) -> Day:
        self.hits, filled, reads = 0, self.filled, []
        for _ in range(EPOCHS_A_DAY):
            reads.append(self._epoch())
            self.now += EPOCH_S
            if self.has_hot:
                self._fill()
        trace = np.concatenate(reads)
        often = np.sort(np.bincount(trace, minlength=SAMPLES))[::-1]
        return Day(
            self.hits / len(trace),
            float(often[: self.room].sum()) / len(trace),
            hits_of_next_use(trace, self.room) / len(trace),
            hits_of_lru(trace.tolist(), self.room) / len(trace),
            self.filled - filled,
            trace,
        )

    def _epoch(self) -> Numbers:
        """A training reads a part of the samples of its classes, in a random order."""
        classes = self.rng.choice(CLASSES, EPOCH_CLASSES, replace=False, p=self.popular)
        labels = self.manifest.labels_at(np.arange(SAMPLES))
        order = self.rng.permutation(self.manifest.numbers[np.flatnonzero(np.isin(labels, classes))])
        order = order[: int(EPOCH_PART * len(order))]
        for at in range(0, len(order), BATCH):
            batch = order[at : at + BATCH]
            self.hits += int(self.here[batch].sum())
            missing = batch[~self.here[batch]]
            self._swap_in(missing, waits_of(self._guess()[missing] + 1) * HEAT_MARGIN)
        self.heat.add(order, self.now)
        return order

    def _fill(self) -> None:
        """Nobody reads: what is hot and missing is staged."""
        guess = self._guess()
        everything = np.arange(SAMPLES)
        (chosen,) = hottest_within([Likely(everything, guess[everything], 1.0)], self.room)
        missing = chosen[~self.here[chosen]]
        self.filled += int(self._swap_in(missing, waits_of(guess[missing]) * HEAT_MARGIN).sum())

    def _swap_in(self, coming: Numbers, waits: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Mask:
        order = np.argsort(waits, kind="stable")
        here = np.flatnonzero(self.here)
        waits_here = waits_of(self._guess()[here])
        latest = np.argsort(-waits_here, kind="stable")
        free = self.room - len(here)
        keep, victims = swap(free, waits[order], 1.0, waits_here[latest], np.ones(len(here)))
        self.here[here[latest[:victims]]] = False
        self.here[coming[order[:keep]]] = True
        return self.here[coming]

    def _guess(self) -> Guess:
        return Guess(self.heat.of_all(self.now), self.manifest)


def manifest(directory: Path) -> Manifest:
    keys = [f"c{label:03d}/{number:03d}.jpg" for label in range(CLASSES) for number in range(PER_CLASS)]
    return manifest_of(directory / "manifest", keys)


def main() -> None:
    """A table: two days each, the first from an empty cache."""
    with tempfile.TemporaryDirectory() as directory:
        one = manifest(Path(directory))
        print("| room | skew | hot | day | hits | best fixed set | each read known | LRU | filled |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
        for room, skew in ((0.1, 1.1), (0.2, 1.1), (0.3, 1.1), (0.2, 0.8), (0.2, 1.5)):
            for has_hot in (False, True):
                site = Site(int(sys.argv[1]) if len(sys.argv) > 1 else 0, room, skew, has_hot, one)
                for number in (1, 2):
                    day = site.day()
                    parts = " | ".join(
                        f"{part:.1%}" for part in (day.hits, day.best_fixed, day.best, day.lru)
                    )
                    hot = "yes" if has_hot else "no"
                    print(f"| {room:.0%} | {skew} | {hot} | {number} | {parts} | {day.filled:,} |")


if __name__ == "__main__":
    main()
