"""Staged data sets for PyTorch."""

import mmap
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Unpack

import numpy as np
import torch
from torch.utils.data import Dataset

from stager.errors import UsageError
from stager.reader.order import check_rank
from stager.reader.subset import Subset
from stager.reader.values import Arrays
from stager_client.augment.torch import augment_batch, can_augment
from stager_client.loader import IMAGE, Batch, BatchLoader, LoaderOptions, Resumable
from stager_client.samples import StagedSamples

Sample = tuple[Any, Any]
Transform = Callable[[torch.Tensor], torch.Tensor]
Moved = tuple[torch.Tensor, torch.Tensor, list[list[float]]]  # images, labels, and what was drawn for each


class StagedDataset(Dataset[Sample]):
    """A staged data set in the manner of torchvision's ImageFolder: `[i]` is (uint8 CHW tensor, label).

    Works in a plain DataLoader, forked or spawned. What is resident is read without a call to the service;
    what is not is asked for and waited for, at most `timeout_s`. `transform` gets the uint8 CHW tensor.
    With `skip_failed`, samples that are known not to be had are left out; else reading one raises.
    A sample is compared with its checksum at its first read in a process, or, with check="always", at each.
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
        check: str = "first",
    ) -> None:
        drawn = classes if classes is None or isinstance(classes, int) else tuple(classes)
        subset = Subset(drawn, seed, per_class, fraction, where, split)
        self.samples = StagedSamples(name, subset, service, timeout_s, skip_failed, check)
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


class StagedLoader(Resumable):
    """Batches of a StagedDataset as (images, labels), put together by threads of this process.

    Images are uint8 NCHW views of NHWC memory (channels_last), labels int64. The order is a function of
    (seed, epoch, rank, world size); rank and world size are torch.distributed's, as it is when the first
    iteration begins, unless they are given.
    The options: shuffle, seed, drop_last, prefetch, threads. `order`, a function of the epoch,
    gives the positions to read instead: weighted, repeated, a fold. `augment` changes each image on its way
    into the batch, the same way on every run with this seed; `transform` gets the whole batch, on the device:
    Normalise, or any callable. Batches are moved to the device ahead of use, and augmented there if it is not
    the CPU, unless `augment_on_device` says otherwise.
    A batch may be kept as long as it is needed: its buffer is used again only when nobody holds it.
    """

    def __init__(
        self,
        data: StagedDataset,
        batch_size: int,
        device: str | torch.device | None = None,
        transform: Transform | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        augment_on_device: bool | None = None,
        **options: Unpack[LoaderOptions],
    ) -> None:
        self._data = data
        _refuse_transforms(data)
        self._device = torch.device(device or "cpu")
        self._transform = transform
        if augment_on_device is None:
            augment_on_device = self._device.type != "cpu" and can_augment(options.get("augment", ()))
        self._augments = options.get("augment", ()) if augment_on_device else ()
        if rank is not None and world_size is not None:
            check_rank(rank, world_size)
        self.loader = BatchLoader(
            data.samples,
            batch_size,
            ranks=partial(_ranks, rank, world_size),
            augment_later=augment_on_device,
            pin=pin_for_cuda if self._device.type == "cuda" else None,
            **options,
        )
        # Copies of their own stream go on beside the model's work, and not behind it.
        stream: Any = torch.cuda.Stream
        self._stream = stream(self._device) if self._device.type == "cuda" else None

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        _refuse_transforms(self._data)  # they can be set at any time
        return self.loader.run(self._move, self._finish)

    def _move(self, batch: Batch) -> Moved:
        """On a thread of the loader's: where it waits for the device, it holds up nobody."""
        images = torch.from_numpy(batch.fields[IMAGE]).permute(0, 3, 1, 2)
        labels = torch.from_numpy(batch.labels)
        if self._device.type != "cpu":
            with torch.cuda.stream(self._stream):  # None: of no effect
                images, labels = images.to(self._device), labels.to(self._device)
        return images, labels, batch.uniforms

    def _finish(self, moved: Moved) -> tuple[torch.Tensor, torch.Tensor]:
        images, labels, uniforms = moved
        if self._stream is not None:  # they are the model's stream's from now on
            for tensor in (images, labels):
                tensor.record_stream(torch.cuda.current_stream(self._device))
        if self._augments:
            images = augment_batch(self._augments, images, uniforms)
        return (self._transform(images) if self._transform else images), labels


def _refuse_transforms(data: StagedDataset) -> None:
    """What a data set does to single samples would be left out of our batches, without a word."""
    for name in ("transform", "target_transform"):
        if getattr(data, name) is not None:
            raise UsageError(
                f"the StagedDataset has a {name}, which a StagedLoader does not call: it makes whole batches",
                hint="give the loader a transform, which gets each batch of images, and change labels in the"
                " loop; or use a plain DataLoader, which calls both",
            )


def _ranks(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """As given, else torch.distributed's, else those of a process that is alone."""
    here = torch.distributed.is_available() and torch.distributed.is_initialized()
    if rank is None:
        rank = torch.distributed.get_rank() if here else 0
    if world_size is None:
        world_size = torch.distributed.get_world_size() if here else 1
    return rank, world_size


def pin_for_cuda(memory: mmap.mmap) -> None:
    """Have the GPU copy from this memory by itself. Where it may not, it takes twice as long, and works."""
    address = np.frombuffer(memory, np.uint8).ctypes.data
    cudart: Any = torch.cuda.cudart
    runtime = cudart()
    if int(runtime.cudaHostRegister(address, len(memory), 1)) == 0:
        weakref.finalize(memory, runtime.cudaHostUnregister, address)


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
