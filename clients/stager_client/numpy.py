"""Staged data sets without a framework: batches as NumPy arrays, for JAX and for everything else."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stager.subset import Subset
from stager_client.augment import Augment
from stager_client.loader import THREADS, BatchLoader, Order
from stager_client.samples import StagedSamples

Arrays = npt.NDArray[Any]


class StagedArrays:
    """Batches of a staged data set as (uint8 NHWC images, int64 labels), in StagedLoader's order.

    `order`, a function of the epoch, gives the positions to read instead: weighted, repeated, a fold.
    `augment` changes each image on its way into the batch, the same way on every run with this seed.
    A batch may be kept as long as it is needed: its buffer is used again only when nobody holds it.
    """

    def __init__(
        self,
        name: str,
        batch_size: int,
        classes: int | Sequence[str] | None = None,
        subset_seed: int = 0,
        per_class: int | None = None,
        fraction: float | None = None,
        where: str | None = None,
        split: str | None = None,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        rank: int = 0,
        world_size: int = 1,
        prefetch: int = 3,
        threads: int = THREADS,
        service: str | None = None,
        timeout_s: float = 300.0,
        skip_failed: bool = False,
        augment: Sequence[Augment] = (),
        order: Order | None = None,
    ) -> None:
        drawn = classes if classes is None or isinstance(classes, int) else tuple(classes)
        subset = Subset(drawn, subset_seed, per_class, fraction, where, split)
        samples = StagedSamples(name, subset, service, timeout_s, skip_failed)
        self.classes = samples.classes
        self.loader = BatchLoader(
            samples,
            batch_size,
            shuffle=shuffle,
            seed=seed,
            drop_last=drop_last,
            rank=rank,
            world_size=world_size,
            prefetch=prefetch,
            threads=threads,
            augment=augment,
            order=order,
        )

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[tuple[Arrays, npt.NDArray[np.int64]]]:
        for batch in self.loader:
            yield batch.fields["image"], batch.labels
            del batch

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch is next; without it, each epoch that is read to its end is followed by the next."""
        self.loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where we are, to go on at this batch later, on any number of ranks."""
        return self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.loader.load_state_dict(state)

    def stats(self) -> dict[str, float]:
        """How long the loop waited for batches, and how long it computed in between."""
        return self.loader.stats()
