"""What a scan counts of computed samples: of each once. Later scans take it from the last one."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stager.interfaces import ComputedLayout, Listing
from stager.reader.samples.computed.rules import Rule
from stager.reader.samples.manifest import Manifest
from stager.reader.samples.runs import Runs
from stager.reader.values import digest_of

Counted = npt.NDArray[np.uint32]
AT_ONCE: Final = 1 << 18  # samples that are looked up together


def foreground_of(
    layout: ComputedLayout,
    rules: Sequence[Rule],
    numbers: Runs,
    listing: Listing,
    newest: Manifest | None,
    told: Callable[[int], None],
) -> tuple[list[pa.Table], dict[str, str]]:
    """A table with a column for each field that is counted, if any is; and the digest of each column.

    `numbers`: of the rules' samples. Those that the newest manifest has are not counted again.
    """
    columns: dict[str, Counted] = {}
    before = 0
    for field, count in layout.counters.items():
        parts: list[Counted] = []
        place = 0
        for rule in rules:
            counted, missing = _known(newest, numbers, place, rule.count, field)
            if len(missing):
                counted[missing[:]] = count(rule, missing, listing, partial(_tell, told, before))
                before += len(missing)
            parts.append(counted)
            place += rule.count
        columns[field] = np.concatenate(parts)
    digests = {field: digest_of(column.tobytes()) for field, column in columns.items()}
    return [pa.table({field: pa.array(of) for field, of in columns.items()})] if columns else [], digests


def _tell(told: Callable[[int], None], before: int, done: int) -> None:
    told(before + done)


def _known(
    newest: Manifest | None, numbers: Runs, place: int, count: int, field: str
) -> tuple[Counted, Runs]:
    """What the last scan counted of the samples at these places, and the rows of which it counted nothing."""
    counted, missing = np.zeros(count, np.uint32), Runs([(0, count)])
    counts = newest.foreground(field) if newest is not None else None
    if newest is None or counts is None:
        return counted, missing
    for start in range(0, count, AT_ONCE):
        some = numbers[place + start : place + min(start + AT_ONCE, count)]
        places = newest.places_of(some)
        is_known = places >= 0
        counted[start : start + len(some)][is_known] = counts.voxels[places[is_known]]
        missing = missing.less(Runs.of_rising(start + np.flatnonzero(is_known)))
    return counted, missing
