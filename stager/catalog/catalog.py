"""The durable record of data sets, shards, failures and jobs. With counts.py, all the SQL there is."""

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from stager.catalog.counts import Counts
from stager.catalog.database import Database, row_sum
from stager.catalog.rows import DatasetRow, DepartureRow, FailureRow, Holdings, LeaseRow, ListRow, ShardRow
from stager.clock import SYSTEM, Clock
from stager.errors import REASONS_BEFORE
from stager.reader.values import Numbers, canonical_json

SHARD_NUMBERS_AHEAD: Final = 4096
LOST_AHEAD: Final = 1 << 20  # so many more after a lost catalog: an index that has gone may have named them
JOBS_KEPT: Final = 1000
DEPARTURES_KEPT: Final = 1000
_SHARD: Final = "is_pinned, created_at, is_asked, number, dataset, format, bytes, samples, sum"
GONE: Final = (
    0xFFFFFFFF  # a row of a shard that is dead: its sample was evicted, or is in no manifest any more
)


class Catalog(Database):
    """Every public write is one durable transaction."""

    def __init__(self, path: Path, clock: Clock = SYSTEM, is_new: bool = False) -> None:
        super().__init__(path, clock, is_new)
        try:
            self.counts = Counts(self._db, self.transaction, self._ask, clock)
        except BaseException:
            self.close()
            raise

    def prune(self) -> None:
        """Forget readers that have been silent for long, all but the last jobs, and fold old counts."""
        with self.transaction():
            self.counts.prune_readers()
            self.counts.fold()
            self._db.execute(
                "DELETE FROM jobs WHERE state != 'queued' AND id <= (SELECT max(id) FROM jobs) - ?",
                (JOBS_KEPT,),
            )

    # Data sets

    def put_list(self, row: ListRow) -> None:
        """Record which samples a data set has had, and its newest manifest."""
        values = (row.name, row.lineage, json.dumps(row.segments), row.samples, row.manifest)
        with self.transaction():
            self._db.execute(
                "INSERT INTO lists VALUES (?,?,?,?,?,?) ON CONFLICT (name) DO UPDATE SET"
                " lineage = excluded.lineage, segments = excluded.segments, samples = excluded.samples,"
                " manifest = excluded.manifest, sum = excluded.sum",
                (*values, row_sum(*values)),
            )

    def lists(self) -> list[ListRow]:
        """The sample list of every data set, by name."""
        rows = self._ask("SELECT name, lineage, segments, samples, manifest, sum FROM lists ORDER BY name")
        return [
            ListRow(name, lineage, tuple(json.loads(segments)), samples, manifest)
            for name, lineage, segments, samples, manifest in map(self._checked, rows)
        ]

    def put_dataset(self, name: str, recipe: str, spec: str) -> DatasetRow:
        """Record which recipe a name stands for now."""
        with self.transaction():
            self._db.execute("UPDATE datasets SET is_current = 0 WHERE name = ?", (name,))
            self._db.execute(
                "INSERT INTO datasets (name, recipe, spec, scanned_at, is_current, sum)"
                " VALUES (?,?,?,?,1,?) ON CONFLICT (name, recipe) DO UPDATE SET"
                " spec = excluded.spec, scanned_at = excluded.scanned_at, is_current = 1, sum = excluded.sum",
                (name, recipe, spec, self._clock.wall(), row_sum(name, recipe, spec)),
            )
        (row,) = [row for row in self.datasets() if row.name == name and row.recipe == recipe]
        return row

    def datasets(self) -> list[DatasetRow]:
        """A row for each data set and recipe."""
        rows = self._ask(
            "SELECT id, scanned_at, is_current, origin_reads, origin_bytes, name, recipe, spec, sum"
            " FROM datasets ORDER BY name, id"
        )
        return [
            DatasetRow(number, name, recipe, spec, at, bool(is_current), reads, read_bytes)
            for number, at, is_current, reads, read_bytes, *summed in rows
            for name, recipe, spec in [self._checked(summed)]
        ]

    def forget_dataset(self, dataset: int) -> None:
        """Drop a data set by one recipe, with all that is recorded of it."""
        with self.transaction():
            for table in ("shards", "failures", "losses"):
                self._db.execute(f"DELETE FROM {table} WHERE dataset = ?", (dataset,))  # noqa: S608
            self._db.execute("DELETE FROM datasets WHERE id = ?", (dataset,))
            self._db.execute("DELETE FROM lists WHERE name NOT IN (SELECT name FROM datasets)")

    def rename(self, old: str, new: str) -> None:
        """Let a data set, and what is to be done with it, have another name, which nobody has."""
        with self.transaction():
            (listed,) = [row for row in self.lists() if row.name == old]
            self.put_list(replace(listed, name=new))
            for row in self.datasets():
                if row.name == old:
                    spec = canonical_json({**json.loads(row.spec), "name": new})
                    values = new, spec, row_sum(new, row.recipe, spec), row.id
                    self._db.execute("UPDATE datasets SET name = ?, spec = ?, sum = ? WHERE id = ?", values)
            self._db.execute("DELETE FROM lists WHERE name = ?", (old,))
            for job, request, _ in self.unfinished_jobs():
                if request["spec"]["name"] == old:
                    told = json.dumps({**request, "spec": {**request["spec"], "name": new}})
                    self._db.execute(
                        "UPDATE jobs SET dataset = ?, request = ? WHERE id = ?", (new, told, job)
                    )
            self._db.execute("UPDATE OR REPLACE counts SET dataset = ? WHERE dataset = ?", (new, old))

    def count_origin(self, dataset: int, reads: int, read_bytes: int) -> None:
        """Add to what was read of the source since the data set is known."""
        with self.transaction():
            self._db.execute(
                "UPDATE datasets SET origin_reads = origin_reads + ?, origin_bytes = origin_bytes + ?"
                " WHERE id = ?",
                (reads, read_bytes, dataset),
            )

    # How fast samples are staged on this machine

    def slowdown(self) -> float | None:
        """Of whole jobs against a few samples, as the last jobs have shown; None: none has yet."""
        told = self._ask("SELECT value FROM about WHERE key = 'slowdown_per_mille'")
        return next((value / 1000 for (value,) in told if isinstance(value, int) and value > 0), None)

    def keep_slowdown(self, slowdown: float) -> None:
        """How many times slower than planned samples are staged here."""
        with self.transaction():
            self._db.execute(
                "INSERT OR REPLACE INTO about VALUES ('slowdown_per_mille', ?)", (round(slowdown * 1000),)
            )

    # Shards

    def reserve_shard_numbers(self, above: int) -> range:
        """Numbers over `above` that no shard had before, not even one that a crash took away."""
        with self.transaction():
            told = self._ask("SELECT value FROM about WHERE key = 'next_shard'")
            told += self._ask("SELECT coalesce(max(number), 0) + 1 FROM shards")
            first = max(above + 1, *(value for (value,) in told if isinstance(value, int)))
            self._db.execute(
                "INSERT OR REPLACE INTO about VALUES ('next_shard', ?)", (first + SHARD_NUMBERS_AHEAD,)
            )
        return range(first, first + SHARD_NUMBERS_AHEAD)

    def skip_shard_numbers(self, used: int) -> None:
        """For a catalog that was lost: stay clear of numbers up to `used`, and of those then reserved."""
        with self.transaction():
            first = used + 1 + LOST_AHEAD
            self._db.execute("INSERT OR REPLACE INTO about VALUES ('next_shard', ?)", (first,))

    def add_shard(self, row: ShardRow) -> None:
        """It is durable: from now on it counts as staged, and survives a crash."""
        with self.transaction():
            self._db.execute(
                f"INSERT INTO shards ({_SHARD}) VALUES (?,?,?,?,?,?,?,?,?)",  # noqa: S608
                (row.is_pinned, row.created_at, row.is_asked, *_summed(row)),
            )

    def shards(self, dataset: int | None = None) -> list[ShardRow]:
        """Of one data set, or of all, by number."""
        return self._shards("WHERE ?1 IS NULL OR dataset = ?1 ORDER BY number", dataset)

    def _shards(self, where: str, value: int | None) -> list[ShardRow]:
        rows = self._ask(f"SELECT {_SHARD} FROM shards {where}", (value,))  # noqa: S608
        return [
            ShardRow(number, dataset, kind, size, _unpack(blob), bool(is_pinned), at, bool(is_asked))
            for is_pinned, at, is_asked, *summed in rows
            for number, dataset, kind, size, blob in [self._checked(summed)]
        ]

    def holdings(self, dataset: int) -> Holdings:
        """What the shards of a data set add up to, without looking into them."""
        rows = self._ask(
            "SELECT format, count(*), sum(is_pinned), sum(bytes)"
            " FROM shards WHERE dataset = ? GROUP BY format ORDER BY format",
            (dataset,),
        )
        formats = tuple(row[0] for row in rows)
        return Holdings(formats, *(sum(row[at] for row in rows) for at in range(1, 4)))

    def pinned_shards(self, dataset: int) -> list[ShardRow]:
        return self._shards("WHERE dataset = ? AND is_pinned", dataset)

    def shard_numbers(self, dataset: int) -> set[int]:
        return {row[0] for row in self._ask("SELECT number FROM shards WHERE dataset = ?", (dataset,))}

    def evictable(self, dataset: int) -> Numbers:
        """Numbers of the shards of a data set that are not pinned."""
        rows = self._ask("SELECT number FROM shards WHERE dataset = ? AND NOT is_pinned", (dataset,))
        return np.asarray([row[0] for row in rows], dtype=np.int64)

    def shard(self, number: int) -> ShardRow:
        """The one of this number, which must be there."""
        (row,) = self._shards("WHERE number = ?", number)
        return row

    def find_shard(self, number: int) -> ShardRow | None:
        """None: it is in memory, not durable yet, or gone."""
        return next(iter(self._shards("WHERE number = ?", number)), None)

    def put_samples(self, shards: Iterable[ShardRow]) -> None:
        """Record which samples shards hold now."""
        with self.transaction():
            self._db.executemany(
                "UPDATE shards SET samples = ?, sum = ? WHERE number = ?",
                [(*_summed(shard)[-2:], shard.number) for shard in shards],
            )

    def remove_shards(self, numbers: Iterable[int]) -> None:
        """Whoever does so has cleared their words before."""
        with self.transaction():
            self._db.executemany("DELETE FROM shards WHERE number = ?", [(number,) for number in numbers])

    def pin_shards(self, numbers: Iterable[int], pinned: bool) -> None:
        """Pin them, or let them go."""
        with self.transaction():
            self._db.executemany(
                "UPDATE shards SET is_pinned = ? WHERE number = ?", [(pinned, number) for number in numbers]
            )

    def renumber(self, dataset: int, numbers: Numbers) -> None:
        """Follow a data set to a new list: `numbers` has, for each old number, the new one or -1."""
        with self.transaction():
            known = np.append(numbers, -1)  # of a dead row, which is -1, too
            self.put_samples(
                replace(shard, samples=known[shard.samples])
                for shard in self.shards(dataset)
                if not np.array_equal(known[shard.samples], shard.samples)
            )
            for departure in self._ask("SELECT id, samples FROM losses WHERE dataset = ?", (dataset,)):
                moved = numbers[_unpack(departure[1])]
                self._db.execute(
                    "UPDATE losses SET samples = ? WHERE id = ?", (_pack(moved[moved >= 0]), departure[0])
                )
            failures = self.failures(dataset)
            self._db.execute("DELETE FROM failures WHERE dataset = ?", (dataset,))
            for failure in failures:
                number = int(numbers[failure.sample])
                if number >= 0:
                    self.add_failures(dataset, [(number, failure.key, failure.reason, failure.detail)])

    def add_departure(self, dataset: int, departure: DepartureRow) -> None:
        """Remember samples that are resident no more."""
        with self.transaction():
            self._db.execute(
                "INSERT INTO losses (dataset, at, reason, detail, samples) VALUES (?,?,?,?,?)",
                (dataset, departure.at, departure.reason, departure.detail, _pack(departure.samples)),
            )
            self._db.execute(
                "DELETE FROM losses WHERE id <= (SELECT max(id) FROM losses) - ?", (DEPARTURES_KEPT,)
            )

    def departures(self, dataset: int) -> list[DepartureRow]:
        """The oldest first."""
        rows = self._ask(
            "SELECT at, reason, detail, samples FROM losses WHERE dataset = ? ORDER BY id", (dataset,)
        )
        return [DepartureRow(at, reason, detail, _unpack(blob)) for at, reason, detail, blob in rows]

    # Failures

    def add_failures(self, dataset: int, failures: Iterable[tuple[int, bytes, str, str]]) -> None:
        """Record (sample number, key, reason, detail) of samples that cannot be had."""
        with self.transaction():
            self._db.executemany(
                "INSERT OR REPLACE INTO failures VALUES (?,?,?,?,?,?,?)",
                [
                    (
                        dataset,
                        sample,
                        key,
                        reason,
                        detail,
                        self._clock.wall(),
                        row_sum(dataset, sample, reason),
                    )
                    for sample, key, reason, detail in failures
                ],
            )

    def failures(self, dataset: int) -> list[FailureRow]:
        """Samples that cannot be staged, and why; reasons of older versions by today's names."""
        rows = self._ask(
            "SELECT key, detail, at, dataset, sample, reason, sum FROM failures WHERE dataset = ?"
            " ORDER BY sample",
            (dataset,),
        )
        return [
            FailureRow(number, sample, key, REASONS_BEFORE.get(reason, reason), str(detail), at)
            for key, detail, at, *summed in rows
            for number, sample, reason in [self._checked(summed)]
        ]

    def remove_failures(self, dataset: int, samples: Iterable[int]) -> None:
        """These may be tried again."""
        with self.transaction():
            self._db.executemany(
                "DELETE FROM failures WHERE dataset = ? AND sample = ?", [(dataset, int(s)) for s in samples]
            )

    # What the version before had

    def copy_rows(self, table: str, rows: Iterable[Sequence[Any]]) -> None:
        """Take over whole rows of a table."""
        for row in rows:
            places = ",".join("?" * len(row))
            self._db.execute(f"INSERT INTO {table} VALUES ({places})", row)  # noqa: S608

    def copy_jobs_and_counts(self, old: sqlite3.Connection) -> None:
        """Take over what readers counted, and the jobs: their tables are what they were."""
        for table in ("jobs", "readers", "counts"):
            cursor = old.execute(f"SELECT * FROM {table}")  # noqa: S608
            names = ",".join(column[0] for column in cursor.description)
            places = ",".join("?" * len(cursor.description))
            self._db.executemany(f"INSERT INTO {table} ({names}) VALUES ({places})", cursor)  # noqa: S608

    # Jobs

    def add_job(self, dataset: str, request: Mapping[str, Any]) -> int:
        """Record it as queued, so that a restart goes on with it; return its id."""
        with self.transaction():
            cursor = self._db.execute(
                "INSERT INTO jobs (dataset, state, request, result, created_at)"
                " VALUES (?, 'queued', ?, '{}', ?)",
                (dataset, json.dumps(request), self._clock.wall()),
            )
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def end_job(self, job: int, state: str, result: Mapping[str, Any]) -> None:
        """Its last state and its result; a restart leaves it alone."""
        with self.transaction():
            self._db.execute(
                "UPDATE jobs SET state = ?, result = ? WHERE id = ?", (state, json.dumps(result), job)
            )

    def note_job(self, job: int, note: Mapping[str, Any]) -> None:
        """Keep a note with a job that has not ended."""
        with self.transaction():
            self._db.execute(
                "UPDATE jobs SET result = ? WHERE id = ? AND state = 'queued'", (json.dumps(note), job)
            )

    def ended_job(self, job: int) -> dict[str, Any] | None:
        """How a job ended; None if there is none, or it has not."""
        rows = self._ask("SELECT result FROM jobs WHERE id = ? AND state != 'queued'", (job,))
        return json.loads(rows[0][0]) if rows else None

    def unfinished_jobs(self) -> list[tuple[int, dict[str, Any], dict[str, Any]]]:
        """(id, request, note) of jobs that a stop or a crash cut off."""
        rows = self._ask("SELECT id, request, result FROM jobs WHERE state = 'queued' ORDER BY id")
        return [(row[0], json.loads(row[1]), json.loads(row[2])) for row in rows]

    # Leases

    def put_lease(self, row: LeaseRow) -> None:
        """A session reads a version: kept over restarts."""
        with self.transaction():
            values = row.session, row.dataset, row.manifest, row.pid, row.began
            self._db.execute("INSERT OR REPLACE INTO leases VALUES (?,?,?,?,?)", values)

    def leases(self) -> list[LeaseRow]:
        rows = self._ask("SELECT session, dataset, manifest, pid, began FROM leases")
        return [LeaseRow(*row) for row in rows]

    def remove_leases(self, sessions: Iterable[str]) -> None:
        with self.transaction():
            self._db.executemany("DELETE FROM leases WHERE session = ?", [(name,) for name in sessions])


def _pack(samples: Numbers) -> bytes:
    return np.where(samples < 0, GONE, samples).astype("<u4").tobytes()


def _unpack(blob: bytes) -> Numbers:
    samples = np.frombuffer(blob, dtype="<u4").astype(np.int64)
    samples[samples == GONE] = -1
    return samples


def _summed(row: ShardRow) -> tuple[Any, ...]:
    """The columns of a shard that its sum covers, and the sum."""
    values = row.number, row.dataset, row.format, row.bytes, _pack(row.samples)
    return (*values, row_sum(*values))
