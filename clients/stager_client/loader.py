"""Batches in a known order, put together by threads from the mapped shards. No framework, no processes."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stager.errors import UsageError
from stager.model import Arrays, Numbers, canonical_json, digest_of, pack_numbers
from stager.order import epoch_order, rank_order
from stager_client.augment import Augment, Chain, Image
from stager_client.buffers import BufferPool
from stager_client.samples import Reasons, StagedSamples

THREADS: Final = 2
Order = Callable[[int], Numbers | Sequence[int]]  # the positions that an epoch reads, one by one
IMAGE: Final = "image"  # the field that is augmented


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples of one step: the arrays of each field, their labels, and where they are in the data set."""

    fields: dict[str, npt.NDArray[Any]]
    labels: npt.NDArray[np.int64]
    positions: Numbers
    missed: Reasons


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
        rank: int = 0,
        world_size: int = 1,
        prefetch: int = 3,
        threads: int = THREADS,
        augment: Sequence[Augment] = (),
        order: Order | None = None,
    ) -> None:
        if batch_size < 1 or prefetch < 1 or threads < 1:
            raise UsageError("batch_size, prefetch and threads must be at least 1")
        rank_order(np.zeros(0, dtype=np.int64), 0, rank, world_size, drop_last)  # do the ranks make sense?
        self.samples, self.batch_size = samples, batch_size
        self.shuffle, self.seed, self.drop_last = shuffle, seed, drop_last
        self.rank, self.world_size, self.prefetch, self.threads = rank, world_size, prefetch, threads
        self._own_order = order
        self.epoch = 0
        self._position = 0  # of the epoch, read by all ranks together
        self._resume_at = 0
        self._chain = Chain(augment, _image_shape(samples)) if augment else None
        self.pools = (
            {IMAGE: BufferPool((batch_size, *self._chain.out_shape), np.uint8)}
            if self._chain
            else {
                field.name: BufferPool((batch_size, *shape), field.dtype)
                for field, shape in samples.fixed_fields()
            }
        )
        self._waited_s = self._computed_s = 0.0
        self._batches = 0

    def __len__(self) -> int:
        """Batches of a whole epoch."""
        return len(self._parts(0))

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch is next; without it, each epoch that is read to its end is followed by the next."""
        if epoch != self.epoch:
            self.epoch, self._position, self._resume_at = epoch, 0, 0
        self.samples.session.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where we are: three integers, and a digest of what is read."""
        return {
            "seed": self.seed,
            "epoch": self.epoch,
            "position": self._position,
            "digest": self._digest(self.epoch),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a loader was, on any number of ranks."""
        if state["digest"] != self._digest(int(state["epoch"])):
            raise UsageError(
                "the state is of other data: the data set, its subset or shuffle differ",
                hint="open the same subset of the same scan, with the same shuffle",
            )
        self.seed, self.epoch = int(state["seed"]), int(state["epoch"])
        self._position = self._resume_at = int(state["position"])
        self.samples.session.set_epoch(self.epoch)

    def stats(self) -> dict[str, float]:
        """How long the consumer waited for batches, and how long it computed in between."""
        return {"batches": self._batches, "waited_s": self._waited_s, "computed_s": self._computed_s}

    def __iter__(self) -> Iterator[Batch]:
        """The epoch from its beginning, or from where the loaded state was."""
        start, self._resume_at = self._resume_at, 0
        self._position = start
        self._tell_order(start)
        parts = deque(self._parts(start))
        self._length = len(self._order_of(self.epoch))
        seed, epoch = self.seed, self.epoch  # of this iteration, whatever is set while it runs
        stopped = threading.Event()
        pool = ThreadPoolExecutor(self.threads, "stager-batch")
        ahead: deque[Future[Batch]] = deque()
        asked_at = time.perf_counter()
        try:
            while parts or ahead:
                while parts and len(ahead) < self.prefetch:
                    ahead.append(pool.submit(self._assemble, parts.popleft(), seed, epoch, stopped))
                batch = ahead.popleft().result()
                given_at = time.perf_counter()
                self._waited_s += given_at - asked_at
                self._batches += 1
                self._count(batch, given_at - asked_at)
                self._position = min(self._position + self.batch_size * self.world_size, self._length)
                yield batch
                del batch  # or its buffer would not be free for the batch after next
                asked_at = time.perf_counter()
                self._computed_s += asked_at - given_at
                self.samples.session.add_computed(asked_at - given_at)
            self.epoch, self._position = self.epoch + 1, 0
        finally:
            self.samples.session.leave_order()
            stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)

    def _tell_order(self, start: int) -> None:
        """The order is a function of these: the service works it out for itself."""
        orders = []
        if self._own_order is not None or not self.samples.is_whole:
            orders = [self.samples.numbers[self._order_of(self.epoch + ahead)] for ahead in (0, 1)]
        self.samples.session.read_in_order(
            {
                "own_orders": [pack_numbers(order) for order in orders],
                "manifest": self.samples.manifest_digest,
                "subset": self.samples.subset.to_json(),
                "shuffle": self.shuffle,
                "seed": self.seed,
                "epoch": self.epoch,
                "rank": self.rank,
                "world_size": self.world_size,
                "drop_last": self.drop_last,
                "length": len(self.samples),
                "start": start,
            }
        )

    def _parts(self, start: int) -> list[Numbers]:
        """The positions of each batch of this rank, from `start` of the epoch on."""
        mine = rank_order(self._order_of(self.epoch), start, self.rank, self.world_size, self.drop_last)
        whole = len(mine) - len(mine) % self.batch_size if self.drop_last else len(mine)
        return [mine[at : at + self.batch_size] for at in range(0, whole, self.batch_size)]

    def _order_of(self, epoch: int) -> Numbers:
        """The positions that all ranks together read in an epoch, in order."""
        count = len(self.samples)
        if self._own_order is None:
            return epoch_order(count, self.seed, epoch) if self.shuffle else np.arange(count)
        order = np.asarray(self._own_order(epoch), dtype=np.int64)
        if order.ndim != 1 or (len(order) and not 0 <= order.min() <= order.max() < count):
            raise UsageError(
                f"order({epoch}) is no list of positions in 0 to {count - 1}",
                hint="positions in the data set",
            )
        return order

    def _assemble(self, positions: Numbers, seed: int, epoch: int, stopped: threading.Event) -> Batch:
        fields = {name: pool.take()[: len(positions)] for name, pool in self.pools.items()}
        if self._chain:
            missed = self._augment(self._chain, positions, seed, epoch, fields[IMAGE], stopped)
        else:
            missed = self.samples.fill(positions, fields, stopped)
        return Batch(fields, self.samples.labels[positions], positions, missed)

    def _augment(
        self, chain: Chain, positions: Numbers, seed: int, epoch: int, rows: Image, stopped: threading.Event
    ) -> Reasons:
        """Fill the rows with images that are augmented on their way from the shard."""
        key_hashes = self.samples.reader.manifest.key_hashes[self.samples.numbers[positions]]
        uniforms = chain.uniforms(key_hashes, seed, epoch)

        def take(at: int, arrays: Arrays) -> None:
            chain.apply(arrays[IMAGE], uniforms[at], rows[at])

        return self.samples.visit(positions, take, stopped)

    def _count(self, batch: Batch, waited_s: float) -> None:
        """Threads wait ahead of the loop; what counts is what the loop waited."""
        session = self.samples.session
        session.advance(len(batch.positions))
        session.count(len(batch.positions), batch.missed, waited_s if batch.missed else 0.0)

    def _digest(self, epoch: int) -> str:
        about = canonical_json([self.samples.digest, self.shuffle]).encode()
        return digest_of(about) if self._own_order is None else digest_of(about, self._order_of(epoch).data)


def _image_shape(samples: StagedSamples) -> tuple[int | None, ...]:
    """Height, width and channels; sides that differ between samples are None."""
    fields = samples.reader.record.fields
    if [(field.name, field.dtype, len(field.shape)) for field in fields] != [(IMAGE, "uint8", 3)]:
        raise UsageError(f"only uint8 images can be augmented, {samples.name} has {fields}")
    return fields[0].shape
