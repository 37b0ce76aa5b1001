"""The durable record of data sets, shards, failures and jobs. With counts.py, all the SQL there is."""

import json
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from stager.claim import make_private
from stager.counts import Counts
from stager.errors import CacheError, NoSpace
from stager.model import Numbers
from stager.rows import DatasetRow, FailureRow, Holdings, LossRow, ShardRow
from stager.schema import MIGRATIONS, SCHEMA, SCHEMA_VERSION

SHARD_NUMBERS_AHEAD: Final = 4096
LOG_BYTES: Final = 32 + 1100 * (24 + 4096)  # the 1,000 pages after which SQLite empties it, and some more
JOBS_KEPT: Final = 1000
LOSSES_KEPT: Final = 1000
_SHARD: Final = "number, dataset, format, bytes, samples, is_pinned, created_at, is_asked"
GONE: Final = (
    0xFFFFFFFF  # a row of a shard that is dead: its sample was evicted, or is in no manifest any more
)


class CatalogBroken(Exception):
    """The file is no catalog, or a damaged one."""


class Catalog:
    """One connection, used by one thread at a time. Every public write is one durable transaction."""

    def __init__(self, path: Path) -> None:
        self._path = path
        make_private(path)
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            self._open(path)
        except sqlite3.OperationalError as error:
            self._db.close()
            told = f"{path} cannot be opened: {error}"
            raise CacheError(told, hint="check the disk and its permissions") from None
        except sqlite3.DatabaseError as error:
            self._db.close()
            raise CatalogBroken(str(error)) from None
        except BaseException:
            self._db.close()
            raise

    def _open(self, path: Path) -> None:
        self._db.execute("PRAGMA locking_mode = EXCLUSIVE")  # no -shm, on which others could hold locks
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")  # NORMAL loses what was acknowledged at a power cut
        self._db.execute("PRAGMA foreign_keys = ON")
        self._db.execute("PRAGMA busy_timeout = 5000")
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        self.is_new = version == 0
        if self.is_new:
            with self.transaction():
                for statement in SCHEMA.split(";\n"):
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        elif version in MIGRATIONS:
            with self.transaction():
                for statement in MIGRATIONS[version].split(";\n"):
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA user_version = {version + 1}")
            self._open(path)
        elif version != SCHEMA_VERSION:
            raise CacheError(
                f"{path} has version {version}, this stager knows {SCHEMA_VERSION}",
                hint="use the newer stager, or another [cache] dir",
            )
        elif self._db.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
            raise CatalogBroken("quick_check failed")
        self._allocate_log()
        self.counts = Counts(self._db, self.transaction)

    def _allocate_log(self) -> None:
        """Take the disk that the log will need now: when the disk is full, it shall not grow.

        SQLite begins again at its start once it has so many pages, reads what is valid, and no more.
        """
        with suppress(OSError), self._path.with_name(f"{self._path.name}-wal").open("r+b") as log:
            os.posix_fallocate(log.fileno(), 0, LOG_BYTES)

    def close(self) -> None:
        self._db.close()

    def prune(self) -> None:
        """Forget readers that have been silent for long, all but the last jobs, and fold old counts."""
        with self.transaction():
            self.counts.prune_readers()
            self.counts.fold()
            self._db.execute(
                "DELETE FROM jobs WHERE state != 'queued' AND id <= (SELECT max(id) FROM jobs) - ?",
                (JOBS_KEPT,),
            )

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing; a transaction inside another one is part of it."""
        if self._db.in_transaction:
            yield
            return
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            raise self._known(error) from None
        finally:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")

    def _known(self, error: sqlite3.Error) -> CacheError:
        if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL:
            return NoSpace(f"{self._path}: the disk is full", hint="free some disk, or stager evict DATASET")
        return CacheError(f"{self._path}: {error}", hint="check the disk of the cache")

    # Data sets

    def put_dataset(self, name: str, recipe: str, manifest: str, spec: str) -> DatasetRow:
        """Record what a name stands for now."""
        with self.transaction():
            self._db.execute("UPDATE datasets SET is_current = 0 WHERE name = ?", (name,))
            self._db.execute(
                "INSERT INTO datasets (name, recipe, manifest, spec, scanned_at, is_current)"
                " VALUES (?,?,?,?,?,1) ON CONFLICT (name, recipe) DO UPDATE SET"
                " manifest = excluded.manifest, spec = excluded.spec,"
                " scanned_at = excluded.scanned_at, is_current = 1",
                (name, recipe, manifest, spec, time.time()),
            )
        (row,) = [row for row in self.datasets() if row.name == name and row.recipe == recipe]
        return row

    def datasets(self) -> list[DatasetRow]:
        rows = self._db.execute(
            "SELECT id, name, recipe, manifest, spec, scanned_at, is_current, origin_reads, origin_bytes"
            " FROM datasets ORDER BY name, id"
        )
        return [
            DatasetRow(number, name, recipe, manifest, spec, at, bool(is_current), reads, read_bytes)
            for number, name, recipe, manifest, spec, at, is_current, reads, read_bytes in rows
        ]

    def forget_dataset(self, dataset: int) -> None:
        """Drop a data set that has no shards left."""
        with self.transaction():
            for table in ("failures", "losses"):
                self._db.execute(f"DELETE FROM {table} WHERE dataset = ?", (dataset,))  # noqa: S608
            self._db.execute("DELETE FROM datasets WHERE id = ?", (dataset,))

    def count_origin(self, dataset: int, reads: int, read_bytes: int) -> None:
        with self.transaction():
            self._db.execute(
                "UPDATE datasets SET origin_reads = origin_reads + ?, origin_bytes = origin_bytes + ?"
                " WHERE id = ?",
                (reads, read_bytes, dataset),
            )

    # Shards

    def reserve_shard_numbers(self) -> range:
        """Numbers that no shard had before, not even one that a crash took away."""
        with self.transaction():
            row = self._db.execute("SELECT value FROM about WHERE key = 'next_shard'").fetchone()
            top = self._db.execute("SELECT coalesce(max(number), 0) FROM shards").fetchone()[0]
            first = max(row[0] if row else 1, top + 1)
            self._db.execute(
                "INSERT OR REPLACE INTO about VALUES ('next_shard', ?)", (first + SHARD_NUMBERS_AHEAD,)
            )
        return range(first, first + SHARD_NUMBERS_AHEAD)

    def skip_shard_numbers(self, used: int) -> None:
        """For a catalog that was lost: stay clear of numbers up to `used`, and of those then reserved."""
        with self.transaction():
            first = used + 1 + SHARD_NUMBERS_AHEAD
            self._db.execute("INSERT OR REPLACE INTO about VALUES ('next_shard', ?)", (first,))

    def add_shard(self, row: ShardRow) -> None:
        with self.transaction():
            self._db.execute(
                f"INSERT INTO shards ({_SHARD}) VALUES (?,?,?,?,?,?,?,?)",  # noqa: S608
                (
                    row.number,
                    row.dataset,
                    row.format,
                    row.bytes,
                    _pack(row.samples),
                    row.is_pinned,
                    row.created_at,
                    row.is_asked,
                ),
            )

    def shards(self, dataset: int | None = None) -> list[ShardRow]:
        return self._shards("WHERE ?1 IS NULL OR dataset = ?1 ORDER BY number", dataset)

    def _shards(self, where: str, value: int | None) -> list[ShardRow]:
        rows = self._db.execute(f"SELECT {_SHARD} FROM shards {where}", (value,))  # noqa: S608
        return [
            ShardRow(number, dataset, kind, size, _unpack(blob), bool(is_pinned), at, bool(is_asked))
            for number, dataset, kind, size, blob, is_pinned, at, is_asked in rows
        ]

    def holdings(self, dataset: int) -> Holdings:
        """What the shards of a data set add up to, without looking into them."""
        rows = self._db.execute(
            "SELECT format, count(*), sum(is_pinned), sum(bytes)"
            " FROM shards WHERE dataset = ? GROUP BY format ORDER BY format",
            (dataset,),
        ).fetchall()
        formats = tuple(row[0] for row in rows)
        return Holdings(formats, *(sum(row[at] for row in rows) for at in range(1, 4)))

    def pinned_shards(self, dataset: int) -> list[ShardRow]:
        return self._shards("WHERE dataset = ? AND is_pinned", dataset)

    def shard_numbers(self, dataset: int) -> set[int]:
        return {row[0] for row in self._db.execute("SELECT number FROM shards WHERE dataset = ?", (dataset,))}

    def evictable(self, dataset: int) -> Numbers:
        """Numbers of the shards of a data set that are not pinned."""
        rows = self._db.execute("SELECT number FROM shards WHERE dataset = ? AND NOT is_pinned", (dataset,))
        return np.asarray([row[0] for row in rows], dtype=np.int64)

    def shard(self, number: int) -> ShardRow:
        (row,) = self._shards("WHERE number = ?", number)
        return row

    def find_shard(self, number: int) -> ShardRow | None:
        return next(iter(self._shards("WHERE number = ?", number)), None)

    def put_samples(self, shards: Iterable[ShardRow]) -> None:
        """Record which samples shards hold now."""
        with self.transaction():
            self._db.executemany(
                "UPDATE shards SET samples = ? WHERE number = ?",
                [(_pack(shard.samples), shard.number) for shard in shards],
            )

    def remove_shards(self, numbers: Iterable[int]) -> None:
        with self.transaction():
            self._db.executemany("DELETE FROM shards WHERE number = ?", [(number,) for number in numbers])

    def pin_shards(self, numbers: Iterable[int], pinned: bool) -> None:
        with self.transaction():
            self._db.executemany(
                "UPDATE shards SET is_pinned = ? WHERE number = ?", [(pinned, number) for number in numbers]
            )

    def renumber(self, dataset: int, numbers: Numbers) -> None:
        """Follow a data set to a new manifest: `numbers` has, for each old sample, the new number or -1."""
        with self.transaction():
            known = np.append(numbers, -1)  # of a dead row, which is -1, too
            self.put_samples(
                replace(shard, samples=known[shard.samples])
                for shard in self.shards(dataset)
                if not np.array_equal(known[shard.samples], shard.samples)
            )
            for loss in self._db.execute(
                "SELECT id, samples FROM losses WHERE dataset = ?", (dataset,)
            ).fetchall():
                moved = numbers[_unpack(loss[1])]
                self._db.execute(
                    "UPDATE losses SET samples = ? WHERE id = ?", (_pack(moved[moved >= 0]), loss[0])
                )
            failures = self.failures(dataset)
            self._db.execute("DELETE FROM failures WHERE dataset = ?", (dataset,))
            for failure in failures:
                number = int(numbers[failure.sample])
                if number >= 0:
                    self.add_failures(dataset, [(number, failure.key, failure.reason, failure.detail)])

    def add_loss(self, dataset: int, loss: LossRow) -> None:
        """Remember samples that are resident no more."""
        with self.transaction():
            self._db.execute(
                "INSERT INTO losses (dataset, at, reason, detail, samples) VALUES (?,?,?,?,?)",
                (dataset, loss.at, loss.reason, loss.detail, _pack(loss.samples)),
            )
            self._db.execute(
                "DELETE FROM losses WHERE id <= (SELECT max(id) FROM losses) - ?", (LOSSES_KEPT,)
            )

    def losses(self, dataset: int) -> list[LossRow]:
        """The oldest first."""
        rows = self._db.execute(
            "SELECT at, reason, detail, samples FROM losses WHERE dataset = ? ORDER BY id", (dataset,)
        )
        return [LossRow(at, reason, detail, _unpack(blob)) for at, reason, detail, blob in rows]

    # Failures

    def add_failures(self, dataset: int, failures: Iterable[tuple[int, bytes, str, str]]) -> None:
        """Record (sample number, key, reason, detail) of samples that cannot be had."""
        with self.transaction():
            self._db.executemany(
                "INSERT OR REPLACE INTO failures VALUES (?,?,?,?,?,?)",
                [(dataset, *failure, time.time()) for failure in failures],
            )

    def failures(self, dataset: int) -> list[FailureRow]:
        rows = self._db.execute(
            "SELECT dataset, sample, key, reason, detail, at FROM failures WHERE dataset = ? ORDER BY sample",
            (dataset,),
        )
        return [FailureRow(*row) for row in rows]

    def remove_failures(self, dataset: int, samples: Iterable[int]) -> None:
        with self.transaction():
            self._db.executemany(
                "DELETE FROM failures WHERE dataset = ? AND sample = ?", [(dataset, int(s)) for s in samples]
            )

    # Jobs

    def add_job(self, dataset: str, request: Mapping[str, Any]) -> int:
        with self.transaction():
            cursor = self._db.execute(
                "INSERT INTO jobs (dataset, state, request, result, created_at)"
                " VALUES (?, 'queued', ?, '{}', ?)",
                (dataset, json.dumps(request), time.time()),
            )
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def end_job(self, job: int, state: str, result: Mapping[str, Any]) -> None:
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
        row = self._db.execute(
            "SELECT result FROM jobs WHERE id = ? AND state != 'queued'", (job,)
        ).fetchone()
        return json.loads(row[0]) if row else None

    def unfinished_jobs(self) -> list[tuple[int, dict[str, Any], dict[str, Any]]]:
        """(id, request, note) of jobs that a stop or a crash cut off."""
        rows = self._db.execute("SELECT id, request, result FROM jobs WHERE state = 'queued' ORDER BY id")
        return [(row[0], json.loads(row[1]), json.loads(row[2])) for row in rows]


def _pack(samples: Numbers) -> bytes:
    return np.where(samples < 0, GONE, samples).astype("<u4").tobytes()


def _unpack(blob: bytes) -> Numbers:
    samples = np.frombuffer(blob, dtype="<u4").astype(np.int64)
    samples[samples == GONE] = -1
    return samples
