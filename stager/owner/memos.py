"""Kept results in the budget. Clients write them; the owner makes room, counts and removes them."""

from collections.abc import Callable, Iterable
from typing import Any, Final

from stager.cache.budget import Reservation
from stager.cache.cache import Cache
from stager.errors import UsageError, known_error, nearest
from stager.reader.memo.record import MemoRecord
from stager.reader.memo.room import Kept, longest_unused, over_part
from stager.reader.memo.store import MemoStore

RESERVED_S: Final = 600.0  # a client that has not written its result by then is taken for dead


class Memos:
    """Every method runs on the loop's thread."""

    def __init__(self, cache: Cache, give_way: Callable[[int, str], None]) -> None:
        """`give_way`: has samples that are needed latest make room for so many bytes, and of what."""
        self._store, self._budget, self._clock = MemoStore(cache.directory), cache.budget, cache.clock
        self._give_way = give_way
        self._reserved: dict[tuple[str, str], tuple[Reservation, float]] = {}
        self._used_bytes = 0
        self._store.remove_leftovers()
        self._count()

    def rows(self) -> list[dict[str, Any]]:
        """Each function that has results here."""
        return rows_of(self._count())

    def why(self, name: str) -> dict[str, Any]:
        """Why each result of a function was computed, the newest first; also of those that were evicted."""
        records = sorted(self._store.records(self._known(name)), key=lambda record: -record.made_at)
        return {"name": name, "results": [_told(record) for record in records]}

    def evict(self, name: str) -> dict[str, Any]:
        """Take away all results of a function."""
        results = [result for result in self._count() if result.name == self._known(name)]
        freed = self._remove(results, "by stager evict")
        return {"name": name, "results": len(results), "bytes": freed}

    def find_room(self, name: str, key: str, size_bytes: int) -> dict[str, Any]:
        """Reserve bytes for a result that is about to be written. Raise NoSpace if they are not to be had.

        Up to their part of the capacity, results take the place of samples that are needed latest, then of
        results that nobody used for longest.
        """
        self._store.folder(name, key)  # which refuses what is no name
        others = [result for result in self._count() if (result.name, result.key) != (name, key)]
        victims = over_part(others, size_bytes, self._budget.to_json()["capacity_bytes"])
        why = f"for a newer result, of {name}"
        self._remove(victims, why)
        if size_bytes > self._budget.room_bytes():
            self._give_way(size_bytes - self._budget.room_bytes(), f"the memo {name}")
        left = [result for result in others if result not in victims]
        short_bytes = size_bytes - self._budget.room_bytes()
        if sum(result.size_bytes for result in left) >= short_bytes:
            self._remove(longest_unused(left, short_bytes), why)
        self._release(name, key)
        reservation = self._budget.take(size_bytes)
        self._reserved[name, key] = reservation, self._clock.now() + RESERVED_S
        return {}

    def kept(self, name: str, key: str) -> dict[str, Any]:
        """A result is written, or will not be: what is there counts."""
        self._release(name, key)
        self._count()
        return {}

    def _count(self) -> list[Kept]:
        """What is there now. Clients may have written while no service was there to be told."""
        now = self._clock.now()
        for (name, key), (_, until) in list(self._reserved.items()):
            if now > until:
                self._release(name, key)
        results = self._store.results()
        used_bytes = sum(result.size_bytes for result in results)
        self._budget.used_bytes += used_bytes - self._used_bytes
        self._used_bytes = used_bytes
        return results

    def _release(self, name: str, key: str) -> None:
        if (name, key) in self._reserved:
            reservation, _ = self._reserved.pop((name, key))
            reservation.release()

    def _remove(self, results: Iterable[Kept], why: str) -> int:
        freed = 0
        try:
            for result in results:
                self._store.remove(result.name, result.key, self._clock.wall(), why)
                freed += result.size_bytes
        except OSError as error:
            raise known_error(error, str(self._store.directory)) from None
        finally:
            self._count()
        return freed

    def _known(self, name: str) -> str:
        if name not in (names := self._store.names()):
            raise UsageError(
                f"nothing of a function {name!r} is kept here",
                hint=nearest(name, names) or "keep results by @memo: docs/MEMO.md",
            )
        return name


def rows_of(kept: Iterable[Kept]) -> list[dict[str, Any]]:
    """Each function that has results, from its results."""
    by_name: dict[str, list[Kept]] = {}
    for result in kept:
        by_name.setdefault(result.name, []).append(result)
    return [
        {
            "name": name,
            "results": len(results),
            "bytes": sum(result.size_bytes for result in results),
            "used_at": max(result.used_at for result in results),
        }
        for name, results in sorted(by_name.items())
    ]


def _told(record: MemoRecord) -> dict[str, Any]:
    return {
        "key": record.digest,
        "is_kept": not record.gone_at,
        "bytes": record.size_bytes,
        "made_at": record.made_at,
        "took_s": record.took_s,
        "why": list(record.why),
        "gone_at": record.gone_at or None,
        "gone_why": record.gone_why or None,
    }
