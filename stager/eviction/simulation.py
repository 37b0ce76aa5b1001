"""What a cache would have hit: policies run over a trace of reads.

A trace is the sequence of sample numbers in the order they are read, by all readers together. Sizes are
counted in samples. A policy may also let a sample pass without keeping it.
"""

import heapq
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from stager.reader.values import Numbers
from stager.sessions.course import NEVER


def next_uses(trace: Numbers) -> Numbers:
    """For each read, when the same sample is read next; NEVER if it is not."""
    order = np.argsort(trace, kind="stable")
    follows = np.full(len(trace), NEVER, dtype=np.int64)
    same = trace[order[1:]] == trace[order[:-1]]
    follows[order[:-1][same]] = order[1:][same]
    return follows


def hits_of_lru(trace: Sequence[int], capacity: int) -> int:
    """Keep what was read last: what most caches do."""
    kept: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for sample in trace:
        if sample in kept:
            hits += 1
            kept.move_to_end(sample)
        elif capacity:
            if len(kept) >= capacity:
                kept.popitem(last=False)
            kept[sample] = None
    return hits


def hits_of_never_evict(trace: Sequence[int], capacity: int) -> int:
    """Keep what came first, for ever."""
    kept: set[int] = set()
    hits = 0
    for sample in trace:
        if sample in kept:
            hits += 1
        elif len(kept) < capacity:
            kept.add(sample)
    return hits


def hits_of_next_use(trace: Numbers, capacity: int, known: int = NEVER) -> int:
    """Keep what is needed soonest, which only a known order can tell: this many reads of it ahead.

    With all of it known it is the optimum (Belady's, with bypass).
    """
    uses = next_uses(trace)
    uses[uses - np.arange(len(uses)) > known] = NEVER
    follows = uses.tolist()
    kept: dict[int, int] = {}  # sample -> its next use
    latest: list[tuple[int, int]] = []  # (-next use, sample), some of them out of date
    hits = 0
    for sample, use in zip(trace.tolist(), follows, strict=True):
        if sample in kept:
            hits += 1
        elif capacity == 0:
            continue
        elif len(kept) >= capacity:
            while kept.get(latest[0][1]) != -latest[0][0]:
                heapq.heappop(latest)
            if -latest[0][0] <= use:
                continue  # what is kept is all needed sooner: let it pass
            del kept[heapq.heappop(latest)[1]]
        kept[sample] = use
        heapq.heappush(latest, (-use, sample))
    return hits
