"""Which bytes are asked of a source at once: parts that lie close together in one object come in one read."""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from stager.reader.values import Enclosed, ObjectInfo, Part, Unlisted

READ_BYTES_MAX: Final = 4 << 20  # parts are joined to no more: a tar comes in pieces of this size
GAP_BYTES_MAX: Final = 64 << 10  # a request costs as much as these bytes


class Span(NamedTuple):
    """Where a part lies in what was read."""

    read: int
    start: int
    stop: int | None  # None: all that came


def plan_reads(parts: Sequence[Part]) -> tuple[list[Part], dict[Part, Span]]:
    """What to read, in the order in which it is needed first, and where each part lies in it.

    Where most of an object is wanted, it is read once, in pieces, and split; else each part by its range. A
    part that its object has no bytes for is read alone, and fails alone.
    """
    by_object: dict[ObjectInfo, dict[Part, int]] = {}
    for number, part in enumerate(parts):
        by_object.setdefault(part.info, {}).setdefault(part, number)
    groups = [group for numbers in by_object.values() for group in _groups(numbers)]
    number_of = {part: number for numbers in by_object.values() for part, number in numbers.items()}
    groups.sort(key=lambda group: min(number_of[part] for part in group))
    reads = [_joined(group) for group in groups]
    spans = {
        part: _span(at, part, read)
        for at, (read, group) in enumerate(zip(reads, groups, strict=True))
        for part in group
    }
    return reads, spans


def _span(at: int, part: Part, read: Part) -> Span:
    if isinstance(part.info, Unlisted | Enclosed):  # how long it is nobody knows yet
        return Span(at, 0, None)
    return Span(at, part.start - read.start, part.start - read.start + part.size)


def _groups(parts: Iterable[Part]) -> list[list[Part]]:
    """Parts of one object that are read together."""
    groups: list[list[Part]] = []
    start = stop = wanted = 0
    for part in sorted(parts, key=lambda part: (part.start, part.size)):
        first, end = part.start, part.start + part.size
        gap = max(first - stop, 0)
        vain = stop - start - wanted + gap
        pays = gap <= GAP_BYTES_MAX or vain <= wanted + part.size
        is_whole = end <= part.info.size
        if groups and is_whole and pays and max(end, stop) - start <= READ_BYTES_MAX:
            groups[-1].append(part)
            wanted, stop = wanted + max(end - max(first, stop), 0), max(end, stop)
        else:
            groups.append([part])
            start, stop, wanted = (first, end, part.size) if is_whole else (0, READ_BYTES_MAX + 1, 0)
    return groups


def _joined(group: list[Part]) -> Part:
    if len(group) == 1:
        return group[0]
    stop = max(part.start + part.size for part in group)
    return Part(group[0].info, group[0].start, stop)
