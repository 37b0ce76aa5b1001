"""Staged data sets for PyTorch."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.data import Dataset

from stager.model import Arrays
from stager.subset import Subset
from stager_client.samples import StagedSamples

Sample = tuple[Any, Any]


class StagedDataset(Dataset[Sample]):
    """A staged data set in the manner of torchvision's ImageFolder: `[i]` is (uint8 CHW tensor, label).

    Works in a plain DataLoader, forked or spawned. What is resident is read without a call to the service;
    what is not is asked for and waited for, at most `timeout_s`. `transform` gets the uint8 CHW tensor.
    With `skip_failed`, samples that are known not to be had are left out; else reading one raises.
    """

    def __init__(
        self,
        name: str,
        classes: int | Sequence[str] | None = None,
        seed: int = 0,
        per_class: int | None = None,
        fraction: float | None = None,
        where: str | None = None,
        split: str | None = None,
        transform: Callable[[torch.Tensor], Any] | None = None,
        target_transform: Callable[[int], Any] | None = None,
        service: str | None = None,
        timeout_s: float = 300.0,
        skip_failed: bool = False,
    ) -> None:
        drawn = classes if classes is None or isinstance(classes, int) else tuple(classes)
        subset = Subset(drawn, seed, per_class, fraction, where, split)
        self._samples = StagedSamples(name, subset, service, timeout_s, skip_failed)
        self.transform, self.target_transform = transform, target_transform
        self.classes = self._samples.classes
        self.class_to_idx = self._samples.class_to_idx

    @property
    def targets(self) -> list[int]:
        labels: list[int] = self._samples.labels.tolist()
        return labels

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> Sample:
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        return self.__getitems__([index % len(self)])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        """A batch in one pass: one look at the index, one call for all that is missing."""
        return [
            self._sample(position, arrays)
            for position, arrays in zip(indices, self._samples.read(indices), strict=True)
        ]

    def set_epoch(self, epoch: int) -> None:
        """Tell the statistics which epoch begins. Without it, epochs are counted from the number of reads."""
        self._samples.session.set_epoch(epoch)

    def flush(self) -> None:
        """Report counts now, not within a second."""
        self._samples.session.flush()

    def _sample(self, position: int, arrays: Arrays) -> Sample:
        image: Any = torch.from_numpy(arrays["image"].copy()).permute(2, 0, 1)
        label: Any = int(self._samples.labels[position])
        if self.transform is not None:
            image = self.transform(image)
        if self.target_transform is not None:
            label = self.target_transform(label)
        return image, label
