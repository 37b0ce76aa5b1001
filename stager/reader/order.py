"""The sequence in which a session reads: a function of (seed, epoch, rank, world size) and of nothing else.

The service and every client compute it for themselves, so it is made of integer arithmetic that no library
version changes.
"""

import numpy as np

from stager.errors import UsageError
from stager.reader.samples.subset import mix
from stager.reader.values import Numbers


def epoch_order(count: int, seed: int, epoch: int) -> Numbers:
    """All positions from 0 to count - 1, shuffled by seed and epoch."""
    positions = np.arange(count, dtype=np.uint64)
    return np.argsort(mix(mix(positions, seed), epoch))  # mix is one-to-one: there are no ties


def check_rank(rank: int, world_size: int) -> None:
    """Raise UsageError if there is no such rank."""
    if not 0 <= rank < world_size:
        raise UsageError(f"rank {rank} of {world_size} makes no sense", hint="ranks count from 0")


def rank_order(order: Numbers, start: int, rank: int, world_size: int, drop_last: bool) -> Numbers:
    """What one of `world_size` readers reads of an epoch of which `start` positions have been read by all.

    Every rank gets equally many: what does not divide is dropped, or filled up from the epoch's beginning.
    """
    check_rank(rank, world_size)
    rest = order[start:]
    if drop_last:
        rest = rest[: len(rest) // world_size * world_size]
    elif len(rest) % world_size:
        rest = np.concatenate([rest, np.resize(order, world_size - len(rest) % world_size)])
    return rest[rank::world_size]
