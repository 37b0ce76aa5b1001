"""What is staged together: samples that share an object, which is fetched once for all of them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np

from stager.dispatch.sizes import Sizes
from stager.dispatch.task import Lot
from stager.reader.values import Mask, Numbers

GROUP_SHARDS: Final = 4  # a shard may be so many times as large, for a part to be fetched once
SHARD_STRETCH: Final = 1.25  # times as large may a shard be, for no object to be in two

NOTHING: Final = np.zeros(0, dtype=np.int64)

IsOne = Callable[[Numbers], Mask]
Missing = Callable[[Lot], Lot | None]


def together(
    lot: Lot, is_wanted: IsOne, is_free: IsOne, sizes: Sizes, missing: Missing
) -> tuple[Lot, Numbers]:
    """A lot with what shares an object with its samples and is wanted, too; and what of it is too much.

    That is all that shares a chunk with what a reader needs: another one will need the rest, or the same one
    in its next epoch; and a chunk of which a part is resident is fetched again. Where not all of a volume
    fits, whoever builds the lot finds room for it, or leaves the rest out. `is_free`: in no task. `missing`:
    what of a lot can be staged.
    """
    dataset = lot.dataset
    if dataset.records.is_plain:
        return lot, NOTHING
    is_for_all = lot.is_for_reader and dataset.records.is_computed
    if is_for_all and not sizes.has_room_for_all(dataset):
        samples = _with_mates(lot, _both(dataset.manifest.has, is_free), missing)
        if len(samples) <= SHARD_STRETCH * sizes.shard_samples_max(dataset):
            return replace(lot, samples=samples), NOTHING
        is_for_all = False  # a chunk is more than a shard
    for way in (dataset.manifest.has, is_wanted) if is_for_all else (is_wanted,):
        found = _together(lot, _both(way, is_free), sizes, missing)
        if found is not None:
            return found
    return lot, NOTHING


def _together(lot: Lot, is_one: IsOne, sizes: Sizes, missing: Missing) -> tuple[Lot, Numbers] | None:
    """None: there is no room for it.

    If it is more than a shard should have, a lot of bricks has only the first of its samples, for chunks come
    as a whole: whoever needs the others asks again.
    """
    dataset = lot.dataset
    shards = 1 if lot.is_for_reader else GROUP_SHARDS  # who waits for a batch waits for no whole group
    most = max(int(SHARD_STRETCH * shards * sizes.shard_samples_max(dataset)), len(lot.samples))
    first, samples = lot.samples, _with_mates(lot, is_one, missing)
    while len(samples) > most and len(first) > 1 and dataset.records.is_computed:
        first = first[: len(first) // 2]
        samples = _with_mates(replace(lot, samples=first), is_one, missing)
    samples, rest = samples[:most], samples[most:]
    fits = sizes.samples_that_fit(dataset, len(samples), lot.format)
    return (replace(lot, samples=samples), rest) if fits == len(samples) else None


def _both(one: IsOne, other: IsOne) -> IsOne:
    return lambda samples: one(samples) & other(samples)


def _with_mates(lot: Lot, is_one: IsOne, missing: Missing) -> Numbers:
    """The samples of a lot, and behind them those that share an object with one and are such, too."""
    mates = np.setdiff1d(lot.dataset.records.mates(lot.samples), lot.samples)
    mates = mates[is_one(mates)]
    more = missing(replace(lot, samples=mates)) if len(mates) else None
    return lot.samples if more is None else np.concatenate([lot.samples, more.samples])
