"""Rows of one batch, for a plain DataLoader: torch's collate hands out the batch, and copies nothing.

Stacked one by one, photos of NHWC memory are turned into NCHW pixel by pixel, on all cores, which is most of
the time of such a loader.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info
from torch.utils.data._utils.collate import collate_tensor_fn, default_collate_fn_map

CollateMap = dict[Any, Callable[..., Any]] | None


class Neighbour(torch.Tensor):
    """One row of a batch: a tensor like any other. Whatever is worked out from it is a plain one."""

    batch: torch.Tensor
    row: int

    # What torch's documentation has for subclasses whose results are no subclass.
    __torch_function__: Any = torch._C._disabled_torch_function_impl

    def __reduce_ex__(self, protocol: Any) -> Any:
        """As a plain tensor: with its row only."""
        return _same, (self.as_subclass(torch.Tensor),)


def new_batch(shape: Sequence[int], dtype: str) -> torch.Tensor:
    """Memory for a batch, of numpy's dtype; in a DataLoader's worker, its parent has it without a copy."""
    empty = torch.from_numpy(np.empty(0, dtype))
    if get_worker_info() is None:
        return empty.new_empty(tuple(shape))
    size_bytes = math.prod(shape) * empty.itemsize
    storage: Any = torch.UntypedStorage
    return empty.new_empty(0).set_(storage._new_shared(size_bytes, device="cpu")).resize_(tuple(shape))


def neighbours(batch: torch.Tensor) -> list[Neighbour]:
    """The rows of a batch."""
    rows = []
    for number, row in enumerate(batch.unbind()):
        neighbour = row.as_subclass(Neighbour)
        neighbour.batch, neighbour.row = batch, number
        rows.append(neighbour)
    return rows


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
