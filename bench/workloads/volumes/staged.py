"""stager's runs on a volume, each in a process of its own."""

import json
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from bench.peers.common import Answer, Task, memory_mb, peak_memory, say
from bench.workloads.volumes.made import PATCH, PATCH_BYTES, SEED, chunks_of
from stager_client.torch import RandomPatch, StagedDataset, StagedLoader

CHECKED: Final = 40


def loader_of(task: Task, **more: Any) -> StagedLoader:
    options: dict[str, Any] = {
        "seed": SEED, "cut": RandomPatch(PATCH), "length": task["patches"], "threads": task["threads"], **more
    }  # fmt: skip
    return StagedLoader(StagedDataset(task["dataset"]), 1, **options)


def cold(task: Task) -> Answer:
    """Epoch 0 from an empty cache; the clock runs from the opening of the data set."""
    began = time.perf_counter()
    loader = loader_of(task, rank=task.get("rank", 0), world_size=task.get("ranks", 1))
    first_s, at_s, corners = 0.0, [], []
    for _, where in loader:
        at_s.append(time.perf_counter() - began)
        first_s = first_s or at_s[0]
        corners.append(where[0, 1:].tolist())
    seen: set[Any] = set()
    last_new = 0
    for number, corner in enumerate(corners):
        if not seen.issuperset(found := chunks_of(corner)):
            last_new = number
            seen.update(found)
    return {
        "first_patch_s": first_s,
        "seconds": at_s[-1],
        "patches_epoch_0": len(at_s) / at_s[-1],
        "chunks_s": len(seen) / at_s[last_new],
        "corners": corners,
    }


def warm(task: Task) -> Answer:
    """Epochs that are staged: the first, which compares all checksums, is not counted."""
    before = memory_mb()
    loader = loader_of(task)
    drain(loader)
    told = check(task, loader)
    answer = timed(task, lambda: loader)
    peak = peak_memory(partial(drain, loader))
    return {**answer, **told, "memory_mb": peak["anonymous"] - before["anonymous"]}


def drain(loader: Any) -> None:
    deque(loader, 0)


def check(task: Task, loader: StagedLoader) -> Answer:
    """Some patches against the volume, voxel by voxel."""
    raw = np.load(task["raw"], mmap_mode="r")
    for number, (patch, where) in enumerate(loader):
        _, *corner = where[0].tolist()
        right = raw[tuple(slice(at, at + side) for at, side in zip(corner, PATCH, strict=True))]
        if not np.array_equal(patch.numpy().reshape(PATCH), right):
            return {"check": f"patch {number} is another one"}
        if number == CHECKED:
            break
    return {"check": f"{CHECKED} patches are the volume's"}


def timed(task: Task, epoch: Callable[[], Any]) -> Answer:
    """Epochs until the time is over: MB of patches a second."""
    began, count = time.perf_counter(), 0
    while not count or time.perf_counter() - began < task["seconds_min"]:
        for patch, *_ in epoch():
            int(patch.flatten()[0])  # it is there
            count += len(patch)
    return {"rate": count * PATCH_BYTES / 1e6 / (time.perf_counter() - began)}


class Shared(IterableDataset[Any]):
    """Patches for the workers of a DataLoader: each reads as one rank of all."""

    def __init__(self, task: Task) -> None:
        self._task, self._loader = task, None

    def __iter__(self) -> Iterator[Any]:
        worker: Any = torch.utils.data.get_worker_info()
        if self._loader is None:
            more = {"rank": worker.id, "world_size": worker.num_workers, "drop_last": True}
            self._loader: Any = loader_of({**self._task, "threads": 1}, **more)
        for patch, _ in self._loader:
            yield patch, np.zeros(0)


class Nothing(IterableDataset[Any]):
    """Patches that cost nothing: what workers take by themselves."""

    def __init__(self, patches: int) -> None:
        self._patches = patches

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self._patches):
            yield torch.zeros((1, *PATCH), dtype=torch.uint8), np.zeros(0)


def workers(task: Task) -> Answer:
    """The same in the workers of a DataLoader, and what each takes more than with no data at all."""
    count = task["workers"]
    by_workers = partial(DataLoader, batch_size=None, num_workers=count, persistent_workers=True)
    plain: Any = by_workers(Nothing(task["patches"] // count))
    before = memory_mb()
    plain_mb = peak_memory(partial(drain, plain))["all"] - before["all"]
    del plain
    loader: Any = by_workers(Shared(task))
    drain(loader)
    answer = timed(task, lambda: loader)
    peak_mb = peak_memory(partial(drain, loader))["all"] - before["all"]
    return {**answer, "memory_worker_mb": (peak_mb - plain_mb) / count}


def steps(task: Task) -> Answer:
    """The user's loop: a patch, then a step that computes for so long; epoch 0 and 1, and the steps alone."""
    compute_s, loader = task["compute_s"], loader_of(task)
    took = []
    for _ in range(2):
        began = time.perf_counter()
        for _ in loader:
            time.sleep(compute_s)
        took.append((time.perf_counter() - began) / task["patches"])
    began = time.perf_counter()
    for _ in range(task["patches"]):
        time.sleep(compute_s)
    alone = (time.perf_counter() - began) / task["patches"]
    return {"steps_epoch_0": 1 / took[0], "steps_epoch_1": 1 / took[1], "over_compute": took[1] / alone}


def epochs(task: Task) -> Answer:
    """Some epochs with a cache that is too small: GETs of each, and what was read."""
    from urllib.request import urlopen

    def gets() -> int:
        with urlopen(task["endpoint_url"] + "/-/stats") as answer:  # noqa: S310
            return int(json.load(answer)["get"])

    loader, asked, corners = loader_of(task), [gets()], []
    for _ in range(task["epochs"]):
        corners += [where[0, 1:].tolist() for _, where in loader]
        asked.append(gets())
    return {"asked": asked, "corners": corners}


VERBS: Final[dict[str, Callable[[Task], Answer]]] = {
    "cold": cold, "warm": warm, "workers": workers, "steps": steps, "epochs": epochs,
}  # fmt: skip

if __name__ == "__main__":
    told = json.loads(sys.argv[1])
    say(VERBS[told["verb"]](told))
