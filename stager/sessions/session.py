"""What readers will read next: the order of each session, how far it is, and how far we have looked ahead."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Final

import numpy as np

from stager.cache.dataset import Dataset
from stager.clock import Clock
from stager.errors import UsageError
from stager.reader.cuts import length_of
from stager.reader.cuts.cut import Cut, Draws, Rows
from stager.reader.cuts.patches.patch import Patches
from stager.reader.cuts.patches.random_patch import RandomPatch
from stager.reader.index import is_failed, is_resident
from stager.reader.order import epoch_order, rank_order
from stager.reader.samples.by_number import ByNumber
from stager.reader.samples.manifest import Manifest
from stager.reader.samples.runs import Runs, is_among
from stager.reader.samples.subset import Subset, draw
from stager.reader.values import Mask, Numbers
from stager.sessions.course import NEVER, Course, Uses

SILENT_S: Final = 5.0  # a session that does not report for so long has ended
RESTS_S: Final = 600.0  # and may come back for its next epoch: a training validates, or saves its state
NEAR_SAMPLES: Final = 64  # shards that are needed at once are small
SOON_SAMPLES: Final = 256  # once it reads: about a batch, for a shard costs as much as some samples
LOOK_SAMPLES: Final = 16_384  # of an order, at once
DRAWS_AT_ONCE: Final = 4096  # whose rows are worked out together
NONE: Final = np.zeros(0, dtype=np.int64)
GUESS_RATE: Final = 1000.0  # samples/s of a reader that has not told any position yet


@dataclass(frozen=True, slots=True)
class OrderRequest:
    """What a session says of itself: enough to know its order without sending it."""

    session: str
    dataset: str
    recipe: str
    lineage: str
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
    # Orders that no seed gives, of this epoch and of the next: the numbers of the samples that it reads.
    own_orders: tuple[Numbers, ...] = field(default=(), compare=False)
    cut: Cut | None = None  # what it takes of each sample; None: all of it

    @property
    def job(self) -> tuple[Any, ...]:
        """What all ranks of one training have in common."""
        common = (
            self.dataset,
            self.recipe,
            self.manifest,
            self.subset,
            self.shuffle,
            self.seed,
            self.world_size,
        )
        return (*common, self.session) if self.own_orders else common


class OpenSession:
    """One reader's way through an epoch."""

    def __init__(self, reading: OrderRequest, dataset: Dataset, manifest: Manifest, clock: Clock) -> None:
        """`manifest`: the version that the reader has."""
        self.asked, self.dataset, self._clock = reading, dataset, clock
        self._numbers = draw(manifest, reading.subset).numbers  # of the subset
        if len(self._numbers) != reading.length and not reading.own_orders:
            raise UsageError(
                f"the subset of {reading.dataset} has {len(self._numbers)} samples,"
                f" the reader has {reading.length}"
            )
        if isinstance(reading.cut, Patches) and reading.cut.bricks != len(self._numbers):
            raise UsageError(f"{reading.dataset} has other volumes than the cut", hint="open it again")
        self._cut = reading.cut
        if isinstance(reading.cut, RandomPatch) and reading.cut.foreground:
            counts = manifest.foreground(reading.cut.foreground)
            if counts is None:
                raise UsageError(f"the foreground of {reading.dataset} was not counted", hint="open it again")
            self._cut = reading.cut.knowing(counts)
        self._rows: Rows | None = None  # of the order's draws, if there is a cut
        self.order = self._order(0)  # sample numbers
        self.position = 0  # samples of the order that have been read
        self._draws = 0  # of this rank, likewise
        self.cursor = 0  # samples of the order that are resident, failed or given out
        self.began_at = self.heard_at = clock.now()
        self._began: int | None = None  # the first position we heard
        self.last_rate = GUESS_RATE  # of the epoch before

    def _order(self, epochs_ahead: int) -> Numbers:
        reading = self.asked
        if reading.own_orders:
            return reading.own_orders[epochs_ahead] if epochs_ahead < len(reading.own_orders) else NONE
        count, epoch = length_of(self._cut, len(self._numbers)), reading.epoch + epochs_ahead
        order = epoch_order(count, reading.seed, epoch) if reading.shuffle else np.arange(count)
        start = 0 if epochs_ahead else reading.start
        ranks = reading.rank, reading.world_size, reading.drop_last
        read = rank_order(order, start, *ranks)
        if self._cut is None:
            return self._numbers[read]
        draws = rank_order(np.arange(count), start, *ranks)
        rows = self._cut.rows(Draws.of(reading.seed, epoch, draws, read))
        if not epochs_ahead:
            self._rows = rows
        return self._numbers[rows.positions]

    def heard(self, position: int) -> Numbers:
        """It is alive, and this far; return the samples it has read since."""
        self._draws = max(self._draws, position)
        position = self._rows.before(position) if self._rows else position  # it counts draws
        if self._began is None:
            self._began, self.began_at = position, self._clock.now()
        self.heard_at = self._clock.now()
        read = self.order[self.position : position]
        self.position = max(self.position, position)
        return read

    @property
    def lead(self) -> int:
        """How far staging is ahead of reading."""
        return self.cursor - self.position

    @property
    def rate(self) -> float:
        """Samples/s."""
        seconds, read = self.heard_at - self.began_at, self.position - (self._began or 0)
        return read / seconds if read > 0 and seconds > 0 else self.last_rate

    @cached_property
    def _uses(self) -> Uses:
        return Uses(np.concatenate([self.order, self._order(1)]))

    @cached_property
    def _members(self) -> Callable[[Numbers], Mask]:
        if isinstance(self._numbers, Runs) and not self.asked.own_orders:
            return partial(is_among, known=self._numbers)
        members = ByNumber(np.bool_)
        for numbers in (self.order, self._order(1)) if self.asked.own_orders else (self._numbers[:],):
            members[numbers] = True
        return members.__getitem__

    def look_ahead(self) -> None:
        """Work out what evictions ask for. It takes half a second for a million samples: off the loop."""
        self._uses.after(NONE, 0)
        self.is_ahead(NONE)
        self._members(NONE).any()

    def course(self) -> Course:
        """What is known of the reads to come."""
        # Patches share bricks: some are read often in an epoch, and some never.
        is_uniform = not self.asked.own_orders and not isinstance(self.asked.cut, Patches)
        rate = self.rate
        epoch_s = max(len(self.order), 1) / rate
        # From the position that was told, not from the likely one: that is a guess, and a sample which the
        # reader comes to just now would be given up as one that it has passed.
        return Course(self.asked.job, is_uniform, self._uses, self._members, self.position, rate, epoch_s)

    def rest(self) -> Course:
        """The same of a session that is silent: the longer it is, the later it comes back."""
        silent_s = self._clock.now() - self.heard_at
        course = self.course()
        return replace(course, is_uniform=True, uses=Uses(NONE), epoch_s=course.epoch_s + silent_s)

    @cached_property
    def _last_places(self) -> ByNumber:
        """For each sample the last place in the order, and 1; 0: it is not in it."""
        places = ByNumber(np.int32)
        places[self.order] = np.arange(1, len(self.order) + 1, dtype=np.int32)  # of several, the last stays
        return places

    @cached_property
    def _last_draws(self) -> ByNumber:
        """The same of draws, and of those of all ranks: of the chunks of patches, each needs other bricks."""
        asked, draws = self.asked, ByNumber(np.int32)
        count = length_of(self._cut, len(self._numbers))
        order = epoch_order(count, asked.seed, asked.epoch) if asked.shuffle else np.arange(count)
        for first in range(asked.start, count, DRAWS_AT_ONCE):
            some = np.arange(first, min(first + DRAWS_AT_ONCE, count))
            assert self._cut is not None
            rows = self._cut.rows(Draws.of(asked.seed, asked.epoch, some, order[some]))
            draws[self._numbers[rows.positions]] = some[rows.draw_of()] + 1  # of several, the last stays
        return draws

    def is_ahead(self, samples: Numbers) -> Mask:
        """Which of these samples are still to be read: where several share a chunk, by any rank."""
        own = np.asarray(self._last_places[samples] > self.position)
        is_alone = self.asked.world_size == 1 or not isinstance(self._cut, Patches) or self.asked.own_orders
        if is_alone:
            return own
        read = self.asked.start + self._draws * self.asked.world_size  # by all, as far as this one is
        return np.asarray(own | (self._last_draws[samples] > read))

    def distance_to(self, samples: Numbers) -> int | None:
        """How many samples it reads before the first of these; None: they are not in its order."""
        places = self._last_places[samples] - 1
        places = places[places >= 0]
        return max(0, int(places.min()) - self.position) if len(places) else None

    @cached_property
    def missing(self) -> int:
        """How many samples of the order were neither resident nor failed when it began."""
        words = self.dataset.index.words[self.order]
        return int((~is_resident(words) & ~is_failed(words)).sum())

    def ahead(self, in_flight: ByNumber, largest: int, reach: int) -> Numbers:
        """The next samples to stage for this reader; small shards where they are needed soon. Moves on.

        At most `reach` samples ahead of it. Once there, it waits until half of that is read: no tiny shards.
        """
        self.cursor = max(self.cursor, self.position)
        end = min(len(self.order), self.likely_position + reach)
        if end < len(self.order) and end - self.cursor < reach // 2:
            return NONE
        count = min(max(NEAR_SAMPLES, self.lead // 2, min(self.cursor // 4, SOON_SAMPLES)), largest)
        taken: list[Numbers] = []
        have, step = 0, count
        while have < count and self.cursor < end:
            part = self.order[self.cursor : min(self.cursor + step, end)]
            words = self.dataset.index.words[part]
            missing = ~is_resident(words) & ~is_failed(words) & ~in_flight[part]
            places = np.flatnonzero(missing)[: count - have]
            taken.append(part[places])
            have += len(places)
            self.cursor += len(part) if have < count else int(places[-1]) + 1
            step = min(2 * step, LOOK_SAMPLES)  # where much is resident, little steps would take long
        return np.unique(np.concatenate(taken)) if taken else NONE

    def look_again(self, samples: Numbers) -> None:
        """These were resident when we looked ahead, and are no more."""
        self.cursor = int(self.next_places(samples, self.likely_position).min(initial=self.cursor))

    def next_places(self, samples: Numbers, position: int) -> Numbers:
        """Where in the order each of these is read next, from a position on; NEVER: not in this epoch."""
        places, _ = self._uses.after(samples, position)
        return np.where(places < len(self.order), places, NEVER)

    @property
    def likely_position(self) -> int:
        """Positions are told now and then: meanwhile it goes on, but not past what is staged."""
        read_since = int(self.rate * (self._clock.now() - self.heard_at))
        return max(self.position, min(self.position + read_since, self.cursor))


@dataclass(frozen=True, slots=True)
class Need:
    """How many samples a session reads before it comes to some; NEVER: none does in its epoch."""

    distance: int  # to the first of them
    farthest: int  # and to the last
    is_due: bool  # they were staged ahead for it, and it counts on them


class Sessions:
    """All readers whose order is known."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._open: dict[str, OpenSession] = {}
        self._resting: dict[str, OpenSession] = {}  # silent, but what they read is still theirs for a while

    def register(self, session: OpenSession) -> None:
        """Begin a session, or its next epoch."""
        name = session.asked.session
        before = self._open.get(name) or self._resting.pop(name, None)
        if before is not None:
            session.last_rate = before.rate
        session.began_at = session.heard_at = self._clock.now()
        self._open[name] = session

    def names(self) -> set[str]:
        """Of all sessions that we know, also those that rest."""
        return {*self._open, *self._resting}

    def heard(self, session: str, position: int) -> bool:
        """A session is alive, and this far. False: we do not know its order."""
        known = self._open.get(session)
        if known is not None:
            known.dataset.heat.add(known.heard(position), self._clock.wall())
        return known is not None

    def forget(self, name: str) -> None:
        """A session has said that it is over."""
        self._open.pop(name, None)
        self._resting.pop(name, None)

    def end_silent(self) -> None:
        """Let sessions rest whose process is silent; forget them when it does not come back."""
        now = self._clock.now()
        for name, session in list(self._open.items()):
            if now - session.heard_at > SILENT_S:
                self._resting[name] = self._open.pop(name)
        for name, session in list(self._resting.items()):
            if now - session.heard_at > RESTS_S:
                del self._resting[name]

    def expected(self, dataset: Dataset, samples: Numbers) -> Mask:
        """Which of these samples sessions are still going to read."""
        mask = np.zeros(len(samples), dtype=np.bool_)
        for session in self._of(dataset):
            mask |= session.is_ahead(samples)
        return mask

    def distance_to(self, dataset: Dataset, samples: Numbers) -> int:
        """How many samples a session reads before the first of these; 0: in no order that we know."""
        found = (session.distance_to(samples) for session in self._of(dataset))
        return min((distance for distance in found if distance is not None), default=0)

    def courses(self, dataset: Dataset) -> list[Course]:
        """What is known of the reads to come, also of sessions that rest."""
        resting = [session.rest() for session in self._resting.values() if session.dataset is dataset]
        return [*(session.course() for session in self._of(dataset)), *resting]

    def datasets(self) -> set[int]:
        """The ids of data sets that are read."""
        return {session.dataset.id for session in (*self._open.values(), *self._resting.values())}

    def of_name(self, name: str) -> set[str]:
        """The sessions that read a data set, also those that rest."""
        every = {**self._open, **self._resting}
        return {session for session, known in every.items() if known.dataset.name == name}

    def versions(self) -> set[tuple[str, str]]:
        """The data sets and manifests that are read, also by those that rest."""
        sessions = (*self._open.values(), *self._resting.values())
        return {(session.asked.dataset, session.asked.manifest) for session in sessions}

    def positions(self) -> dict[tuple[str, int], int]:
        """How far each session is, by name and epoch."""
        sessions = self._open.values()
        return {(session.asked.session, session.asked.epoch): session.position for session in sessions}

    def lost(self, dataset: Dataset, samples: Numbers) -> None:
        """Samples are resident no more: those that are still to be read must be staged again."""
        for session in self._of(dataset):
            session.look_again(samples)

    def need(self, dataset: Dataset, samples: Numbers) -> Need | None:
        """When sessions read these samples in their epoch. None: the data set has no session."""
        here = samples[samples >= 0]
        sessions = self._of(dataset)
        if not sessions:
            return None
        soonest = np.full(len(here), NEVER)
        is_due = False
        for session in sessions:
            places = session.next_places(here, session.position)
            soonest = np.minimum(soonest, np.where(places == NEVER, NEVER, places - session.position))
            is_due |= bool(np.any(places < session.cursor))
        return Need(int(soonest.min(initial=NEVER)), int(soonest.max(initial=0)), is_due)

    def to_json(self) -> list[dict[str, Any]]:
        return [
            {
                "session": name,
                "dataset": session.dataset.name,
                "epoch": session.asked.epoch,
                "rank": session.asked.rank,
                "position": session.position,
                "samples": len(session.order),
                "lead": session.lead,
            }
            for name, session in self._open.items()
        ]

    def by_need(self) -> list[OpenSession]:
        """Those with the shortest lead first."""
        return sorted(self._open.values(), key=lambda session: session.lead)

    def have_all(self) -> bool:
        """Whether all that is still to be read in these epochs is staged, or under way."""
        return all(session.cursor >= len(session.order) for session in self._open.values())

    def _of(self, dataset: Dataset) -> list[OpenSession]:
        return [session for session in self._open.values() if session.dataset is dataset]
