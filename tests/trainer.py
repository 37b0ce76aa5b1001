"""clovaai/voxceleb_trainer, as far as we promise to do the same: written anew, from what it does."""

import math
import random
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import soundfile
import torch


def frames_of(max_frames: int) -> int:
    return max_frames * 160 + 240


def load(path: Path, max_frames: int, evalmode: bool = True, num_eval: int = 10) -> npt.NDArray[np.float64]:
    """As it is since it takes augmentations (f51bab8): short clips are repeated."""
    frames = frames_of(max_frames)
    audio, _ = soundfile.read(str(path))
    if len(audio) <= frames:
        audio = np.pad(audio, (0, frames - len(audio) + 1), "wrap")
    return _segments(audio, frames, max_frames, evalmode, num_eval).astype(np.float64)


def load_before(path: Path, max_frames: int, evalmode: bool = True, num_eval: int = 10) -> torch.Tensor:
    """As it was in its first months (2b2438c): zeros on both sides, and values as the file has them."""
    frames = frames_of(max_frames)
    audio, _ = soundfile.read(str(path), dtype="int16")
    if len(audio) <= frames:
        shortage = math.floor((frames - len(audio) + 1) / 2)
        audio = np.pad(audio, (shortage, shortage), "constant", constant_values=0)
    return torch.tensor(_segments(audio, frames, max_frames, evalmode, num_eval), dtype=torch.float32)


def _segments(
    audio: npt.NDArray[Any], frames: int, max_frames: int, evalmode: bool, num_eval: int
) -> npt.NDArray[Any]:
    if evalmode and max_frames == 0:
        return np.stack([audio])
    if evalmode:
        starts = np.linspace(0, len(audio) - frames, num=num_eval)
    else:
        starts = np.array([np.int64(random.random() * (len(audio) - frames))])
    return np.stack([audio[int(start) : int(start) + frames] for start in starts])


def sampler(
    labels: Sequence[int],
    clips: int,
    clips_max: int,
    batch: int,
    seed: int,
    epoch: int,
    rank: int = 0,
    ranks: int = 1,
) -> list[list[int]]:
    """What its train_dataset_sampler gives a rank: clips of one speaker for each place of a batch."""
    random_of = torch.Generator()
    random_of.manual_seed(seed + epoch)
    of_speaker = defaultdict(list)
    for at in torch.randperm(len(labels), generator=random_of).tolist():
        of_speaker[labels[at]].append(at)
    groups, speakers = [], []
    for number, speaker in enumerate(sorted(of_speaker)):
        found = of_speaker[speaker]
        count = min(len(found), clips_max)
        for at in range(0, count - count % clips, clips):
            groups.append(found[at : at + clips])
            speakers.append(number)
    taken: list[int] = []
    order = []
    for at in torch.randperm(len(groups), generator=random_of).tolist():
        begin = len(taken) - len(taken) % batch
        if speakers[at] not in taken[begin:]:
            taken.append(speakers[at])
            order.append(groups[at])
    total = len(order) - len(order) % (batch * ranks)
    return order[int(rank / ranks * total) : int((rank + 1) / ranks * total)]
