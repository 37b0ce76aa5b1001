"""voxceleb_trainer on staged clips: its `loadWAV`, from the shards, and the order of its sampler.

In its DatasetLoader.py, `from stager_client.voxceleb import loadWAV` takes the place of its own function; no
other line changes. The paths of its lists stay: a clip is found by the source that it lies under.
"""

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from stager.errors import NoService, UsageError
from stager.reader.cuts.clips import Starts, random_starts
from stager.reader.cuts.cut import Draws
from stager.reader.cuts.segment import GridSegments, Segments
from stager.reader.record import DatasetRecord, datasets_dir
from stager.reader.samples.subset import Subset
from stager.reader.service import Service, find_socket
from stager.reader.settings import load_settings
from stager.reader.values import Numbers, key_hash
from stager_client.samples import StagedSamples

if TYPE_CHECKING:
    import torch

__all__ = ["SpeakerOrder", "loadWAV", "loadWAV_2020"]

LIST_S: Final = 2.0  # that the service may take to say which data sets there are
TIMEOUT_S: Final = 300.0  # for a clip that is not staged yet
FULL: Final = 32_768  # of int16, what 1.0 is of float64
FIELD: Final = "audio"

Clips = npt.NDArray[np.float64]
FileName = str | os.PathLike[str]


def loadWAV(filename: FileName, max_frames: int, evalmode: bool = True, num_eval: int = 10) -> Clips:
    """What voxceleb_trainer's function of this name returns, bit by bit, for files of 16 bits.

    A clip of no more than max_frames * 160 + 240 samples is repeated. In training, one `random.random()` says
    where the segment begins, as there.
    """
    found = _read(filename, max_frames, evalmode, num_eval, "wrap")
    return found.astype(np.float64) * (1 / FULL if found.dtype == np.int16 else 1)


def loadWAV_2020(
    filename: FileName, max_frames: int, evalmode: bool = True, num_eval: int = 10
) -> "torch.Tensor":
    """The same of its first months, before it had augmentations: zeros on both sides, and not scaled."""
    import torch

    found = _read(filename, max_frames, evalmode, num_eval, "zero")
    return torch.from_numpy(found.astype(np.float32) * (1 if found.dtype == np.int16 else FULL))


class SpeakerOrder:
    """For `order=` of a loader: the clips that voxceleb_trainer's sampler takes in an epoch, in its order.

    Its batch of `batch_size` speakers, none twice, has `nPerSpeaker` clips of each: the loader's batch_size
    is their product, and a batch can be reshaped to (batch_size, nPerSpeaker, samples). What is less than a
    batch is dropped. `labels`: of all clips, as `StagedDataset.targets`.
    """

    def __init__(
        self,
        labels: Sequence[int] | Numbers,
        nPerSpeaker: int = 1,
        max_seg_per_spk: int = 500,
        batch_size: int = 200,
        seed: int = 10,
        world_size: int = 1,
    ) -> None:
        if min(nPerSpeaker, max_seg_per_spk, batch_size, world_size) < 1:
            raise UsageError("a sampler's numbers must be at least 1", hint="as voxceleb_trainer has them")
        self._labels = np.unique(np.asarray(labels, np.int64), return_inverse=True)[1]
        self._clips, self._clips_max = nPerSpeaker, max_seg_per_spk
        self._batch, self._seed, self._ranks = batch_size, seed, world_size
        self._of_epoch = lru_cache(2)(self._order)  # a loader asks for this epoch and the next

    def __call__(self, epoch: int) -> Numbers:
        return self._of_epoch(epoch)

    def __reduce__(self) -> Any:
        return SpeakerOrder, (
            *(self._labels, self._clips, self._clips_max, self._batch, self._seed, self._ranks),
        )

    def _order(self, epoch: int) -> Numbers:
        import torch

        random_of = torch.Generator()
        random_of.manual_seed(self._seed + epoch)
        mixed = torch.randperm(len(self._labels), generator=random_of).numpy()
        mixed = mixed[np.argsort(self._labels[mixed], kind="stable")]  # by speaker, in each as they came
        counts = np.bincount(self._labels)
        place = np.arange(len(mixed)) - np.repeat(np.cumsum(counts) - counts, counts)
        most = np.minimum(counts, self._clips_max)
        groups = mixed[place < np.repeat(most - most % self._clips, counts)].reshape(-1, self._clips)
        speakers = self._labels[groups[:, 0]].tolist()
        taken: list[int] = []
        of_batch: set[int] = set()
        for at in torch.randperm(len(groups), generator=random_of).tolist():
            if speakers[at] not in of_batch:
                taken.append(at)
                of_batch.add(speakers[at])
            if len(of_batch) == self._batch:
                of_batch.clear()
        total = len(taken) - len(taken) % (self._batch * self._ranks)
        by_rank = groups[taken[:total]].reshape(self._ranks, -1)  # a slice each; a loader deals them out
        return np.ascontiguousarray(by_rank.T).reshape(-1)


@dataclass(frozen=True, slots=True)
class _Drawn(Segments):
    """The segment that a random number says."""

    number: float = 0.0

    def starts(self, draws: Draws, room: Numbers) -> Starts:
        return random_starts(np.array([[self.number]]), room)


class _Staged:
    """A staged data set, by the keys of its clips."""

    def __init__(self, name: str) -> None:
        self._samples = StagedSamples(name, Subset(), None, TIMEOUT_S, skip_failed=False)
        (self._dtype,) = (field.dtype for field in self._samples.reader.record.fields)
        hashes = self._samples.key_hashes(np.arange(len(self._samples)))
        self._places = np.argsort(hashes)
        self._hashes = hashes[self._places]

    def find(self, key: str) -> int | None:
        """Where a clip is among the samples; None: there is none of this key."""
        at = int(np.searchsorted(self._hashes, np.uint64(key_hash(key))))
        position = int(self._places[at]) if at < len(self._places) else 0
        return position if at < len(self._places) and self._samples.key(position) == key else None

    def whole(self, position: int) -> npt.NDArray[Any]:
        return self._samples.read([position])[0][FIELD]

    def cut(self, position: int, cut: Segments) -> npt.NDArray[Any]:
        """Its segments, a row each."""
        out = np.empty((cut.count or 1, cut.frames or 0), self._dtype)
        draws = Draws.of(0, 0, np.zeros(1, np.int64), np.array([position]))
        self._samples.read_cut(cut, draws, {FIELD: out[None]})
        return out


def _read(filename: FileName, max_frames: int, evalmode: bool, num_eval: int, pad: str) -> npt.NDArray[Any]:
    staged, position = _find(os.fspath(filename))
    frames = max_frames * 160 + 240
    if evalmode and max_frames == 0:
        return _filled(staged.whole(position), frames, pad)[None]
    about: Any = {"frames": frames, "pad": pad, "fields": (FIELD,)}
    cut = GridSegments(num_eval, **about) if evalmode else _Drawn(number=random.random(), **about)
    return staged.cut(position, cut)


def _filled(samples: npt.NDArray[Any], frames: int, pad: str) -> npt.NDArray[Any]:
    """A whole clip, longer if it is too short."""
    lacking = frames - len(samples) + 1
    if lacking < 1:
        return samples
    return np.pad(samples, (0, lacking), "wrap") if pad == "wrap" else np.pad(samples, lacking // 2)


def _find(filename: str) -> tuple[_Staged, int]:
    """The data set whose source a file lies under, and where the clip is in it."""
    for again in (False, True):
        if again:  # a data set may have been staged since
            _sources.cache_clear()
        for whole in (os.path.abspath, os.path.realpath):
            path = whole(filename)
            under = [(root, name) for root, name in _sources() if path.startswith(root)]
            for root, name in under:
                staged = _open(name)
                position = staged.find(path[len(root) :])
                if position is not None:
                    return staged, position
    known = [name for root, name in _sources() if os.path.abspath(filename).startswith(root)]  # noqa: PTH100
    if known:
        raise UsageError(
            f"{filename}: {known[0]} has no such clip", hint=f"if the file is new: stager prefetch {known[0]}"
        )
    raise UsageError(
        f"{filename}: it lies under the source of no staged data set of sound",
        hint='a data set with kind = "audio", and stager prefetch: docs/AUDIO.md',
    )


@cache
def _open(name: str) -> _Staged:
    return _Staged(name)


@cache
def _sources() -> list[tuple[str, str]]:
    """The folders of all data sets of sound that are staged, the deepest first, and their names."""
    settings = load_settings()
    try:
        told = Service(find_socket(None, settings.socket)).get("/datasets", LIST_S)
        found = [(row["source"], row["name"], row["recipe"]) for row in told if row["is_current"]]
    except NoService:
        found = []
        for path in datasets_dir(settings.cache_dir).glob("*/dataset.json"):
            spec = DatasetRecord.read(path.parent).spec
            found.append((spec.source.url, spec.name, spec.recipe))
    folders = [
        (url.rstrip("/") + "/", name)
        for url, name, recipe in found
        if "://" not in url and recipe.get("kind") == "audio"
    ]
    return sorted(folders, key=lambda folder: (-len(folder[0]), folder))
