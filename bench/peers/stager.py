"""stager's own runs, and the limits of the machine, in the project's environment."""

import json
import os
import resource
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

import stager
from bench.peers.common import (
    BATCH,
    SIDE,
    Answer,
    Epoch,
    Seen,
    Task,
    cold,
    memory_mb,
    paths,
    peak_memory,
    say,
    touched,
    warm,
)
from stager_client.augment import Augment, HorizontalFlip, RandomResizedCrop
from stager_client.torch import StagedDataset, StagedLoader

CORES: Final = len(os.sched_getaffinity(0))
ROW_BYTES: Final = SIDE * SIDE * 3


def open_epochs(task: Task) -> Epoch:
    data = StagedDataset("bench")
    augment: list[Augment] = [RandomResizedCrop(SIDE), HorizontalFlip()] if task.get("augment") else []
    batch = task.get("batch", BATCH)
    loader = StagedLoader(data, batch, shuffle=True, threads=task["workers"], augment=augment)

    def epoch() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for images, labels in loader:
            yield images.permute(0, 2, 3, 1), labels
            del images

    return epoch


def open_data_loader(task: Task) -> Epoch:
    """The same through a plain DataLoader, as a drop-in for ImageFolder."""
    workers = task["workers"]
    loader = torch.utils.data.DataLoader(
        StagedDataset("bench"), BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0
    )
    return lambda: ((images.permute(0, 2, 3, 1), labels) for images, labels in loader)


def export(task: Task) -> Answer:
    """Write pixels and labels of all samples, in the manifest's order: peers' data are made of them."""
    data = StagedDataset("bench")
    seen = Seen()
    shape = data[0][0].permute(1, 2, 0).shape
    pixels = np.lib.format.open_memmap(task["pixels"], "w+", np.uint8, (len(data), *shape))
    labels = np.asarray(data.targets, dtype=np.int64)
    for at in range(0, len(data), BATCH):
        part = range(at, min(at + BATCH, len(data)))
        pixels[at : part.stop] = np.stack([arrays["image"] for arrays in data.samples.read(part)])
        seen.add(pixels[at : part.stop], labels[at : part.stop])
    pixels.flush()
    np.save(task["labels"], labels)
    return seen.told()


# Limits


def copy(task: Task) -> Answer:
    """Rows from memory to memory by so many threads: what reading cannot beat."""
    threads, count = task["workers"], task["samples"]
    rows = np.zeros((count, ROW_BYTES), dtype=np.uint8)
    rows[:] = 1  # so that each row has memory of its own
    batches = [np.zeros((BATCH, ROW_BYTES), dtype=np.uint8) for _ in range(threads)]

    def copy_batches(thread: int) -> None:
        for at in range(thread * BATCH, count, threads * BATCH):
            part = rows[at : at + BATCH]
            np.copyto(batches[thread][: len(part)], part)

    with ThreadPoolExecutor(threads) as pool:

        def epoch() -> None:
            list(pool.map(copy_batches, range(threads)))

        epoch()
        began = time.perf_counter()
        epochs = 0
        while epochs < task["epochs_min"] or time.perf_counter() - began < task["seconds_min"]:
            epoch()
            epochs += 1
        return {"rate": count * epochs / (time.perf_counter() - began)}


def decode(task: Task) -> Answer:
    """The recipe on all cores, from memory and with nothing kept; `is_native`: with what stager has in C."""
    from stager.recipes import open_recipe
    from stager.recipes.image import native
    from stager.recipes.image.pixels.resize import resizer_name

    if not task["is_native"]:
        native.library = None
    assert (resizer_name() == "native") == task["is_native"]  # else it is torch, or pillow-simd
    recipe = open_recipe({"kind": "image"})
    raws = [memoryview(Path(path).read_bytes()) for path, _ in paths(task)]
    recipe.prepare([raws[0]], ())

    def prepare(thread: int) -> None:
        for raw in raws[thread::CORES]:
            recipe.prepare([raw], ())

    with ThreadPoolExecutor(CORES) as pool:
        used_s, began = sum(_used()), time.perf_counter()
        list(pool.map(prepare, range(CORES)))
        seconds, used_s = time.perf_counter() - began, sum(_used()) - used_s
    return {"rate": len(raws) / seconds, "cpu_ms": 1000 * used_s / len(raws)}


# Fetching alone


def fetch(task: Task) -> Answer:
    """GETs by stager's own way to S3, every check included, so many under way all the time."""
    from stager.interfaces import Fetched
    from stager.reader.values import Part, SourceSpec
    from stager.sources.s3.curl import CurlSource

    source = CurlSource(SourceSpec("s3://bench/jpeg", endpoint_url=task["endpoint_url"]))
    parts, sizes, all_came = list(map(Part, source.scan())), deque[int](), threading.Event()
    left = 0  # of those to start, and changed in the source's one thread alone

    def came(fetched: Fetched) -> None:
        nonlocal left
        assert isinstance(fetched, memoryview), fetched
        sizes.append(len(fetched))
        if left:
            left -= 1
            source.start(parts[left % len(parts)], came)
        elif len(sizes) == count:
            all_came.set()

    for count in (task["in_flight"], task["gets"]):  # connections are made before the clock starts
        sizes.clear()
        all_came.clear()
        left, first = count - task["in_flight"], parts[: task["in_flight"]]
        before, began = _used(), time.perf_counter()
        for part in first:
            source.start(part, came)
        all_came.wait()
    return _gets_told(count, sum(sizes), time.perf_counter() - began, before)


def fetch_boto3(task: Task) -> Answer:
    """GETs by plain boto3 in threads, with nothing checked but what it checks itself."""
    import boto3
    from botocore.config import Config

    config = Config(max_pool_connections=task["in_flight"], s3={"addressing_style": "path"})
    client = boto3.client("s3", endpoint_url=task["endpoint_url"], region_name="us-east-1", config=config)
    pages = client.get_paginator("list_objects_v2").paginate(Bucket="bench", Prefix="jpeg/")
    keys = [item["Key"] for page in pages for item in page["Contents"]]
    count, in_flight = task["gets"], task["in_flight"]
    chosen = [keys[number % len(keys)] for number in range(count + in_flight)]

    def get(key: str) -> int:
        return len(client.get_object(Bucket="bench", Key=key)["Body"].read())

    with ThreadPoolExecutor(in_flight) as pool:
        for _ in pool.map(get, chosen[:in_flight]):  # connections are made before the clock starts
            pass
        before, began = _used(), time.perf_counter()
        size = sum(pool.map(get, chosen[in_flight:]))
        return _gets_told(count, size, time.perf_counter() - began, before)


def _gets_told(count: int, size: int, seconds: float, before: tuple[float, float]) -> Answer:
    user_s, system_s = (now - then for now, then in zip(_used(), before, strict=True))
    cpu_s = user_s + system_s
    return {
        "rate": count / seconds,
        "mb_per_s": size / seconds / 1e6,
        "gets_per_cpu_s": count / cpu_s,
        "cpu_s_per_1000": 1000 * cpu_s / count,
        "system_s_per_1000": 1000 * system_s / count,
    }


def _used() -> tuple[float, float]:
    """CPU seconds of this process, in user space and in the kernel."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime, used.ru_stime


# Memory of DataLoader workers


class Zeros(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """Samples of the same size that cost nothing: what workers take by themselves."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.zeros((3, SIDE, SIDE), dtype=torch.uint8), 0


def workers_memory(task: Task) -> Answer:
    """What each of some DataLoader workers takes more with staged data than with no data at all."""
    staged = StagedDataset("bench")
    workers, peaks = task["workers"], []
    for data in (Zeros(len(staged)), staged):
        before = memory_mb()
        loader: Any = torch.utils.data.DataLoader(data, 64, num_workers=workers)
        peak = peak_memory(partial(deque, loader, 0))
        peaks.append({kind: peak[kind] - before[kind] for kind in peak})
    plain, ours = peaks
    return {f"memory_worker_{kind}_mb": (ours[kind] - plain[kind]) / workers for kind in plain}


# A cache that is too small


def epochs_of_one_job(task: Task) -> Answer:
    """Some epochs by StagedLoader; the source's GETs of each, as the server counted them."""
    from urllib.request import urlopen

    def reads() -> int:
        with urlopen(task["endpoint_url"] + "/-/stats") as answer:  # noqa: S310
            return int(json.load(answer)["get"])

    epoch = open_epochs(task)
    counts: list[int] = []
    seen = Seen()
    for number in range(task["epochs"]):
        before = reads()
        for images, labels in epoch():
            if number == task["epochs"] - 1:
                seen.add(images, labels)
            else:
                touched(images)
        counts.append(reads() - before)
    return {"reads": counts, **seen.told()}


VERBS: Final[dict[str, Callable[[Task], Answer]]] = {
    "version": lambda task: {"version": getattr(stager, "__version__", "")},
    "warm": lambda task: warm(open_epochs, task),
    "warm_data_loader": lambda task: warm(open_data_loader, task),
    "cold": lambda task: cold(open_epochs, task),
    "workers_memory": workers_memory,
    "export": export,
    "copy": copy,
    "decode": decode,
    "fetch": fetch,
    "fetch_boto3": fetch_boto3,
    "epochs": epochs_of_one_job,
}

if __name__ == "__main__":
    _task = json.loads(sys.argv[1])
    say(VERBS[_task["verb"]](_task))
