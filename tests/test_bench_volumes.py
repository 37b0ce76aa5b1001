"""What the bench of volumes compares stager with is what it says it is."""

from functools import cache

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.workloads.volumes.made import CHUNK, PATCH, chunks_of, distinct_chunks, least_misses, lru_misses


def fewest(requests: tuple[int, ...], room: int) -> int:
    """Misses of the best of all ways to keep and to drop, tried out."""

    @cache
    def from_(at: int, kept: frozenset[int]) -> int:
        if at == len(requests):
            return 0
        have = kept | {requests[at]}
        ways = [have] if len(have) <= room else [have - {one} for one in have]
        return (requests[at] not in kept) + min(from_(at + 1, way) for way in ways)

    return from_(0, frozenset())


@settings(deadline=None)
@given(st.lists(st.integers(0, 4), max_size=12), st.integers(0, 4))
def test_the_offline_optimum_is_the_best_of_all_ways(requests: list[int], room: int) -> None:
    best = fewest(tuple(requests), room)
    assert least_misses(requests, room) == best <= lru_misses(requests, room)


@given(st.tuples(*(st.integers(0, 1024 - side) for side in PATCH)))
def test_the_chunks_of_a_patch_are_those_with_a_voxel_of_it(corner: tuple[int, int, int]) -> None:
    of_side = [
        sorted({at // CHUNK for at in range(begin, begin + side)})
        for begin, side in zip(corner, PATCH, strict=True)
    ]
    every = [tuple(at) for at in np.stack(np.meshgrid(*of_side, indexing="ij"), -1).reshape(-1, 3).tolist()]
    assert sorted(chunks_of(corner)) == sorted(every)
    assert distinct_chunks(np.array([corner, corner])) == len(every)
