"""Which kept results go so that another one fits. Pure functions: the owner of the cache or a client acts."""

from collections.abc import Iterable
from typing import Final, NamedTuple

from stager.errors import NoSpace

PART_MAX: Final = 0.5  # of the capacity that results may have together


class Kept(NamedTuple):
    """A result, and what it takes."""

    name: str
    key: str
    used_at: float
    size_bytes: int


def longest_unused(results: Iterable[Kept], need_bytes: int) -> list[Kept]:
    """The results that nobody used for longest, as many as give so many bytes back, if there are."""
    victims: list[Kept] = []
    for result in sorted(results, key=lambda result: result.used_at):
        if need_bytes <= 0:
            break
        victims.append(result)
        need_bytes -= result.size_bytes
    return victims


def over_part(results: Iterable[Kept], size_bytes: int, capacity_bytes: int) -> list[Kept]:
    """The results that go so that all have no more than their part of the capacity with one more."""
    part_bytes = int(PART_MAX * capacity_bytes)
    if size_bytes > part_bytes:
        raise NoSpace(
            f"the result has {size_bytes:,} bytes, and all results together may have {part_bytes:,}",
            hint="a larger [cache] capacity: results may have half of it",
        )
    results = list(results)
    return longest_unused(results, sum(result.size_bytes for result in results) + size_bytes - part_bytes)
