"""Batches in a known order, put together by threads from the shards. No framework, no processes."""

import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import numpy as np

from stager.errors import UsageError
from stager.reader.cuts import length_of
from stager.reader.cuts.cut import Cut
from stager.reader.cuts.patches.patch import Patches
from stager.reader.order import check_rank, epoch_order, rank_order
from stager.reader.record import SHOWN_DIGITS
from stager.reader.samples.changes import Changes
from stager.reader.settings import ORDER_NUMBERS_MAX
from stager.reader.values import Numbers, canonical_json, digest_of, pack_numbers
from stager_client.augment.transforms import Augment, several
from stager_client.batches.ahead import Ahead, Stopped
from stager_client.batches.assembly import Assembly, Batch, Reasons
from stager_client.batches.buffers import BufferPool, Pin
from stager_client.batches.options import VERSIONS, Order
from stager_client.batches.patches import patches_of
from stager_client.batches.ranks import Talk, Talks, agreed, check_same, labels_differ, silent_ranks
from stager_client.reading.session import Way
from stager_client.samples import StagedSamples

THREADS: Final = 2
Ranks = Callable[[], tuple[int, int]]  # our rank, and how many ranks there are, as it is now
Made = TypeVar("Made")
Given = TypeVar("Given")


class BatchLoader:
    """The batches of one rank, epoch after epoch; it can stop at any batch and go on elsewhere."""

    def __init__(
        self,
        samples: StagedSamples,
        batch_size: int,
        *,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        ranks: Ranks = lambda: (0, 1),
        prefetch: int = 2,
        threads: int = THREADS,
        augment: Augment | Sequence[Augment] = (),
        augment_fields: Sequence[str] | None = None,
        order: Order | None = None,
        columns: Sequence[str] | None = None,
        cut: Cut | None = None,
        length: int | None = None,
        versions: str = "opened",
        augment_later: bool = False,
        pin: Pin | None = None,
        talks: Talks = lambda name: None,
        moved: Callable[[StagedSamples], None] = lambda samples: None,
    ) -> None:
        """With `augment_later` fields are as staged, and the caller augments some by the batch's uniforms.

        `ranks` is asked when an iteration begins: torch.distributed may start after the loader was made.
        `moved` hears of each other version that is read from then on.
        """
        if batch_size < 1 or prefetch < 1 or threads < 1:
            raise UsageError("batch_size, prefetch and threads must be at least 1")
        if versions not in VERSIONS:
            raise UsageError(f"versions is {versions!r}", hint="use one of " + ", ".join(VERSIONS))
        self.batch_size, self.takes_latest = batch_size, versions == "latest"
        self.shuffle, self.seed, self.drop_last = shuffle, seed, drop_last
        self.prefetch, self.threads = prefetch, threads
        self._ranks_now = ranks
        self._ranks_read: tuple[int, int] | None = None  # those of the first iteration
        self._own_order = order
        self.epoch = 0
        self._position = 0  # of the epoch, read by all ranks together
        self._resume_at = 0
        augments = several(augment)
        if length is not None and not isinstance(cut, Patches):
            raise UsageError("length goes with patches: other epochs have each sample once", hint="order=")

        def assemble(samples: StagedSamples) -> Assembly:
            taken = cut
            if isinstance(cut, Patches):
                has_more = order is not None or bool(augments)
                taken, samples = patches_of(cut, samples, length, has_more)
            chosen = samples.choose(columns)
            return Assembly(samples, batch_size, chosen, taken, augments, augment_fields, augment_later, pin)

        self._assemble, self._talks, self._moved = assemble, talks, moved
        self._talk: Talk | None = None
        self._under_way: int | None = None  # the epoch that is read, until its last batch is given out
        self._read(samples)
        self._waited_s = self._transformed_s = self._computed_s = 0.0
        self._batches = 0

    def _read(self, samples: StagedSamples) -> None:
        """Read these samples from now on."""
        self.assembly = self._assemble(samples)
        self.samples = self.assembly.samples
        self._length = length_of(self.assembly.cut, len(self.samples))  # of the epoch, in positions

    def refresh(self, version: str | None = None) -> Changes:
        """Read the newest version from the next epoch on, or one by its digest; say what has changed.

        All ranks read the same one: the one that rank 0 takes. Raise UsageError in the middle of an epoch.
        """
        if self._under_way is not None or self._resume_at:
            raise UsageError(
                f"epoch {self.epoch} of {self.samples.name} is under way: it stays on its version",
                hint="refresh between two epochs; set_epoch begins another one",
            )
        samples = self._agreed(version)
        if problem := labels_differ(self.samples, samples):
            raise UsageError(problem, hint="open the data set again; or open it with a list of classes")
        return self._take(samples)

    def _take_latest(self) -> None:
        """Before an epoch of `versions="latest"`. Where labels would differ, it stays on its version."""
        samples = self._agreed(None)
        if problem := labels_differ(self.samples, samples):
            warnings.warn(f"{problem}: the version before is read on", stacklevel=4)
        else:
            self._take(samples)

    def _agreed(self, version: str | None) -> StagedSamples:
        """The samples of a version that all ranks read."""
        rank, world_size = self.ranks
        if world_size > 1:
            self._talk = self._talk or self._talks(self.samples.name)
            if self._talk is None and version is None:
                raise silent_ranks(self.samples.name, world_size)
        return agreed(self.samples, version, rank, self._talk)

    def _take(self, samples: StagedSamples) -> Changes:
        changes = samples.changes_since(self.samples)
        if samples is not self.samples:
            samples.session.set_epoch(self.epoch)
            self._read(samples)
            self._position = 0
            self._moved(samples)
        return changes

    def __len__(self) -> int:
        """Batches of a whole epoch."""
        return len(self._parts(0, len(self._order_of(self.epoch)), *self.ranks))

    @property
    def pools(self) -> dict[str, BufferPool]:
        """The buffers of fields that have one shape, by name."""
        return self.assembly.pools

    @property
    def ranks(self) -> tuple[int, int]:
        """Our rank and how many there are: as read so far, else as it is now, which may change."""
        return self._ranks_read or self._ranks_now()

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch is next; without it, each epoch that is read to its end is followed by the next."""
        if epoch != self.epoch:
            self.epoch, self._position, self._resume_at = epoch, 0, 0
        self.samples.session.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where we are: three integers, and digests of the version and of what is read of it."""
        return {
            "seed": self.seed,
            "epoch": self.epoch,
            "position": self._position,
            "version": self.samples.manifest_digest,
            "digest": self._digest(self.epoch),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a loader was, on any number of ranks."""
        digests = str(state["digest"]), self._digest(int(state["epoch"]))
        theirs, ours = ([*digest.split("-"), "", ""][:3] for digest in digests)
        version = str(state.get("version", self.samples.manifest_digest))
        if version != self.samples.manifest_digest:
            if not self.takes_latest or state["position"]:  # else nothing was read of that one
                raise self._of_another(version, int(state["epoch"]))
        elif theirs[0] != ours[0]:
            raise UsageError(
                "the state was saved for other data: the data set, its subset or shuffle differ",
                hint="open the same subset of the same scan, with the same shuffle",
            )
        if theirs[2] != ours[2]:
            raise UsageError(
                "the state was saved with another cut: the rest of its epoch would have other parts",
                hint="give the loader the cut of that run, with the same settings",
            )
        if theirs[1] != ours[1]:
            raise UsageError(
                "the state was saved with another augment: the rest of its epoch would have other values",
                hint="give the loader the augment of that run, with the same settings in the same order",
            )
        self.seed, self.epoch = int(state["seed"]), int(state["epoch"])
        self._position = self._resume_at = int(state["position"])
        self.samples.session.set_epoch(self.epoch)

    def _of_another(self, version: str, epoch: int) -> UsageError:
        """A state was saved on another version."""
        name, digits = self.samples.name, version[:SHOWN_DIGITS]
        anew = f"set_epoch({epoch}) begins its epoch anew on this version"
        kept = (
            f'it is kept: open the data set with version="{digits}"; or '
            if self.samples.keeps(version)
            else ""
        )
        return UsageError(
            f"the state was saved on version {digits} of {name},"
            f" and this is {self.samples.manifest_digest[:SHOWN_DIGITS]}",
            hint=kept + (anew if kept else f"it is not kept any more: {anew}"),
        )

    def stats(self) -> dict[str, float]:
        """How long the loop waited for batches, its own transform included, and how long it computed."""
        return {
            "batches": self._batches,
            "waited_s": self._waited_s,
            "transformed_s": self._transformed_s,
            "computed_s": self._computed_s,
        }

    def __iter__(self) -> Iterator[Batch]:
        """The epoch from its beginning, or from where the loaded state was."""
        return self.run(lambda batch: batch, lambda batch: batch)

    def run(self, make: Callable[[Batch], Made], transform: Callable[[Made], Given]) -> Iterator[Given]:
        """The same, with what is made of each batch.

        `make` is called ahead of time, in a thread of ours; `transform` in the loop's thread, in order.
        """
        start, self._resume_at = self._resume_at, 0
        self._position = start
        rank, world_size = self._decide_ranks()
        if self.takes_latest and not start and self._under_way is None:
            self._take_latest()
        order = self._order_of(self.epoch)
        parts = deque(enumerate(self._parts(start, len(order), rank, world_size)))
        session, way = self.samples.session, self._tell_order(start, order, rank, world_size)
        self._length = len(order)
        seed, epoch = self.seed, self.epoch  # of this iteration, whatever is set while it runs
        if not parts:  # the rest is less than a batch, and dropped
            self._advance(epoch, 0, is_last=True)
        stopped = threading.Event()
        assembly, together = self.assembly, 1  # batches that a thread is given at once

        def assemble(parts: Sequence[tuple[int, Numbers]]) -> Iterator[tuple[Made, int, Reasons]]:
            batches = assembly.make_all(order, [draws for _, draws in parts], seed, epoch, stopped)
            for number, draws in parts:
                batch = next(batches)
                session.has_read(way, number * self.batch_size, len(draws))
                yield make(batch), len(draws), batch.missed

        ahead = Ahead(assemble, self.threads, stopped)
        asked_at = time.perf_counter()
        self._under_way = epoch
        try:
            while parts or ahead:
                while parts and len(ahead) <= (self.prefetch - 1) * together:
                    ahead.put([parts.popleft() for _ in range(min(together, len(parts)))])
                try:
                    made, samples, missed = ahead.take()
                except Stopped:
                    return  # the process ends
                had_at = time.perf_counter()
                together = 1 if missed else min(2 * together, assembly.together)
                given = transform(made)
                del made
                given_at = time.perf_counter()
                self._count(samples, missed, had_at - asked_at, given_at - had_at)
                self._advance(epoch, self.batch_size * world_size, is_last=not (parts or ahead))
                try:
                    yield given
                finally:
                    del given  # or its buffer would not be free for the batch after next
                    asked_at = time.perf_counter()
                    self._compute(asked_at - given_at)
        finally:
            self._under_way = None
            session.leave_order()
            ahead.close()

    def _decide_ranks(self) -> tuple[int, int]:
        """The ranks of all iterations: other ones would read some samples twice and others never."""
        now = self._ranks_now()
        check_rank(*now)
        if self._ranks_read not in (None, now):
            before = self._ranks_read or now
            raise UsageError(
                f"this loader was read as rank {before[0]} of {before[1]} before,"
                f" and is rank {now[0]} of {now[1]} now",
                hint="iterate over it after init_process_group only, or make another loader",
            )
        if self._ranks_read is None and now[1] > 1 and not self.takes_latest:
            self._talk = self._talk or self._talks(self.samples.name)
            if self._talk is not None:
                check_same(self.samples, now[0], self._talk)
        self._ranks_read = now
        return now

    def _advance(self, epoch: int, positions: int, is_last: bool) -> None:
        """Note that a batch is given out. The last of an epoch ends it: Keras does not ask for one more."""
        if self.epoch != epoch:
            return  # somebody has said where to go on
        self._position = min(self._position + positions, self._length)
        if is_last:
            self.epoch, self._position, self._under_way = epoch + 1, 0, None

    def _tell_order(self, start: int, order: Numbers, rank: int, world_size: int) -> Way:
        """The order is a function of these: the service works it out for itself."""
        orders: list[Numbers] = []
        if self._own_order is not None or not self.samples.is_whole:
            room = ORDER_NUMBERS_MAX
            for at, read in ((start, order), (0, self._order_of(self.epoch + 1))):
                ours = rank_order(read, at, rank, world_size, self.drop_last)[:room]
                orders.append(self.samples.numbers[ours])
                room -= len(ours)
        cut = self.assembly.cut
        return self.samples.session.read_in_order(
            {
                **({"cut": cut.to_json()} if cut else {}),
                "own_orders": [pack_numbers(read) for read in orders],
                **self.samples.version,
                "manifest": self.samples.manifest_digest,
                "subset": self.samples.subset.to_json(),
                "shuffle": self.shuffle,
                "seed": self.seed,
                "epoch": self.epoch,
                "rank": rank,
                "world_size": world_size,
                "drop_last": self.drop_last,
                "length": len(self.samples),
                "start": start,
            }
        )

    def _parts(self, start: int, length: int, rank: int, world_size: int) -> list[Numbers]:
        """The draws of each batch of a rank, from `start` of the epoch on: places in the epoch's order."""
        mine = rank_order(np.arange(length), start, rank, world_size, self.drop_last)
        whole = len(mine) - len(mine) % self.batch_size if self.drop_last else len(mine)
        return [mine[at : at + self.batch_size] for at in range(0, whole, self.batch_size)]

    def _order_of(self, epoch: int) -> Numbers:
        """The positions that all ranks together read in an epoch, in order."""
        count = length_of(self.assembly.cut, len(self.samples))
        if self._own_order is None:
            return epoch_order(count, self.seed, epoch) if self.shuffle else np.arange(count)
        order = np.asarray(self._own_order(epoch), dtype=np.int64)
        if order.ndim != 1 or (len(order) and not 0 <= order.min() <= order.max() < count):
            raise UsageError(
                f"order({epoch}) must be a list of positions from 0 to {count - 1}",
                hint="positions in the data set",
            )
        return order

    def _count(self, samples: int, missed: Reasons, waited_s: float, transformed_s: float) -> None:
        """Threads wait ahead of the loop; what counts is what the loop waited."""
        self._batches += 1
        self._waited_s += waited_s + transformed_s
        self._transformed_s += transformed_s
        self.samples.session.count(samples, missed, waited_s if missed else 0.0)

    def _compute(self, seconds: float) -> None:
        """The loop had a batch for so long before it asked for the next, or went away."""
        self._computed_s += seconds
        self.samples.session.add_computed(seconds)

    def _digest(self, epoch: int) -> str:
        """Of the data and their order, and of the augmentation and the cut if there are any."""
        about = canonical_json([self.samples.digest, self.shuffle]).encode()
        data = digest_of(about) if self._own_order is None else digest_of(about, self._order_of(epoch).data)
        chain, cut = self.assembly.chain, self.assembly.cut
        cut_digest = digest_of(canonical_json(cut.to_json()).encode()) if cut else ""
        return "-".join([data, chain.digest if chain else "", cut_digest]).rstrip("-")
