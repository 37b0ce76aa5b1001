"""Why samples are missing: the reason a reader is told, and the sentence a person is told."""

import time

import numpy as np

from stager.cache.cache import Cache
from stager.cache.dataset import Dataset
from stager.reader.index import is_failed, is_resident, shard_of
from stager.reader.values import Mask, Numbers

_MEANS = {
    "late": "it is planned, and not staged yet",
    "over_budget": "there is no room for it",
    "not_planned": "no job and no reader has asked for it",
}


def reasons_of(dataset: Dataset, missing: Numbers, planned: Mask, has_room: bool) -> dict[int, str]:
    """One of MISS_REASONS for each missing sample: what was lost says how; else it never was there."""
    reasons = {}
    for number, is_planned in zip(missing.tolist(), planned.tolist(), strict=True):
        departure = dataset.departure_log.of(number)
        otherwise = "late" if is_planned else "not_planned"
        reasons[number] = departure.reason if departure else otherwise if has_room else "over_budget"
    return reasons


def explain(cache: Cache, dataset: Dataset, place: int, planned: Mask, has_room: bool) -> str:
    """One sentence about one sample, by its place in the newest manifest."""
    number = int(dataset.manifest.numbers[place])
    word = dataset.index.words[number : number + 1]
    if is_resident(word)[0]:
        shard = int(shard_of(word)[0])
        row = cache.catalog.find_shard(shard)
        since = f"since {_clock(row.created_at)}" if row else "in memory, or not yet durable"
        return f"resident in shard {shard:08x} {since}"
    if is_failed(word)[0]:
        failure = next(row for row in cache.catalog.failures(dataset.id) if row.sample == number)
        detail = with_table_row(failure.detail, dataset.manifest.table_row(place))
        return f"not resident: failed at {_clock(failure.at)}: {failure.reason}: {detail}"
    reason = reasons_of(dataset, np.asarray([number]), planned, has_room)[number]
    departure = dataset.departure_log.of(number)
    return f"not resident: {reason}" + (
        f" at {_clock(departure.at)}: {departure.detail}" if departure else f": {_MEANS[reason]}"
    )


def with_table_row(detail: str, table_row: str) -> str:
    """What is wrong with a sample, and the row of the table that has it."""
    return f"{table_row}: {detail}" if table_row else detail


def _clock(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
