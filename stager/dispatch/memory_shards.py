"""Shards in memory, for samples that do not fit the budget: readers have them once, then they are dropped."""

import logging
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from stager.cache.budget import Reservation
from stager.cache.cache import Cache
from stager.cache.dataset import Dataset
from stager.cache.verify import problem_of
from stager.catalog.rows import ShardRow
from stager.errors import NoSpace
from stager.reader.index import shard_of
from stager.reader.shards import SUFFIXES
from stager.reader.values import Numbers, digest_of
from stager.sessions.course import NEVER
from stager.sessions.session import Need, Sessions

log = logging.getLogger("stager")

MEMORY: Final = Path("/dev/shm")  # noqa: S108
READ_WITHIN_S: Final = 1.0  # of a reader that has waited for it


@dataclass(frozen=True, slots=True)
class Transient:
    """A shard that lies in memory. Where readers look for it, there is a link to it."""

    dataset: Dataset
    row: ShardRow
    path: Path


class Transients:
    """Bounded in bytes. What a reader needs latest goes first; without known orders, the oldest."""

    def __init__(self, cache: Cache, sessions: Sessions) -> None:
        self._cache, self._sessions = cache, sessions
        self._directory = MEMORY / f"stager-{digest_of(bytes(cache.directory))[:16]}"
        shutil.rmtree(self._directory, ignore_errors=True)  # of an owner that was killed
        self._shards: dict[int, Transient] = {}
        self.used_bytes = self.reserved_bytes = 0

    @property
    def _limit_bytes(self) -> int:
        return self._cache.config.memory.of(0)

    def take(self, size_bytes: int, dataset: Dataset, samples: Numbers) -> Reservation:
        """Reserve memory for a shard of these samples; what is needed later than they are makes room for it.

        What is needed sooner stays, though it be too much: readers wait for it, and if it gave way to what
        they need next, each would be fetched again and again. So the limit is passed by what is waited for
        at one time, and by no more: to stage ahead takes half of it.
        """
        coming = self._sessions.need(dataset, samples)
        while self._shards and self.used_bytes + self.reserved_bytes + size_bytes > self._limit_bytes:
            last = max(self._shards.values(), key=self._lateness)
            need = self._need(last)
            if coming is not None and need is not None and need.distance < coming.farthest:
                break
            self._drop(last)
        return Reservation(self, size_bytes)

    def samples_ahead(self, sample_bytes: int) -> int:
        """How many samples may be staged ahead: half of the memory is left to readers that wait."""
        ahead = [
            shard.row.bytes for shard in self._shards.values() if (need := self._need(shard)) and need.is_due
        ]
        return max(0, self._limit_bytes // 2 - self.reserved_bytes - sum(ahead)) // sample_bytes

    def _need(self, shard: Transient) -> Need | None:
        return self._sessions.need(shard.dataset, shard.row.samples)

    def _lateness(self, shard: Transient) -> tuple[bool, int]:
        """The largest goes first. Without sessions that is the oldest."""
        need = self._need(shard)
        return (True, NEVER - shard.row.number) if need is None else (not need.is_due, need.distance)

    def path_of(self, number: int, shard_format: str) -> Path:
        """Where a shard is to be written. Raise NoSpace if the folder is not ours."""
        self._directory.mkdir(mode=0o750, exist_ok=True)
        if self._directory.is_symlink() or self._directory.stat().st_uid != os.geteuid():
            raise NoSpace(
                f"{self._directory} belongs to somebody else", hint="remove it"
            )  # anyone may make one
        return self._directory / f"{number:08x}{SUFFIXES[shard_format]}"

    def publish(self, dataset: Dataset, row: ShardRow) -> None:
        """Show a complete shard to the readers."""
        path = self.path_of(row.number, row.format)
        dataset.path_of(row).symlink_to(path)
        self._cache.in_memory.add(row.number)
        self._shards[row.number] = Transient(dataset, self._cache.publish(dataset, row), path)

    def drop_passed(self) -> None:
        """Drop what every session has read. Without sessions, the oldest make room when it is needed.

        A reader without an order may have asked for it, beside the sessions: it has a moment to read it.
        """
        for shard in list(self._shards.values()):
            need = self._need(shard)
            is_new = abs(self._cache.clock.wall() - shard.row.created_at) < READ_WITHIN_S  # or set back
            if need is not None and need.distance == NEVER and not is_new:
                self._drop(shard)

    def leave(self, dataset: Dataset) -> None:
        """A data set is going: drop what of it is here."""
        for shard in list(self._shards.values()):
            if shard.dataset is dataset:
                self._drop(shard)

    def drop_bad(self, dataset: Dataset, suspects: Numbers) -> None:
        """Look at the shards of samples that a reader calls corrupt, and drop those that are."""
        for number in np.unique(shard_of(dataset.index.words[suspects])).tolist():
            shard = self._shards.get(number)
            if shard is not None and (problem := problem_of(shard.path)):
                log.error("shard dropped dataset=%s shard=%08x problem=%r", dataset.name, number, problem)
                self._drop(shard)

    def datasets(self) -> set[int]:
        """The ids of data sets that have shards here."""
        return {shard.dataset.id for shard in self._shards.values()}

    def links(self) -> set[Path]:
        """What readers look for, on the disk: the books of the catalog do not have these."""
        return {shard.dataset.path_of(shard.row) for shard in self._shards.values()}

    def close(self) -> None:
        for shard in list(self._shards.values()):
            self._drop(shard)
        shutil.rmtree(self._directory, ignore_errors=True)

    def _drop(self, shard: Transient) -> None:
        del self._shards[shard.row.number]
        self._cache.in_memory.discard(shard.row.number)
        self._cache.departures.take_from_memory(shard.dataset, shard.row)
        self.used_bytes -= shard.row.bytes
