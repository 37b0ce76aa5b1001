"""Files of scratch that tasks read: what a worker unpacks, once for all shards that are made of it."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from stager.cache.budget import Reservation, say_bytes
from stager.cache.cache import Cache
from stager.dispatch.task import Lot
from stager.errors import NoSpace
from stager.reader.values import Unpacked

log = logging.getLogger("stager")

IDLE_S: Final = 60.0  # that no task has read a file: then it goes
FILE_BYTES: Final = 4096  # of a file beside what is in it


class NeverRoom(NoSpace):
    """What has to be unpacked is more than there will be room for, however long one waits."""


@dataclass(slots=True)
class _File:
    path: Path
    reservation: Reservation
    used_at: float
    tasks: set[int] = field(default_factory=set)  # that read it


class UnpackedFiles:
    """Within the budget. What no task reads goes when room is needed, or after a while."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._files: dict[str, _File] = {}  # the one used last is the last
        self.make_room: Callable[[int, str], None] | None = None  # for a reader: others' samples go

    def take(self, task: int, lot: Lot, beside_bytes: int = 0) -> Path | None:
        """Have room for all that must be unpacked for a lot; return where, if anything must be.

        `beside_bytes`: for which there must be room, too.

        Raise NoSpace if there is none now, NeverRoom if there will be none.
        """
        infos = lot.dataset.records.unpacked(lot.samples)
        try:
            for info in infos:
                self._take(task, lot, info, beside_bytes)
        except NoSpace:
            self.release(task)
            raise
        return self._cache.scratch if infos else None

    def _take(self, task: int, lot: Lot, info: Unpacked, beside_bytes: int) -> None:
        name = info.file_name(lot.dataset.spec.source)
        file = self._files.pop(name, None)
        if file is None:
            path = self._cache.scratch / name
            file = _File(path, self._reserve(lot, info, beside_bytes), 0.0)
        file.tasks.add(task)
        self._files[name] = file

    def _reserve(self, lot: Lot, info: Unpacked, beside_bytes: int) -> Reservation:
        budget, size_bytes = self._cache.budget, info.size + FILE_BYTES
        room_bytes = size_bytes + beside_bytes
        for name in [name for name, file in self._files.items() if not file.tasks]:
            if room_bytes <= budget.room_bytes():
                break
            self._drop(name)
        if room_bytes > budget.room_bytes() and lot.is_for_reader and self.make_room is not None:
            self.make_room(room_bytes - budget.room_bytes(), lot.dataset.name)
        if room_bytes <= budget.room_bytes():
            return budget.take(size_bytes)
        refusal = budget.refusal(room_bytes)
        if self._files:  # other tasks read what is there: when they are done, there is room
            raise refusal
        raise NeverRoom(f"{refusal.message}; so much is {info.key} while it is unpacked", hint=refusal.hint)

    def release(self, task: int) -> None:
        """A task is over."""
        for file in self._files.values():
            if task in file.tasks:
                file.tasks.remove(task)
                file.used_at = self._cache.clock.now()

    def drop_idle(self) -> None:
        """Remove what nobody has read for a while."""
        now = self._cache.clock.now()
        for name, file in list(self._files.items()):
            if not file.tasks and now - file.used_at > IDLE_S:
                self._drop(name)

    def paths(self) -> set[Path]:
        """Files that may be there."""
        return {path for file in self._files.values() for path in (file.path, _part(file.path))}

    def _drop(self, name: str) -> None:
        file = self._files.pop(name)
        for path in (file.path, _part(file.path)):
            path.unlink(missing_ok=True)
        file.reservation.release()
        log.debug("unpacked file removed bytes=%s", say_bytes(file.reservation.size_bytes))


def _part(path: Path) -> Path:
    """What it is called while it is written."""
    return path.with_name(f"{path.name}.part")
