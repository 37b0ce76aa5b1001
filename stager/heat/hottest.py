"""Which samples are worth keeping in so many bytes: the hottest, across data sets. A pure decision.

By heat alone, whatever a sample's size, as eviction goes: two orders would have them change places for ever.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from stager.heat.heat import Floats
from stager.reader.values import Numbers


class Likely(NamedTuple):
    """Samples of one data set that are likely to be read, and what each takes."""

    samples: Numbers
    heat: Floats
    row_bytes: float


def hottest_within(likely: Sequence[Likely], budget_bytes: float) -> list[Numbers]:
    """Of each data set the samples that belong into a budget of so many bytes, the hottest first."""
    heat = np.concatenate([np.zeros(0), *(part.heat for part in likely)])
    sizes = np.concatenate([np.zeros(0), *(np.full(len(part.samples), part.row_bytes) for part in likely)])
    which = np.concatenate(
        [np.zeros(0, dtype=np.int64), *(np.full(len(part.samples), at) for at, part in enumerate(likely))]
    )
    place = np.concatenate([np.zeros(0, dtype=np.int64), *(np.arange(len(part.samples)) for part in likely)])
    order = np.argsort(-heat, kind="stable")
    chosen = order[: int(np.searchsorted(np.cumsum(sizes[order]), budget_bytes, side="right"))]
    return [part.samples[place[chosen[which[chosen] == at]]] for at, part in enumerate(likely)]
