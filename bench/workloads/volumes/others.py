"""Patches by the ways that people have: NumPy's memmap, TensorStore, zarr-python, an LRU in each worker."""

import json
import sys
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from typing import Any, Final

import numpy as np
import torch

from bench.peers.common import Answer, Task, memory_mb, peak_memory, say
from bench.workloads.volumes.made import BUCKET, CHUNK, PATCH, PATCH_BYTES, chunks_of, some_corners

Take = Callable[[Any, Any], None]  # a patch that begins there, into this array


def box(corner: Any) -> tuple[slice, ...]:
    return tuple(slice(at, at + side) for at, side in zip(corner, PATCH, strict=True))


def memmap(task: Task) -> Take:
    raw = np.load(task["raw"], mmap_mode="r")

    def take(corner: Any, out: Any) -> None:
        np.copyto(out, raw[box(corner)])

    return take


def tensorstore(task: Task) -> Take:
    """Its cache is the context's; it decodes on its own threads, as many as there are cores."""
    import tensorstore as ts

    spec = {
        "driver": "zarr",
        "kvstore": {"driver": "file", "path": task["zarr"]},
        "context": {"cache_pool": {"total_bytes_limit": task["cache_bytes"]}},
        "recheck_cached_data": False,
    }
    store = ts.open(spec, open=True, read=True).result()
    if task["cache_bytes"] > task["side"] ** 3:
        store.read().result()

    def take(corner: Any, out: Any) -> None:
        np.copyto(out, store[box(corner)].read().result())

    return take


def zarr_array(task: Task) -> Any:
    import zarr

    if "endpoint_url" not in task:
        return zarr.open_array(task["zarr"], mode="r")
    from obstore.store import S3Store

    store = S3Store(  # the keys are those of every run of the bench
        BUCKET, prefix="scan.zarr", endpoint=task["endpoint_url"], virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )  # fmt: skip
    return zarr.open_array(zarr.storage.ObjectStore(store, read_only=True), mode="r")


def zarr_python(task: Task) -> Take:
    array = zarr_array(task)

    def take(corner: Any, out: Any) -> None:
        out[...] = array[box(corner)]

    return take


def lru(task: Task) -> Take:
    """villa's way: decoded chunks stay in the worker's memory, and the oldest goes."""
    array, cached = zarr_array(task), OrderedDict[Any, Any]()

    def chunk_at(at: tuple[int, ...]) -> Any:
        if at not in cached:
            cached[at] = array[tuple(slice(n * CHUNK, (n + 1) * CHUNK) for n in at)]
        cached.move_to_end(at)
        while len(cached) > task["cache_bytes"] // CHUNK**3:
            cached.popitem(last=False)
        return cached[at]

    def take(corner: Any, out: Any) -> None:
        for at in chunks_of(corner):
            begin = np.multiply(at, CHUNK)
            low, high = np.maximum(corner, begin), np.minimum(np.add(corner, PATCH), begin + CHUNK)
            to = tuple(slice(a, b) for a, b in zip(low - corner, high - corner, strict=True))
            out[to] = chunk_at(at)[tuple(slice(a, b) for a, b in zip(low - begin, high - begin, strict=True))]

    return take


WAYS: Final[dict[str, Callable[[Task], Take]]] = {
    "memmap": memmap, "tensorstore": tensorstore, "zarr-python": zarr_python, "lru": lru,
}  # fmt: skip


def by_threads(task: Task) -> Answer:
    """Patches at random into arrays that are used again, by some threads, until the time is over."""
    take, count = WAYS[task["way"]](task), task["threads"]
    rooms = [np.zeros(PATCH, np.uint8) for _ in range(count)]
    corners = [some_corners(1 << 13, task["side"], thread).tolist() for thread in range(count)]

    def run(thread: int) -> int:
        done = 0
        for corner in cycle(corners[thread]):
            if time.perf_counter() >= until:
                break
            take(corner, rooms[thread])
            done += 1
        return done

    with ThreadPoolExecutor(count) as pool:
        until = time.perf_counter() + task.get("warm_s", 1.0)  # what is cached is cached then
        list(pool.map(run, range(count)))
        began = time.perf_counter()
        until = began + task["seconds_min"]
        done = sum(pool.map(run, range(count)))
        seconds = time.perf_counter() - began
    return {"rate": done * PATCH_BYTES / 1e6 / seconds}


class Patches(torch.utils.data.Dataset[Any]):
    """What people write: a patch at a random place."""

    def __init__(self, task: Task) -> None:
        self._task, self._corners = task, some_corners(task["patches"], task["side"]).tolist()
        self._take: Take | None = None

    def __len__(self) -> int:
        return len(self._corners)

    def __getitem__(self, at: int) -> Any:
        self._take = self._take or WAYS[self._task["way"]](self._task)
        out = np.empty(PATCH, np.uint8)
        self._take(self._corners[at], out)
        return torch.from_numpy(out)


def loader_of(task: Task) -> Any:
    """Batches of one, as its users have them. Spawned: TensorStore and zarr's event loop cannot be forked."""
    return torch.utils.data.DataLoader(
        Patches(task), 1, num_workers=task["workers"], persistent_workers=True,
        multiprocessing_context="spawn",
    )  # fmt: skip


def by_workers(task: Task) -> Answer:
    """In a DataLoader: a first epoch, then those that are timed; and what all of it takes."""
    before, loader = memory_mb()["all"], loader_of(task)
    peak_mb = peak_memory(lambda: deque(loader, 0))["all"]
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < task["seconds_min"]:
        count += sum(len(batch) for batch in loader)
    rate = count * PATCH_BYTES / 1e6 / (time.perf_counter() - began)
    return {"rate": rate, "memory_worker_mb": (peak_mb - before) / task["workers"]}


def first_epoch(task: Task) -> Answer:
    """The same from the first patch on: then the workers have started."""
    batches = iter(loader_of(task))
    next(batches)
    began = time.perf_counter()
    count = sum(len(batch) for batch in batches)
    step_s = (time.perf_counter() - began) / count
    return {"patches_epoch_0": 1 / step_s, "step_s": step_s}


def decode(task: Task) -> Answer:
    """All chunks from memory by zarr's codec on all cores, and nothing kept: chunks a second."""
    from pathlib import Path

    from numcodecs import blosc

    blosc.use_threads = False
    data = [path.read_bytes() for path in map(Path, task["files"])]
    with ThreadPoolExecutor(task["threads"]) as pool:
        began = time.perf_counter()
        list(pool.map(lambda body: len(blosc.decompress(body)), data))
        return {"chunks_s": len(data) / (time.perf_counter() - began)}


VERBS: Final[dict[str, Callable[[Task], Answer]]] = {
    "threads": by_threads, "workers": by_workers, "first_epoch": first_epoch, "decode": decode,
}  # fmt: skip

if __name__ == "__main__":
    told = json.loads(sys.argv[1])
    say(VERBS[told["verb"]](told))
