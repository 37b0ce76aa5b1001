"""Staged data sets for PyTorch."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import Dataset

from stager.errors import UsageError
from stager.model import Arrays
from stager.subset import Subset
from stager_client.augment import Augment
from stager_client.loader import THREADS, BatchLoader, Order
from stager_client.samples import StagedSamples

Sample = tuple[Any, Any]
Transform = Callable[[torch.Tensor], torch.Tensor]


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
        self.samples = StagedSamples(name, subset, service, timeout_s, skip_failed)
        self.transform, self.target_transform = transform, target_transform
        self.classes = self.samples.classes
        self.class_to_idx = self.samples.class_to_idx

    @property
    def targets(self) -> list[int]:
        labels: list[int] = self.samples.labels.tolist()
        return labels

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Sample:
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        return self.__getitems__([index % len(self)])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        """A batch in one pass: one look at the index, one call for all that is missing."""
        return [
            self._sample(position, arrays)
            for position, arrays in zip(indices, self.samples.read(indices), strict=True)
        ]

    def set_epoch(self, epoch: int) -> None:
        """Tell the statistics which epoch begins. Without it, epochs are counted from the number of reads."""
        self.samples.session.set_epoch(epoch)

    def flush(self) -> None:
        """Report counts now, not within a second."""
        self.samples.session.flush()

    def _sample(self, position: int, arrays: Arrays) -> Sample:
        image: Any = torch.from_numpy(arrays["image"]).permute(2, 0, 1)
        label: Any = int(self.samples.labels[position])
        if self.transform is not None:
            image = self.transform(image)
        if self.target_transform is not None:
            label = self.target_transform(label)
        return image, label


class StagedLoader:
    """Batches of a StagedDataset as (images, labels), put together by threads of this process.

    Images are uint8 NCHW views of NHWC memory (channels_last), labels int64. The order is a function of
    (seed, epoch, rank, world size); rank and world size are torch.distributed's when it is initialised.
    `order`, a function of the epoch, gives the positions to read instead: weighted, repeated, a fold.
    `augment` changes each image on its way into the batch, the same way on every run with this seed;
    `transform` gets the whole batch, on the device: Normalise, or any callable.
    A batch may be kept as long as it is needed: its buffer is used again only when nobody holds it.
    """

    def __init__(
        self,
        data: StagedDataset,
        batch_size: int,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        device: str | torch.device | None = None,
        transform: Transform | None = None,
        prefetch: int = 3,
        threads: int = THREADS,
        rank: int | None = None,
        world_size: int | None = None,
        augment: Sequence[Augment] = (),
        order: Order | None = None,
    ) -> None:
        here = torch.distributed.is_available() and torch.distributed.is_initialized()
        self.loader = BatchLoader(
            data.samples,
            batch_size,
            shuffle=shuffle,
            seed=seed,
            drop_last=drop_last,
            rank=rank if rank is not None else torch.distributed.get_rank() if here else 0,
            world_size=world_size
            if world_size is not None
            else torch.distributed.get_world_size()
            if here
            else 1,
            prefetch=prefetch,
            threads=threads,
            augment=augment,
            order=order,
        )
        self._device = torch.device(device) if device is not None else None
        self._transform = transform

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for batch in self.loader:
            images = torch.from_numpy(batch.fields["image"]).permute(0, 3, 1, 2)
            labels = torch.from_numpy(batch.labels)
            del batch
            if self._device is not None:
                images, labels = (tensor.to(self._device, non_blocking=True) for tensor in (images, labels))
            yield (self._transform(images) if self._transform else images), labels
            del images

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch is next; without it, each epoch that is read to its end is followed by the next."""
        self.loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where we are, to go on at this batch later, on any number of ranks."""
        return self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.loader.load_state_dict(state)

    def stats(self) -> dict[str, float]:
        """How long the loop waited for batches, and how long it computed in between."""
        return self.loader.stats()


class Normalise:
    """A batch of uint8 NCHW images as (x / 255 - mean) / std, a value for each channel; for `transform`.

    On the batch's device and in its memory format. It reckons in float32, then rounds to `dtype`.
    """

    def __init__(
        self, mean: Sequence[float], std: Sequence[float], dtype: torch.dtype = torch.float32
    ) -> None:
        if len(mean) != len(std) or not mean or min(std) <= 0:
            raise UsageError(f"mean {mean} and std {std} make no sense", hint="a number above 0 a channel")
        if dtype not in (torch.float16, torch.bfloat16, torch.float32):
            raise UsageError(f"images cannot be {dtype}", hint="use float16, bfloat16 or float32")
        self.dtype = dtype
        self._mean, self._scale = (
            torch.tensor(values, dtype=torch.float64).reshape(-1, 1, 1).to(torch.float32)
            for values in ([value * 255 for value in mean], [1 / (255 * value) for value in std])
        )

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        if images.device != self._mean.device:
            self._mean, self._scale = self._mean.to(images.device), self._scale.to(images.device)
        return images.sub(self._mean).mul_(self._scale).to(self.dtype)
