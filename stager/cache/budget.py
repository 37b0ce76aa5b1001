"""The bytes we may use: reserved before they are written, so that neither limit is ever passed."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from stager.errors import NoSpace
from stager.reader.amount import Amount

FILES_FLOOR: Final = 8  # left for the catalog's own files, and for others


class Books(Protocol):
    """The bytes of one place: the disk, or memory."""

    used_bytes: int  # by what is there
    reserved_bytes: int  # for what is being written


class Reservation:
    """Bytes for a file that is being written. It ends once: charged with what was written, or released."""

    def __init__(self, books: Books, size_bytes: int) -> None:
        self._books, self.size_bytes, self._is_open = books, size_bytes, True
        books.reserved_bytes += size_bytes

    def charge(self, written_bytes: int) -> None:
        """The file is there, and counts from now on."""
        self.release()
        self._books.used_bytes += written_bytes

    def release(self) -> None:
        """There is no file."""
        assert self._is_open, "a reservation ends once"
        self._is_open = False
        self._books.reserved_bytes -= self.size_bytes


@dataclass(slots=True)
class Budget:
    """`capacity` bounds what we keep; `reserve` is left free on the disk for others."""

    directory: Path
    capacity: Amount
    reserve: Amount
    used_bytes: int = 0
    reserved_bytes: int = 0

    def take(self, size_bytes: int) -> Reservation:
        """Reserve bytes that are about to be written; raise NoSpace if they do not fit."""
        if size_bytes > self.room_bytes():
            raise self.refusal(size_bytes)
        return Reservation(self, size_bytes)

    def room_bytes(self) -> int:
        """How much more could be reserved now."""
        if self._is_out_of_files():
            return 0
        disk_bytes, free_bytes = self._disk()
        in_budget = self.capacity.of(disk_bytes) - self.used_bytes
        on_disk = free_bytes - self.reserve.of(disk_bytes)
        return min(in_budget, on_disk) - self.reserved_bytes

    def free_before(self, size_bytes: int) -> int:
        """How much must be free on the disk right before so many bytes are written, to leave the reserve."""
        disk_bytes, _ = self._disk()
        return size_bytes + self.reserve.of(disk_bytes)

    def is_spent(self, size_bytes: int) -> bool:
        """Whether so many bytes more would be over the capacity, whatever the disk has."""
        disk_bytes, _ = self._disk()
        return self.used_bytes + self.reserved_bytes + size_bytes > self.capacity.of(disk_bytes)

    def refusal(self, size_bytes: int) -> NoSpace:
        """The error that says which of the two limits is in the way."""
        disk_bytes, free_bytes = self._disk()
        capacity, reserve = self.capacity.of(disk_bytes), self.reserve.of(disk_bytes)
        need, room = say_bytes(size_bytes), say_bytes(max(self.room_bytes(), 0))
        if self.is_spent(size_bytes):
            return NoSpace(
                f"{self.directory}: {need} needed, {room} left of a capacity of {say_bytes(capacity)}",
                hint="stager evict DATASET, fewer classes, or a larger [cache] capacity",
            )
        if self._is_out_of_files():
            return NoSpace(
                f"{self.directory}: the disk has room for fewer than {FILES_FLOOR} files more",
                hint="remove some files: df -i shows how many a disk can have",
            )
        return NoSpace(
            f"{self.directory}: {need} needed, {room} left: "
            f"the disk has {say_bytes(free_bytes)} free, and the reserve is {say_bytes(reserve)}",
            hint="free some disk, or a smaller [cache] reserve",
        )

    def to_json(self) -> dict[str, int]:
        disk_bytes, free_bytes = self._disk()
        return {
            "capacity_bytes": self.capacity.of(disk_bytes),
            "used_bytes": self.used_bytes,
            "reserve_bytes": self.reserve.of(disk_bytes),
            "free_bytes": free_bytes,
        }

    def _is_out_of_files(self) -> bool:
        """A file cannot be reserved, as bytes can. Some file systems have no limit, and say 0."""
        disk = os.statvfs(self.directory)
        return disk.f_files > 0 and disk.f_favail < FILES_FLOOR

    def _disk(self) -> tuple[int, int]:
        disk = os.statvfs(self.directory)
        return disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize


def check_free(directory: Path, least_bytes: int) -> None:
    """Raise NoSpace if less is free: others may have taken what was there when it was reserved."""
    disk = os.statvfs(directory)
    if disk.f_bavail * disk.f_frsize < least_bytes:
        raise NoSpace(
            f"{directory}: other programs have filled the disk, down to the reserve", hint="free some disk"
        )


def say_bytes(size_bytes: float) -> str:
    """Bytes for people: 1.5 GB."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size_bytes) < 1000:
            return f"{size_bytes:.0f} B" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:.1f} TB"
