"""What a cache keeps of the chunks of random patches: near the best there is, and far above LRU.

The decisions are the real ones: the cut's rows, the courses of sessions, what is fetched together, and the
swap of the evictor. Only the clock, the disk and the reader are simulated. A chunk is a hit if all that a
patch needs of it is there: else it is fetched, whatever else of it is.
"""

import numpy as np
import pytest

from stager.eviction.policy import swap, waits_for, waits_together
from stager.eviction.simulation import hits_of_lru, hits_of_next_use
from stager.reader.cuts.cut import Draws
from stager.reader.cuts.patches.random_patch import RandomPatch
from stager.reader.samples.computed.grid import Grid
from stager.reader.values import Numbers
from stager.sessions.course import Course, Uses

GRID = Grid((384, 512, 512), (32, 32, 32), (128, 128, 128))
PER_CHUNK = 64
PART = 0.25  # of the chunks have room
POINTS_OFF_MAX = 3.0
EPOCHS = 3
RATE = 1000.0  # bricks/s
DRAWS = 250


def order_of(cut: RandomPatch, seed: int, epoch: int) -> tuple[Numbers, Numbers]:
    """The bricks that an epoch reads, one after the other; and where each draw ends."""
    every = np.arange(DRAWS)
    rows = cut.rows(Draws.of(seed, epoch, every, every))
    assert rows.ends is not None
    return rows.positions, rows.ends


def simulated(cut: RandomPatch, seed: int) -> tuple[float, float, float]:
    """The parts of all requests for a chunk that are hits: of stager's decisions, of the best, and of LRU."""
    room, count = int(PART * len(GRID)), len(GRID)
    here = np.zeros(count, np.bool_)
    everything = np.full(count, np.inf)
    hits, trace = 0, []
    for epoch in range(EPOCHS):
        (order, ends), (after, _) = order_of(cut, seed, epoch), order_of(cut, seed, epoch + 1)
        uses, position = Uses(np.concatenate([order, after])), 0
        for end in ends.tolist():
            course = Course("job", False, uses, lambda of: np.ones(len(of), np.bool_), position, RATE, 60.0)
            needed = order[position:end]
            missing = np.unique(GRID.firsts(needed[~here[needed]]))
            chunks = np.unique(GRID.firsts(needed))
            hits += len(chunks) - len(missing)
            trace.append(chunks)
            for chunk in missing.tolist():  # each in a lot of its own
                coming = GRID.mates(np.asarray([chunk]))
                coming = coming[~here[coming]]
                is_read = np.isin(coming, needed)
                waits = np.where(
                    is_read,
                    waits_for(coming, [course], everything[coming], skip=True),
                    waits_for(coming, [course], everything[coming], skip=False),
                )
                kept = np.flatnonzero(here)
                waits_here = waits_for(kept, [course], everything[kept], skip=False)
                waits_here = waits_together(waits_here, GRID.firsts(kept))
                latest = np.lexsort((kept, -waits_here))
                firsts = np.flatnonzero(np.diff(GRID.firsts(kept[latest]), prepend=-1))
                sizes = np.diff(firsts, append=len(latest))
                keep, victims = swap(
                    float(room - len(kept)),
                    waits.min(keepdims=True),
                    float(len(coming)),
                    waits_here[latest][firsts],
                    sizes,
                )
                here[kept[latest[: sizes[:victims].sum()]]] = False
                here[coming] = bool(keep)
            assert here.sum() <= room
            position = end
    reads = np.concatenate(trace)
    best, lru = (of(reads.tolist() if of is hits_of_lru else reads, room // PER_CHUNK)  # type: ignore[operator]
                 for of in (hits_of_next_use, hits_of_lru))  # fmt: skip
    return hits / len(reads), best / len(reads), lru / len(reads)


@pytest.mark.parametrize("seed", [0, 1])
def test_with_room_for_a_quarter_of_the_chunks_patches_hit_nearly_as_often_as_can_be(seed: int) -> None:
    cut = RandomPatch((72, 136, 136), grids=[[GRID.shape, GRID.brick, GRID.cell, 0]])  # type: ignore[arg-type]
    ours, best, lru = simulated(cut, seed)
    told = f"hits {ours:.1%}, at best {best:.1%}, LRU {lru:.1%}"
    assert 100 * (best - ours) <= POINTS_OFF_MAX, told
    assert ours > lru + 0.1, told
