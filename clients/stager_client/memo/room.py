"""Room for a result before it is written: the service makes it, or we do where there is no service."""

import os
import time

from stager.errors import NoService, NoSpace
from stager.reader.memo.room import Kept, longest_unused, over_part
from stager.reader.memo.store import MemoStore
from stager.reader.service import Service, find_socket
from stager.reader.settings import Settings

ANSWER_S = 10.0


def find_room(settings: Settings, store: MemoStore, name: str, key: str, size_bytes: int) -> None:
    """Have room for a result in the cache's budget. Raise NoSpace if there is none to be had."""
    body = {"key": key, "size_bytes": size_bytes}
    try:
        _service(settings).post(f"/memos/{name}/room", body, ANSWER_S)
    except NoService:
        _make_room(settings, store, key, size_bytes)


def tell_kept(settings: Settings, name: str, key: str) -> None:
    """Say that a result is written. A service that is away counts it when it starts."""
    try:
        _service(settings).post(f"/memos/{name}/kept", {"key": key}, ANSWER_S)
    except NoService:
        return


def _service(settings: Settings) -> Service:
    return Service(find_socket(None, settings.socket))


def _make_room(settings: Settings, store: MemoStore, key: str, size_bytes: int) -> None:
    disk = os.statvfs(store.directory)
    disk_bytes, free_bytes = disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize
    capacity_bytes = settings.capacity.of(disk_bytes)
    results = [result for result in store.results() if result.key != key]
    victims = over_part(results, size_bytes, capacity_bytes)
    kept = [result for result in results if result not in victims]
    shards = settings.cache_dir.glob("datasets/*/shards/*")
    used_bytes = sum(path.stat().st_size for path in shards) + sum(result.size_bytes for result in kept)
    reserve_bytes = settings.reserve.of(disk_bytes)
    gone_bytes = sum(result.size_bytes for result in victims)
    room_bytes = min(capacity_bytes - used_bytes, free_bytes + gone_bytes - reserve_bytes)
    more = longest_unused(kept, size_bytes - room_bytes)
    if room_bytes + sum(result.size_bytes for result in more) < size_bytes:
        raise NoSpace(
            f"{settings.cache_dir}: {size_bytes:,} bytes needed, {max(room_bytes, 0):,} left",
            hint="stager evict DATASET, a larger [cache] capacity, or free some disk",
        )
    _remove(store, [*victims, *more])


def _remove(store: MemoStore, victims: list[Kept]) -> None:
    for result in victims:
        store.remove(result.name, result.key, time.time(), "for a newer result")
