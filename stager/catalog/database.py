"""The catalog's file: opened, checked, and every statement's error told in our words."""

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

import xxhash

from stager.atomic import PRIVATE
from stager.catalog.schema import SCHEMA, SCHEMA_VERSION
from stager.clock import SYSTEM, Clock
from stager.errors import CacheError, NoSpace

LOG_BYTES: Final = 32 + 1100 * (24 + 4096)  # the 1,000 pages after which SQLite empties it, and some more
# What the machine refuses, of SQLite's primary result codes. Whatever else it says, the file is damaged.
_MACHINE: Final = {
    sqlite3.SQLITE_PERM, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_AUTH,
}  # fmt: skip


DAMAGE: Final = (sqlite3.Error, UnicodeDecodeError)  # Python's module stumbles over its own message


class CatalogBroken(CacheError):
    """The file is no catalog, or a damaged one: it can be made anew from the shards."""

    def __init__(self, message: str) -> None:
        super().__init__(message, hint="restart the service: it makes the catalog anew from the shards")


class CatalogOld(Exception):
    """The catalog is of an older version: see upgrade.py."""


class Database:
    """One connection, used by one thread at a time."""

    def __init__(self, path: Path, clock: Clock = SYSTEM, is_new: bool = False) -> None:
        """`is_new`: make the file. One that is there already has tables, or it is damaged."""
        self._path, self._clock = path, clock
        _make_private(path)
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            self._open(path, is_new)
        except DAMAGE as error:
            self._db.close()
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in _MACHINE:
                told = f"{path} cannot be opened: {error}"
                raise CacheError(told, hint="check the disk and its permissions") from None
            raise CatalogBroken(f"{path}: {error}") from None
        except BaseException:
            self._db.close()
            raise

    def _open(self, path: Path, is_new: bool) -> None:
        self._db.execute("PRAGMA locking_mode = EXCLUSIVE")  # no -shm, on which others could hold locks
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")  # NORMAL loses what was acknowledged at a power cut
        self._db.execute("PRAGMA foreign_keys = ON")
        self._db.execute("PRAGMA busy_timeout = 5000")
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        if version == 0 and not is_new:
            raise CatalogBroken(f"{path} has no version")
        if version == 0:
            with self.transaction():
                for statement in SCHEMA.split(";\n"):
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        elif (version == SCHEMA_VERSION) != (self._schema() == _schema_of_ours()):  # a flipped bit in one
            raise CatalogBroken(f"{path} has other tables than its version {version}")
        elif 0 < version < SCHEMA_VERSION:
            raise CatalogOld
        elif version != SCHEMA_VERSION:
            raise CacheError(
                f"{path} has version {version}, this stager knows {SCHEMA_VERSION}",
                hint="use the newer stager, or another [cache] dir",
            )
        elif self._db.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
            raise CatalogBroken(f"{path}: quick_check failed")
        self._allocate_log()

    def _schema(self) -> list[tuple[str, str]]:
        return _schema_of(self._db)

    def _allocate_log(self) -> None:
        """Take the disk that the log will need now: when the disk is full, it shall not grow.

        SQLite begins again at its start once it has so many pages, reads what is valid, and no more.
        """
        with suppress(OSError), self._path.with_name(f"{self._path.name}-wal").open("r+b") as log:
            os.posix_fallocate(log.fileno(), 0, LOG_BYTES)

    def close(self) -> None:
        self._db.close()

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
        except DAMAGE as error:
            raise self._known(error) from None
        finally:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")

    def _known(self, error: Exception) -> CacheError:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_FULL:
            return NoSpace(f"{self._path}: the disk is full", hint="free some disk, or stager evict DATASET")
        if code not in _MACHINE:
            return CatalogBroken(f"{self._path}: {error}")
        return CacheError(f"{self._path}: {error}", hint="check the disk of the cache")

    def _ask(self, query: str, values: tuple[Any, ...] = ()) -> list[Any]:
        """All rows of a query. Raise CatalogBroken if the file is damaged there."""
        try:
            return self._db.execute(query, values).fetchall()
        except DAMAGE as error:
            raise self._known(error) from None

    def _checked(self, row: Sequence[Any]) -> Sequence[Any]:
        """A row without its sum, which comes last. Raise CatalogBroken if that is another one."""
        if row_sum(*row[:-1]) != row[-1]:
            raise CatalogBroken(f"{self._path}: a row does not match its sum")
        return row[:-1]


def row_sum(*values: Any) -> int:
    """A checksum of some columns of a row, that SQLite can keep."""
    return xxhash.xxh3_64_intdigest(repr(values).encode("utf-8", "surrogateescape")) >> 1


@cache
def _schema_of_ours() -> list[tuple[str, str]]:
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(SCHEMA)
        return _schema_of(db)


def _schema_of(db: sqlite3.Connection) -> list[tuple[str, str]]:
    """The tables that a file has, as they were written down."""
    rows = db.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name").fetchall()
    return [(name, " ".join(sql.split())) for name, sql in rows if name != "sqlite_sequence"]


def _make_private(catalog: Path) -> None:
    """Have the catalog, and the log that SQLite keeps beside it, be for nobody else's eyes and locks."""
    os.close(os.open(catalog, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE))
    catalog.with_name(f"{catalog.name}-shm").unlink(missing_ok=True)
    for path in (catalog, catalog.with_name(f"{catalog.name}-wal")):
        if path.exists():
            path.chmod(PRIVATE)
