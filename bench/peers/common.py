"""What all runs share: the images, the timed loops, the check that all deliver the same, and memory.

It needs numpy and, for decoding, Pillow: no more, since it runs in every peer's environment.
"""

import io
import json
import mmap
import multiprocessing
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np

Task = dict[str, Any]
Answer = dict[str, Any]
Images = Any  # NHWC, a numpy array or a tensor
Epoch = Callable[[], Iterable[tuple[Images, Any]]]

BATCH: Final = 256
SIDE: Final = 224
GRID: Final = 16  # every 16th row and column is compared
MADV_POPULATE_READ: Final = 22  # Linux 5.14
MAIN_PROCESS: Final = os.getpid()


def main(prepare: Callable[[Task], None], open_epochs: Callable[[Task], Epoch], version: str) -> None:
    """Do what the task says and print the answer."""
    task = json.loads(sys.argv[1])
    if task["verb"] == "version":
        answer: Answer = {"version": version}
    elif task["verb"] == "prepare":
        answer = timed_prepare(prepare, task)
    elif task["verb"] == "cold":
        answer = cold(open_epochs, task)
    else:
        answer = warm(open_epochs, task)
    say(answer)


def say(answer: Answer) -> None:
    print(json.dumps(answer), flush=True)


# Images


def paths(task: Task) -> list[tuple[str, int]]:
    """The images of a task and their labels, in the manifest's order: by class, then by name."""
    lines = Path(task["list"]).read_text().splitlines()
    return [(path, int(label)) for path, label in (line.split("\t") for line in lines)]


def pixels(task: Task) -> tuple[np.ndarray, np.ndarray]:
    """What stager staged of the same images: pixels and labels. Data for warm runs are made from these."""
    return np.load(task["pixels"], mmap_mode="r"), np.load(task["labels"])


def centre_crop(source: str | bytes) -> np.ndarray:
    """What people do, and what torchvision does: Pillow, shorter side to 256, the centre 224 of it."""
    from PIL import Image

    with Image.open(source if isinstance(source, str) else io.BytesIO(source)) as image:
        rgb = image.convert("RGB")
    width, height = rgb.size
    size = (int(256 * width / height), 256) if height < width else (256, int(256 * height / width))
    rgb = rgb.resize(size, Image.Resampling.BILINEAR)
    left, top = round((size[0] - SIDE) / 2), round((size[1] - SIDE) / 2)
    return np.asarray(rgb.crop((left, top, left + SIDE, top + SIDE)))


def decode_item(item: tuple[str, int]) -> tuple[bytes, int]:
    """One image, for a pool of processes."""
    return centre_crop(item[0]).tobytes(), item[1]


def raw_items(task: Task) -> Iterator[tuple[bytes, int]]:
    """Raw samples, decoded by two processes, or taken from those that stager staged."""
    if "pixels" in task:
        images, labels = pixels(task)
        for image, label in zip(images, labels, strict=True):
            yield image.tobytes(), int(label)
        return
    with start_decoders() as pool:
        yield from pool.imap(decode_item, paths(task), chunksize=16)


@cache
def start_decoders() -> Any:
    """Two processes that decode. Forked: spawned ones would load the peer once more, on the clock."""
    return multiprocessing.get_context("fork").Pool(2)


def jpeg_items(task: Task) -> Iterator[tuple[bytes, int]]:
    for path, label in paths(task):
        yield Path(path).read_bytes(), label


# Runs


def timed_prepare(prepare: Callable[[Task], None], task: Task) -> Answer:
    for path, _ in paths(task):  # from memory, as all the others
        Path(path).read_bytes()
    out = Path(task["out"])
    remove(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    prepare(task)
    seconds = time.perf_counter() - began
    return {"rate": task["samples"] / seconds, "seconds": seconds, "bytes": size_of(out)}


def cold(open_epochs: Callable[[Task], Epoch], task: Task) -> Answer:
    """Epoch 0 from a slow source, with nothing cached, then epoch 1. The clock runs from the opening."""
    began = time.perf_counter()
    epoch = open_epochs(task)
    seen = Seen()
    first_s = 0.0
    for images, labels in epoch():
        first_s = first_s or time.perf_counter() - began
        seen.add(images, labels)
    seconds = time.perf_counter() - began
    answer = {"rate": seen.samples / seconds, "seconds": seconds, "first_batch_s": first_s, **seen.told()}
    if task.get("epochs", 2) > 1:
        began = time.perf_counter()
        again = sum(len(touched(images)) for images, _ in epoch())
        answer["rate_epoch_1"] = again / (time.perf_counter() - began)
    return answer


def warm(open_epochs: Callable[[Task], Epoch], task: Task) -> Answer:
    """Epochs of data that is in memory already: the first one is compared, the next ones are timed."""
    read_through(Path(task["path"]))
    before = memory_mb()
    began = time.perf_counter()
    epoch = open_epochs(task)
    seen = Seen()
    first_s = 0.0
    for images, labels in epoch():
        first_s = first_s or time.perf_counter() - began
        seen.add(images, labels)
    first_epoch_s = time.perf_counter() - began
    rates: list[float] = []
    began = time.perf_counter()
    while len(rates) < task["epochs_min"] or time.perf_counter() - began < task["seconds_min"]:
        epoch_began = time.perf_counter()
        samples = sum(len(touched(images)) for images, _ in epoch())
        rates.append(samples / (time.perf_counter() - epoch_began))
    seconds = time.perf_counter() - began
    answer = {
        "rate": seen.samples * len(rates) / seconds,
        "epochs": len(rates),
        "first_epoch_rate": seen.samples / first_epoch_s,
        "first_batch_s": first_s,
        **seen.told(),
    }
    if task.get("memory"):
        peak = peak_memory(lambda: sum(len(touched(images)) for images, _ in epoch()))
        answer |= {f"memory_{kind}_mb": round(peak[kind] - before[kind]) for kind in peak}
        answer["memory_framework_mb"] = round(before["all"])
    return answer


def touched(images: Images) -> Images:
    """A batch is there when its first pixel can be read."""
    int(images[0, 0, 0, 0])
    return images


@dataclass
class Seen:
    """Sums over what came, whatever the order: samples, pixels of a grid, and these times the label."""

    samples: int = 0
    pixel_sum: int = 0
    label_sum: int = 0
    by_label: int = 0

    def add(self, images: Images, labels: Any) -> None:
        grid = np.asarray(images[:, GRID // 2 :: GRID, GRID // 2 :: GRID])
        sums = grid.reshape(len(grid), -1).sum(axis=1, dtype=np.int64)
        labels = np.asarray(labels).reshape(-1).astype(np.int64)
        self.samples += len(grid)
        self.pixel_sum += int(sums.sum())
        self.label_sum += int(labels.sum())
        self.by_label += int((sums * (labels + 1)).sum())

    def told(self) -> Answer:
        return {
            "samples": self.samples,
            "pixel_sum": self.pixel_sum,
            "label_sum": self.label_sum,
            "by_label": self.by_label,
        }


# Memory


def peak_memory(work: Callable[[], object]) -> dict[str, float]:
    """Run some work and return the most memory this process and its children had meanwhile."""
    done = threading.Event()
    peaks = [memory_mb()]

    def watch() -> None:
        while not done.wait(0.005):
            peaks.append(memory_mb())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    work()
    done.set()
    watcher.join()
    return max(peaks, key=lambda peak: peak["all"])


def memory_mb(root: int = MAIN_PROCESS) -> dict[str, float]:
    """PSS of a process and all below it: a page that n processes share counts 1/n for each.

    `anonymous` leaves out mapped files, whose pages are the page cache's and go when others need room.
    """
    found = {"all": 0.0, "anonymous": 0.0}
    names = {"Pss": ("all",), "Pss_Anon": ("anonymous",), "Pss_Shmem": ("anonymous",)}
    for pid in process_tree(root):
        with suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
                name, _, value = line.partition(":")
                for kind in names.get(name, ()):
                    found[kind] += int(value.split()[0]) / 1024
    return found


def cpu_s(root: int) -> float:
    """CPU seconds of a process and all below it."""
    ticks = 0
    for pid in process_tree(root):
        with suppress(OSError, IndexError):
            words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(words[11]) + int(words[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def process_tree(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, ValueError, IndexError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


# Files


def read_through(path: Path) -> None:
    """Bring files into the page cache: the kernel may have dropped those that were idle for a minute.

    In huge pages, for all alike: so they are there once they were written in large pieces.
    """
    buffer = bytearray(8 << 20)
    for file in [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file()):
        with file.open("rb", buffering=0) as opened:
            with suppress(OSError, ValueError), mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as mapped:
                mapped.madvise(mmap.MADV_HUGEPAGE)
                mapped.madvise(MADV_POPULATE_READ)
            while opened.readinto(buffer):
                pass


def size_of(path: Path) -> int:
    files = [path] if path.is_file() else path.rglob("*")
    return sum(file.stat().st_size for file in files if file.is_file())


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
