"""Rows of one batch, for a plain DataLoader: torch's collate hands out the batch, and copies nothing.

Stacked one by one, photos of NHWC memory are turned into NCHW pixel by pixel, on all cores, which is most of
the time of such a loader.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import torch
from torch.utils.data import get_worker_info
from torch.utils.data._utils.collate import collate_tensor_fn, default_collate_fn_map

from stager.errors import WaitTimeout
from stager_client.batches.buffers import BufferPool

POOLED_BYTES: Final = 1 << 28  # a larger "batch" is somebody who reads all at once
CollateMap = dict[Any, Callable[..., Any]] | None
_NUMBERS: Final = {
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.bool, torch.float16, torch.float32, torch.float64),
}

_talks: "defaultdict[str, itertools.count[int]]" = defaultdict(
    itertools.count
)  # of this process, by data set


class StoreTalk:
    """Ranks of torch.distributed speak by its store: a collective would have to take turns with the model's.

    Every rank makes its loaders of a data set in the same order, as it makes its models.
    """

    def __init__(self, name: str) -> None:
        self._rank, self._world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
        self._store: Any = torch.distributed.distributed_c10d._get_default_store()
        self._name, self._about = name, f"stager/{name}/{next(_talks[name])}"
        self._steps = itertools.count()

    def first(self, told: str) -> str:
        """What rank 0 has told."""
        key = self._next()
        if not self._rank:
            self._store.set(key, told)
        return self._get(key)

    def problem(self, ours: str) -> str:
        """The problem of any rank, once all have told theirs; nothing: none has one."""
        key = self._next()
        if ours:
            self._store.set(f"{key}/problem", ours)
        if self._store.add(f"{key}/told", 1) == self._world_size:  # we are the last
            has_one = self._store.check([f"{key}/problem"])
            self._store.set(key, self._get(f"{key}/problem") if has_one else "none")
        told = self._get(key)
        return "" if told == "none" else told

    def _next(self) -> str:
        return f"{self._about}/{next(self._steps)}"

    def _get(self, key: str) -> str:
        try:
            return bytes(self._store.get(key)).decode()
        except RuntimeError as error:  # its time is over, or rank 0 is gone
            raise WaitTimeout(
                f"rank {self._rank} was not told which version of {self._name} the others read: {error}",
                hint="each rank has to refresh and to read the loader, as often as the others",
            ) from None


def talk_of(rank: int, world_size: int, name: str) -> StoreTalk | None:
    """How these ranks speak with one another about a data set; None: torch.distributed knows others."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return None
    ours = torch.distributed.get_rank(), torch.distributed.get_world_size()
    return StoreTalk(name) if ours == (rank, world_size) else None


class Neighbour(torch.Tensor):
    """One row of a batch: a tensor like any other. Whatever is worked out from it is a plain one."""

    batch: torch.Tensor
    row: int

    # What torch's documentation has for subclasses whose results are no subclass.
    __torch_function__: Any = torch._C._disabled_torch_function_impl

    def __reduce_ex__(self, protocol: Any) -> Any:
        """As a plain tensor: with its row only."""
        return _same, (self.as_subclass(torch.Tensor),)


@contextmanager
def one_thread() -> Iterator[None]:
    """Work on single samples, by this thread alone, as in a DataLoader's worker.

    Else torch wakes a thread a core for each small tensor, and these wait for the next one by spinning: on
    cores that are busy, that costs a hundred times what the work does.
    """
    threads = torch.get_num_threads()
    if threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class BatchMemory:
    """Memory for the batches of one data set. It is used again when nobody holds it, and never pickled."""

    def __init__(self) -> None:
        self._pools: dict[str, BufferPool] = {}

    def __reduce__(self) -> Any:
        return BatchMemory, ()

    def take(self, name: str, samples: int, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
        """A batch of so many samples. In a DataLoader's worker, its parent has it without a copy."""
        if get_worker_info() is not None:
            return _shared((samples, *shape), dtype)
        if samples * math.prod(shape) * np.dtype(dtype).itemsize > POOLED_BYTES:
            return torch.from_numpy(np.empty((samples, *shape), dtype))
        pool = self._pools.get(name)
        if (
            pool is None
            or pool.shape[0] < samples
            or (pool.shape[1:], pool.dtype) != (shape, np.dtype(dtype))
        ):
            pool = self._pools[name] = BufferPool((samples, *shape), dtype)
        return torch.from_numpy(pool.take()[:samples])


def _shared(shape: Sequence[int], dtype: str) -> torch.Tensor:
    empty = torch.from_numpy(np.empty(0, dtype))
    size_bytes = math.prod(shape) * empty.itemsize
    storage: Any = torch.UntypedStorage
    return empty.set_(storage._new_shared(size_bytes, device="cpu")).resize_(tuple(shape))


def neighbours(batch: torch.Tensor) -> list[Neighbour]:
    """The rows of a batch."""
    rows = []
    for number, row in enumerate(batch.unbind()):
        neighbour = row.as_subclass(Neighbour)
        neighbour.batch, neighbour.row = batch, number
        rows.append(neighbour)
    return rows


def side_by_side(values: Sequence[Any], memory: BatchMemory, name: str = "") -> Sequence[Any]:
    """Samples as rows of one batch, if they are tensors of one kind, or dicts of such; else as they are.

    They are copied by this thread alone: torch's stack would wake all its threads for it.
    """
    first = values[0]
    if isinstance(first, dict) and all(isinstance(of, dict) and of.keys() == first.keys() for of in values):
        columns = {of: side_by_side([value[of] for value in values], memory, of) for of in first}
        return [{of: column[at] for of, column in columns.items()} for at in range(len(values))]
    kind = _kind(first)
    if kind is None or any(_kind(value) != kind for value in values):
        return values
    outer_first = sorted(range(first.ndim), key=lambda side: -first.stride(side))  # as it lies in memory
    rows = [value.permute(outer_first).numpy() for value in values]
    batch = memory.take(f"made {name}", len(rows), rows[0].shape, rows[0].dtype.str)
    for place, row in zip(batch.numpy(), rows, strict=True):
        np.copyto(place, row)
    inner = sorted(range(first.ndim), key=outer_first.__getitem__)
    return neighbours(batch.permute(0, *(1 + side for side in inner)))


def _kind(value: Any) -> tuple[Any, ...] | None:
    """What must be alike for samples to be one batch. None: it is no plain tensor with numbers in it."""
    if type(value) is not torch.Tensor or value.dtype not in _NUMBERS or value.layout != torch.strided:
        return None
    if value.device.type != "cpu" or value.requires_grad or not value.ndim:
        return None
    return value.shape, value.dtype


def _collate(rows: Sequence[Neighbour], *, collate_fn_map: CollateMap = None) -> torch.Tensor:
    """The batch itself, if these are all of its rows, in order; else a stack of them."""
    batch = rows[0].batch
    if len(rows) == len(batch) and all(
        row.batch is batch and row.row == number for number, row in enumerate(rows)
    ):
        return batch
    plain = [row.as_subclass(torch.Tensor) for row in rows]
    stacked: torch.Tensor = collate_tensor_fn(plain, collate_fn_map=collate_fn_map)
    return stacked


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


default_collate_fn_map[Neighbour] = _collate
