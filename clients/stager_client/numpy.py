"""Staged data sets without a framework: batches as NumPy arrays, for JAX and for everything else."""

from collections.abc import Iterator, Sequence
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from stager.reader.order import check_rank
from stager.reader.samples.subset import Subset
from stager_client.batches.assembly import Batch
from stager_client.batches.loader import BatchLoader
from stager_client.batches.options import LoaderOptions, check_options
from stager_client.batches.resumable import Resumable
from stager_client.cuts import (
    CentredPatch,
    Floats,
    GridPatch,
    GridSegments,
    RandomCrop,
    RandomPatch,
    RandomSegment,
)
from stager_client.samples import StagedSamples

__all__ = [
    "CentredPatch",
    "Floats",
    "GridPatch",
    "GridSegments",
    "RandomCrop",
    "RandomPatch",
    "RandomSegment",
    "StagedArrays",
]


class StagedArrays(Resumable):
    """Batches of a staged data set as (array, int64 labels), in StagedLoader's order.

    Of several fields, or with `columns`, they are ({name: values}, labels). Arrays are as they were staged:
    an image is NHWC. The options are StagedLoader's: shuffle, seed, order, drop_last, prefetch, threads,
    augment, columns, cut, versions. `version`: an older version that is kept, by its digest.
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
        rank: int = 0,
        world_size: int = 1,
        service: str | None = None,
        timeout_s: float = 300.0,
        skip_failed: bool = False,
        check: str = "first",
        version: str | None = None,
        **options: Unpack[LoaderOptions],
    ) -> None:
        check_options("StagedArrays", options)
        drawn = classes if classes is None or isinstance(classes, int) else tuple(classes)
        subset = Subset(drawn, subset_seed, per_class, fraction, where, split)
        check_rank(rank, world_size)
        samples = StagedSamples(name, subset, service, timeout_s, skip_failed, check, version)
        self.classes = samples.classes
        self.loader = BatchLoader(samples, batch_size, ranks=lambda: (rank, world_size), **options)

    def __repr__(self) -> str:
        return f"StagedArrays({self.loader.samples}, batches of {self.loader.batch_size})"

    def __iter__(self) -> Iterator[tuple[Any, npt.NDArray[np.int64]]]:
        return self.loader.run(self._made, lambda made: made)

    def _made(self, batch: Batch) -> tuple[Any, npt.NDArray[np.int64]]:
        return self.loader.assembly.columns.given(batch.columns), batch.labels
