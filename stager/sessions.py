"""What readers will read next: the order of each session, how far it is, and how far we have looked ahead."""

import time
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from stager.cache import Dataset
from stager.errors import UsageError
from stager.index import is_failed, is_resident
from stager.job import Mask
from stager.model import Numbers
from stager.order import epoch_order, rank_order
from stager.subset import Subset, draw

SILENT_S: Final = 5.0  # a session that does not report for so long has ended
NEAR_SAMPLES: Final = 64  # shards that are needed at once are small


@dataclass(frozen=True, slots=True)
class Reading:
    """What a session says of itself: enough to know its order without sending it."""

    session: str
    dataset: str
    manifest: str
    subset: Subset
    shuffle: bool
    seed: int
    epoch: int
    rank: int
    world_size: int
    drop_last: bool
    length: int  # of the subset, as the reader has it
    start: int  # of the epoch, read by all ranks together before


@dataclass(slots=True)
class Session:
    """One reader's way through an epoch."""

    reading: Reading
    dataset: Dataset
    order: Numbers  # sample numbers
    position: int = 0  # samples of the order that have been read
    cursor: int = 0  # samples of the order that are resident, failed or given out
    heard_at: float = field(default_factory=time.monotonic)
    place: Numbers = field(init=False)  # in the order, of each sample of the manifest; -1: not read

    def __post_init__(self) -> None:
        self.place = np.full(len(self.dataset.manifest), -1, dtype=np.int64)
        self.place[self.order] = np.arange(len(self.order))

    @property
    def lead(self) -> int:
        """How far staging is ahead of reading."""
        return self.cursor - self.position

    def missing(self) -> int:
        """How many samples of the order are neither resident nor failed."""
        words = self.dataset.index.words[self.order]
        return int((~is_resident(words) & ~is_failed(words)).sum())

    def ahead(self, in_flight: Mask, largest: int) -> Numbers:
        """The next samples to stage for this reader; small shards where they are needed soon. Moves on."""
        self.cursor = max(self.cursor, self.position)
        count = min(max(NEAR_SAMPLES, self.lead // 2), largest)
        words = self.dataset.index.words
        taken: list[Numbers] = []
        have = 0
        while have < count and self.cursor < len(self.order):
            part = self.order[self.cursor : self.cursor + count - have]
            self.cursor += len(part)
            missing = ~is_resident(words[part]) & ~is_failed(words[part]) & ~in_flight[part]
            taken.append(part[missing])
            have += int(missing.sum())
        return np.concatenate(taken) if taken else np.zeros(0, dtype=np.int64)


class Sessions:
    """All readers whose order is known."""

    def __init__(self) -> None:
        self._open: dict[str, Session] = {}

    def register(self, reading: Reading, dataset: Dataset) -> Session:
        """Begin a session, or its next epoch."""
        session = Session(reading, dataset, order_of(reading, dataset))
        self._open[reading.session] = session
        return session

    def heard(self, session: str, position: int) -> bool:
        """A session is alive, and this far. False: we do not know its order."""
        known = self._open.get(session)
        if known is not None:
            known.heard_at = time.monotonic()
            known.position = max(known.position, position)
        return known is not None

    def end_silent(self) -> None:
        """Forget sessions whose process is gone."""
        now = time.monotonic()
        for name, session in list(self._open.items()):
            if now - session.heard_at > SILENT_S:
                del self._open[name]

    def expected(self, dataset: Dataset) -> Numbers:
        """The samples that sessions are still going to read."""
        orders = [s.order[s.position :] for s in self._open.values() if s.dataset is dataset]
        return np.concatenate(orders) if orders else np.zeros(0, dtype=np.int64)

    def to_json(self) -> list[dict[str, Any]]:
        return [
            {
                "session": name,
                "dataset": session.dataset.name,
                "epoch": session.reading.epoch,
                "rank": session.reading.rank,
                "position": session.position,
                "samples": len(session.order),
                "lead": session.lead,
            }
            for name, session in self._open.items()
        ]

    def have_passed(self, dataset: Dataset, samples: Numbers) -> bool:
        """Whether there are readers of a data set, and none is going to read these samples any more."""
        sessions = [session for session in self._open.values() if session.dataset is dataset]
        here = samples[samples >= 0]
        return bool(sessions) and all(np.all(s.place[here] < s.position) for s in sessions)

    def by_need(self) -> list[Session]:
        """Those with the shortest lead first."""
        return sorted(self._open.values(), key=lambda session: session.lead)


def order_of(reading: Reading, dataset: Dataset) -> Numbers:
    """The sample numbers that a session reads, in order."""
    numbers = draw(dataset.manifest, reading.subset).numbers
    count = len(numbers)
    if count != reading.length:
        raise UsageError(
            f"the subset of {reading.dataset} has {count} samples, the reader has {reading.length}"
        )
    order = epoch_order(count, reading.seed, reading.epoch) if reading.shuffle else np.arange(count)
    return numbers[rank_order(order, reading.start, reading.rank, reading.world_size, reading.drop_last)]
