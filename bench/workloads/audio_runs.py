"""The runs of the workload `audio`, each in a process of its own."""

import json
import random
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np
import soundfile
import torch

from bench.peers.common import Answer, Task, say
from stager.reader.cuts.cut import draw_uniforms
from stager.reader.order import epoch_order
from stager_client.torch import RandomSegment, StagedDataset, StagedLoader
from stager_client.voxceleb import loadWAV

BATCH, WORKERS, SEED = 100, 2, 3
FRAMES: Final = 32_000  # 2 s
MAX_FRAMES: Final = 200  # 32,240 of them, as voxceleb_trainer counts
CHECKED: Final = 200


class Clips(torch.utils.data.Dataset[torch.Tensor]):
    """voxceleb_trainer's data set, with this way to load a clip."""

    def __init__(self, folder: str, load: Callable[[Path, int], Any]) -> None:
        self.paths, self._load = sorted(Path(folder).rglob("*.wav")), load

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, at: int) -> torch.Tensor:
        return torch.tensor(self._load(self.paths[at], MAX_FRAMES), dtype=torch.float32)


def load_whole(path: Path, max_frames: int) -> Any:
    """The user's way: all of the file, and then a part of it."""
    frames = max_frames * 160 + 240
    audio, _ = soundfile.read(path)
    if len(audio) <= frames:
        audio = np.pad(audio, (0, frames - len(audio) + 1), "wrap")
    start = np.int64(random.random() * (len(audio) - frames))
    return np.stack([audio[start : start + frames]])


def load_staged(path: Path, max_frames: int) -> Any:
    return loadWAV(path, max_frames, evalmode=False)


def by_data_loader(task: Task, load: Callable[[Path, int], Any]) -> Answer:
    loader = torch.utils.data.DataLoader(
        Clips(task["clips"], load), BATCH, shuffle=True, num_workers=WORKERS, persistent_workers=True
    )
    for _ in loader:  # the workers start
        pass
    return timed(task, lambda: loader, 4 * (MAX_FRAMES * 160 + 240))


def segments(task: Task) -> Answer:
    """stager: epoch 0 from the opening of the data set on, then what follows."""
    began = time.perf_counter()
    data = StagedDataset("audio")
    loader = StagedLoader(
        data, BATCH, shuffle=True, seed=SEED, threads=WORKERS, cut=RandomSegment(frames=FRAMES)
    )
    first = [batch for batch, _ in loader][: CHECKED // BATCH]
    epoch_0_s = time.perf_counter() - began
    answer = timed(task, lambda: (batch for batch, _ in loader), 2 * FRAMES)
    return {
        **answer,
        "rate_epoch_0": len(data) / epoch_0_s,
        "check": check(task, data, torch.cat(first).numpy()),
    }


def check(task: Task, data: StagedDataset, found: Any) -> str:
    """The first segments of epoch 0 against the files."""
    order = epoch_order(len(data), SEED, 0)
    for draw, segment in enumerate(found):
        samples, _ = soundfile.read(Path(task["clips"]) / data.samples.key(int(order[draw])), dtype="int16")
        (drawn,) = draw_uniforms(np.array([draw]), SEED, 0, 1)[0]
        start = int(drawn * (len(samples) - FRAMES))
        if not np.array_equal(segment, samples[start : start + FRAMES]):
            return f"segment {draw} is another one"
    return f"{len(found)} segments are the files'"


def copy(task: Task) -> Answer:
    """As many bytes, from memory to memory: what reading cannot beat."""
    rows = np.ones((task["count"], FRAMES), np.int16)
    batches = [np.ones((BATCH, FRAMES), np.int16) for _ in range(WORKERS)]

    def copy_batches(thread: int) -> None:
        for at in range(thread * BATCH, len(rows), WORKERS * BATCH):
            part = rows[at : at + BATCH]
            np.copyto(batches[thread][: len(part)], part)

    with ThreadPoolExecutor(WORKERS) as pool:

        def epoch() -> Iterable[Any]:
            list(pool.map(copy_batches, range(WORKERS)))
            return [rows]

        epoch()  # memory that is there
        return timed(task, epoch, 2 * FRAMES)


def timed(task: Task, epoch: Callable[[], Iterable[Any]], segment_bytes: int) -> Answer:
    """Whole epochs until the time is over."""
    began, count = time.perf_counter(), 0
    while not count or time.perf_counter() - began < task["seconds_min"]:
        for batch in epoch():
            count += len(batch)
    rate = count / (time.perf_counter() - began)
    return {"rate": rate, "mb_per_s": rate * segment_bytes / 1e6}


VERBS: Final[dict[str, Callable[[Task], Answer]]] = {
    "soundfile": lambda task: by_data_loader(task, load_whole),
    "load_wav": lambda task: by_data_loader(task, load_staged),
    "segments": segments,
    "copy": copy,
}

if __name__ == "__main__":
    told = json.loads(sys.argv[1])
    say(VERBS[told["verb"]](told))
