"""The counts of readers in the catalog: the last by session and epoch, older ones folded into one row."""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final

from stager.clock import Clock

READERS_KEPT_S: Final = 7 * 86_400.0
READERS_LEAST: Final = 1_000  # however old they seem: the wall clock may have been set forward by years
READERS_KEPT: Final = 10_000  # the last totals of so many reading processes
COUNTS_KEPT: Final = 10_000  # rows of a session and epoch; what is older counts in its data set's totals
PRUNE_EVERY: Final = 1_000  # rows more than that
FOLDED: Final = ""  # in the place of a session's name: what was folded away
_COUNT: Final = "dataset, session, epoch, requests, hits, misses, wait_s, computed_s, reasons, at"
_SUMS: Final = ("requests", "hits", "misses", "wait_s", "computed_s")


class Counts:
    """A part of the catalog, with its connection and its transactions."""

    def __init__(
        self,
        db: Any,
        transaction: Callable[[], AbstractContextManager[None]],
        ask: Callable[..., list[Any]],
        clock: Clock,
    ) -> None:
        self._db, self._transaction, self._ask, self._clock = db, transaction, ask, clock
        self._rates: dict[str, float | None] = {}  # samples/s of the last reader that told, by data set
        self._rows = ask("SELECT count(*) FROM counts")[0][0]
        self._readers = ask("SELECT count(*) FROM readers")[0][0]

    def reader_totals(self, session: str, process: str) -> dict[str, Any] | None:
        """The last totals that a process of a session told; None: it has told none."""
        rows = self._ask("SELECT totals FROM readers WHERE session = ? AND process = ?", (session, process))
        return json.loads(rows[0][0]) if rows else None

    def put_reader_totals(self, session: str, process: str, totals: Mapping[str, Any]) -> None:
        """In place of those before. Now and then, those heard longest ago are forgotten."""
        with self._transaction():
            self._db.execute(
                "INSERT OR REPLACE INTO readers VALUES (?, ?, ?, ?)",
                (session, process, json.dumps(totals), self._clock.wall()),
            )
            self._readers += 1  # at most: it may have been there
            if self._readers >= READERS_KEPT + PRUNE_EVERY:
                self.prune_readers()

    def of(self, dataset: str, session: str, epoch: int) -> dict[str, Any] | None:
        """The counts of one epoch of a session."""
        return next(
            iter(self._read("dataset = ? AND session = ? AND epoch = ?", dataset, session, epoch)), None
        )

    def last_of(self, dataset: str, session: str) -> dict[str, Any] | None:
        """The counts of the last epoch of a session."""
        where = "dataset = ? AND session = ? ORDER BY epoch DESC LIMIT 1"
        return next(iter(self._read(where, dataset, session)), None)

    def all(self) -> list[dict[str, Any]]:
        """Every row, those that were folded away together under the name FOLDED."""
        return self._read("1 ORDER BY dataset, at, session, epoch")

    def forget(self, dataset: str) -> None:
        """A data set is gone."""
        with self._transaction():
            self._db.execute("DELETE FROM counts WHERE dataset = ?", (dataset,))
            self._rows = self._db.execute("SELECT count(*) FROM counts WHERE session != ''").fetchone()[0]
        self._rates.pop(dataset, None)

    def put(self, row: Mapping[str, Any]) -> None:
        """Add an epoch of a session, or put it in place of what was known of it."""
        with self._transaction():
            self._db.execute(
                "INSERT OR REPLACE INTO counts VALUES (:dataset, :session, :epoch, :requests, :hits, :misses,"
                " :wait_s, :reasons, :at, :computed_s)",
                {**row, "reasons": json.dumps(row["reasons"])},
            )
            self._rows += 1  # at most: it may have been there
            if self._rows >= COUNTS_KEPT + PRUNE_EVERY:
                self.fold()
        if row["computed_s"]:
            self._rates[row["dataset"]] = row["requests"] / row["computed_s"]

    def reader_rate(self, dataset: str) -> float | None:
        """Samples/s of the last reader of a data set while it did not wait; None: nobody told."""
        if dataset not in self._rates:
            where = "dataset = ? AND computed_s > 0 AND session != '' ORDER BY at DESC LIMIT 1"
            last = next(iter(self._read(where, dataset)), None)
            self._rates[dataset] = last["requests"] / last["computed_s"] if last else None
        return self._rates[dataset]

    def prune_readers(self) -> None:
        """Forget readers that have been silent for long, and all but the last."""
        with self._transaction():
            self._db.execute(
                "DELETE FROM readers WHERE at < ? AND (session, process) NOT IN"
                " (SELECT session, process FROM readers ORDER BY at DESC LIMIT ?)",
                (self._clock.wall() - READERS_KEPT_S, READERS_LEAST),
            )
            edge = self._db.execute(
                "SELECT at FROM readers ORDER BY at DESC LIMIT 1 OFFSET ?", (READERS_KEPT - 1,)
            ).fetchone()
            self._db.execute("DELETE FROM readers WHERE at < ?", edge or (0,))
            self._readers = self._db.execute("SELECT count(*) FROM readers").fetchone()[0]

    def fold(self) -> None:
        """Add all but the last rows up, one row a data set: totals stay what they are."""
        with self._transaction():
            edge = self._db.execute(
                "SELECT at, epoch FROM counts WHERE session != ''"
                " ORDER BY at DESC, epoch DESC LIMIT 1 OFFSET ?",
                (COUNTS_KEPT - 1,),
            ).fetchone()
            rows = self._read("session = '' OR (at, epoch) < (?, ?)", *edge) if edge else []
            for row in self._folded(rows).values():
                self._db.execute(
                    "INSERT OR REPLACE INTO counts VALUES (:dataset, :session, 0, :requests, :hits, :misses,"
                    " :wait_s, :reasons, :at, :computed_s)",
                    {**row, "reasons": json.dumps(row["reasons"])},
                )
            if edge:
                self._db.execute("DELETE FROM counts WHERE session != '' AND (at, epoch) < (?, ?)", edge)
            self._rows = self._db.execute("SELECT count(*) FROM counts WHERE session != ''").fetchone()[0]

    def _folded(self, rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
        """The sums of these rows, by data set."""
        sums: dict[str, dict[str, Any]] = {}
        for row in rows:
            empty = {"dataset": row["dataset"], "session": FOLDED, "reasons": Counter(), "at": 0.0}
            total = sums.setdefault(row["dataset"], {**empty, **dict.fromkeys(_SUMS, 0)})
            for name in _SUMS:
                total[name] += row[name]
            total["reasons"].update(row["reasons"])
            total["at"] = max(total["at"], row["at"])
        return sums

    def _read(self, where: str, *values: Any) -> list[dict[str, Any]]:
        rows = self._ask(f"SELECT {_COUNT} FROM counts WHERE {where}", values)  # noqa: S608
        named = (dict(zip(_COUNT.split(", "), row, strict=True)) for row in rows)
        return [{**row, "reasons": json.loads(row["reasons"])} for row in named if _is_sound(row)]


def _is_sound(row: Mapping[str, Any]) -> bool:
    """Whether a row is what was written. Of one that a flipped bit has made nonsense, nothing is counted."""
    try:
        reasons = json.loads(row["reasons"])
    except (TypeError, ValueError):
        return False
    numbers = (row["at"], row["epoch"], *(row[name] for name in _SUMS))
    return isinstance(reasons, dict) and all(isinstance(value, int | float) for value in numbers)
