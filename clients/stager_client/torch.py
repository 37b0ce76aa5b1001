"""Staged data sets for PyTorch."""

import mmap
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from stager.errors import UsageError
from stager.reader.order import check_rank
from stager.reader.samples.changes import Changes
from stager.reader.samples.subset import Subset
from stager.reader.values import Arrays, Field, Numbers
from stager_client.augment.torch import Normalise, augment_batch, can_augment
from stager_client.augment.transforms import several
from stager_client.batches.assembly import Batch, Column
from stager_client.batches.loader import BatchLoader
from stager_client.batches.options import LoaderOptions, check_options
from stager_client.batches.ranks import labels_differ
from stager_client.batches.resumable import Resumable
from stager_client.batches.torch import BatchMemory, neighbours, one_thread, side_by_side, talk_of
from stager_client.columns import is_padded, length_name, lengths_of, values_at
from stager_client.cuts import (
    CentredPatch,
    Floats,
    GridPatch,
    GridSegments,
    RandomCrop,
    RandomPatch,
    RandomSegment,
)
from stager_client.samples import StagedSamples

__all__ = [
    "CentredPatch",
    "Floats",
    "GridPatch",
    "GridSegments",
    "Normalise",
    "RandomCrop",
    "RandomPatch",
    "RandomSegment",
    "StagedDataset",
    "StagedLoader",
    "pin_for_cuda",
]

Sample = tuple[Any, Any]  # a tensor, or what there is by name; and the label
Transform = Callable[[Any], Any]
Moved = tuple[dict[str, Any], torch.Tensor, list[list[float]]]  # columns, labels, and what was drawn for each


class StagedDataset(Dataset[Sample]):
    """A staged data set in the manner of torchvision's ImageFolder: `[i]` is (tensor, label).

    Of several fields, or with `columns` (names of fields and attributes), it is ({name: value}, label).
    Works in a plain DataLoader, forked or spawned. What is resident is read without a call to the service;
    what is not is asked for and waited for, at most `timeout_s`. `transform` gets the tensor, or the dict.
    With `skip_failed`, samples that are known not to be had are left out; else reading one raises.
    A sample is compared with its checksum at its first read in a process, or, with check="always", at each.
    `version`: an older version that is kept, by the beginning of its digest (stager ls --versions).
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
        transform: Transform | None = None,
        target_transform: Callable[[int], Any] | None = None,
        service: str | None = None,
        timeout_s: float = 300.0,
        skip_failed: bool = False,
        check: str = "first",
        columns: Sequence[str] | None = None,
        version: str | None = None,
    ) -> None:
        drawn = classes if classes is None or isinstance(classes, int) else tuple(classes)
        subset = Subset(drawn, seed, per_class, fraction, where, split)
        self.columns = columns
        self._take(StagedSamples(name, subset, service, timeout_s, skip_failed, check, version))
        self.transform, self.target_transform = transform, target_transform
        self._memory = BatchMemory()
        # How often a version was taken, in memory that the workers of a DataLoader share.
        self._taken, self._taken_here = torch.zeros(1, dtype=torch.int64), 0
        self._taken.share_memory_()  # type: ignore[no-untyped-call]

    def _take(self, samples: StagedSamples) -> None:
        columns = samples.choose(self.columns)
        for column in columns.attributes if self.columns else ():
            samples.attribute(column)  # to refuse them here; if nobody asked, where they are read
        self.samples, self._columns = samples, columns
        self.classes, self.class_to_idx = samples.classes, samples.class_to_idx

    def refresh(self, version: str | None = None) -> Changes:
        """Read the newest version from now on, or one by its digest; what is returned says what has changed.

        For a plain DataLoader, between two of its iterations; its workers must not be persistent. A
        StagedLoader has a refresh of its own, on which its ranks agree.
        """
        before, samples = self.samples, self.samples.at(version)
        if problem := labels_differ(before, samples):
            raise UsageError(problem, hint="open the data set again; or open it with a list of classes")
        self.move_to(samples)
        return samples.changes_since(before)

    def move_to(self, samples: StagedSamples) -> None:
        """Read these samples from now on: another version of ours."""
        if samples is not self.samples:
            self._take(samples)
            self._taken += 1
            self._taken_here += 1

    def _check_taken(self) -> None:
        if int(self._taken) != self._taken_here:
            raise UsageError(
                f"{self.samples.name} was refreshed while workers of a DataLoader had it open:"
                " they would read samples of the version before",
                hint="leave out persistent_workers, and refresh between two epochs",
            )

    @property
    def targets(self) -> list[int]:
        labels: list[int] = self.samples.labels.tolist()
        return labels

    def __len__(self) -> int:
        return len(self.samples)

    def __repr__(self) -> str:
        return f"StagedDataset({self.samples})"

    def __getitem__(self, index: int) -> Sample:
        self._check_taken()
        if not -len(self) <= index < len(self):
            raise IndexError(f"{index}, and there are {len(self):,} samples")
        return self._read([index % len(self)])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        """A batch in one pass: one look at the index, one call for all that is missing.

        Where samples are of one size, and no transform wants each alone, they lie side by side: collated by
        torch's own function, they are a batch without a copy, channels_last where they are HWC.
        """
        self._check_taken()
        fields = self._columns.fields.values()
        if self.transform is None and all(field.is_fixed for field in fields):
            return self._read_batch(indices)
        samples = self._read(indices)
        values = side_by_side([value for value, _ in samples], self._memory)
        return [(value, label) for value, (_, label) in zip(values, samples, strict=True)]

    def _read_batch(self, indices: Sequence[int]) -> list[Sample]:
        fields = self._columns.fields
        batches = {
            name: self._memory.take(name, len(indices), tuple(side or 0 for side in field.shape), field.dtype)
            for name, field in fields.items()
        }
        self.samples.read_into(indices, {name: batch.numpy() for name, batch in batches.items()})
        columns: dict[str, Sequence[Any]] = {
            name: neighbours(_channels_first(fields[name], batch)) for name, batch in batches.items()
        }
        columns |= self._attributes(np.asarray(indices, np.int64))
        return [
            (self._columns.given({name: column[at] for name, column in columns.items()}), self._label(index))
            for at, index in enumerate(indices)
        ]

    def _read(self, indices: Sequence[int]) -> list[Sample]:
        arrays = self.samples.read(indices, self._columns.fields)
        attributes = self._attributes(np.asarray(indices, np.int64))
        with one_thread():
            return [
                self._sample(position, fields, {name: values[at] for name, values in attributes.items()})
                for at, (position, fields) in enumerate(zip(indices, arrays, strict=True))
            ]

    def set_epoch(self, epoch: int) -> None:
        """Tell the statistics which epoch begins. Without it, epochs are counted from the number of reads."""
        self.samples.session.set_epoch(epoch)

    def flush(self) -> None:
        """Report counts now, not within a second."""
        self.samples.session.flush()

    def _attributes(self, positions: Numbers) -> dict[str, list[Any]]:
        """As Python has them: a DataLoader makes tensors of their batches."""
        names = self._columns.attributes
        return {name: values_at(self.samples.attribute(name), positions).tolist() for name in names}

    def _sample(self, position: int, arrays: Arrays, attributes: dict[str, Any]) -> Sample:
        values: dict[str, Any] = {}
        for name, field in self._columns.fields.items():
            values[name] = _tensor(field, arrays[name])
            if is_padded(field, field.shape):
                lengths = lengths_of(field.shape, arrays[name].shape)
                values[length_name(name)] = torch.tensor(lengths[0] if len(lengths) == 1 else lengths)
        sample: Any = self._columns.given(values | attributes)
        return (self.transform(sample) if self.transform else sample), self._label(position)

    def _label(self, position: int) -> Any:
        label = int(self.samples.labels[position])
        return self.target_transform(label) if self.target_transform else label


class StagedLoader(Resumable):
    """Batches of a StagedDataset, or of all of a data set by its name, as (tensor, labels).

    Threads of this process put them together.

    Of several fields, or with `columns`, they are ({name: values}, labels). Tensors have the field's dtype; a
    field of axes HWC is an NCHW view of NHWC memory (channels_last). The order is a function of (seed, epoch,
    rank, world size); rank and world size are torch.distributed's, as it is when the first iteration begins,
    unless they are given.
    The options: shuffle, seed, drop_last, prefetch, threads, columns, versions ("opened", or "latest": each
    epoch reads the newest version). `order`, a function of the epoch, gives
    the positions to read instead: weighted, repeated, a fold. `augment` changes the images on their way into
    the batch, all of `augment_fields` alike, the same way on every run with this seed; `transform` gets the
    whole batch (the tensor, or the dict), on the device: Normalise, or any callable. `cut` takes a part of
    each sample, another one at each read. Batches are moved to the device ahead of use, and augmented
    there if it is not the CPU, unless `augment_on_device` says otherwise.
    A batch may be kept as long as it is needed: its buffer is used again only when nobody holds it.
    """

    def __init__(
        self,
        data: StagedDataset | str,
        batch_size: int,
        device: str | torch.device | None = None,
        transform: Transform | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        augment_on_device: bool | None = None,
        **options: Unpack[LoaderOptions],
    ) -> None:
        check_options("StagedLoader", options)
        data = StagedDataset(data) if isinstance(data, str) else data
        self._data = data
        _refuse_transforms(data)
        self._device = torch.device(device or "cpu")
        self._transform = transform
        if options.get("columns") is None:
            options["columns"] = data.columns
        augments = options["augment"] = several(options.get("augment", ()))
        if augment_on_device is None:
            augment_on_device = self._device.type != "cpu" and can_augment(augments)
        self._augments = augments if augment_on_device else ()
        if rank is not None and world_size is not None:
            check_rank(rank, world_size)
        self.loader = BatchLoader(
            data.samples,
            batch_size,
            ranks=partial(_ranks, rank, world_size),
            talks=lambda name: talk_of(*_ranks(rank, world_size), name),
            moved=data.move_to,
            augment_later=augment_on_device,
            pin=pin_for_cuda if self._device.type == "cuda" else None,
            **options,
        )
        # Copies of their own stream go on beside the model's work, and not behind it.
        stream: Any = torch.cuda.Stream
        self._stream = stream(self._device) if self._device.type == "cuda" else None

    def __iter__(self) -> Iterator[tuple[Any, torch.Tensor]]:
        _refuse_transforms(self._data)  # they can be set at any time
        return self.loader.run(self._move, self._finish)

    def _move(self, batch: Batch) -> Moved:
        """On a thread of the loader's: where it waits for the device, it holds up nobody."""
        fields = self.loader.assembly.columns.fields
        columns = {name: _tensors(fields.get(name), column) for name, column in batch.columns.items()}
        labels = torch.from_numpy(batch.labels)
        if self._device.type != "cpu":
            with torch.cuda.stream(self._stream):  # None: of no effect
                columns = {name: self._moved(column) for name, column in columns.items()}
                labels = labels.to(self._device)
        return columns, labels, batch.uniforms

    def _moved(self, column: Any) -> Any:
        if isinstance(column, list):
            return [self._moved(row) for row in column]
        return column.to(self._device) if isinstance(column, torch.Tensor) else column

    def _finish(self, moved: Moved) -> tuple[Any, torch.Tensor]:
        columns, labels, uniforms = moved
        if self._stream is not None:  # they are the model's stream's from now on
            rows = [column if isinstance(column, list) else [column] for column in columns.values()]
            for tensor in (labels, *(row for column in rows for row in column)):
                if isinstance(tensor, torch.Tensor):
                    tensor.record_stream(torch.cuda.current_stream(self._device))
        assembly = self.loader.assembly
        for name, chain in assembly.chains.items() if self._augments else ():
            columns[name] = augment_batch(chain.augments, columns[name], uniforms, chain.is_map)
        given = assembly.columns.given(columns)
        return (self._transform(given) if self._transform else given), labels


def _tensors(field: Field | None, column: Column) -> Any:
    """A column of a batch: a tensor; a list of tensors, if it is ragged; a list of str, if it is text."""
    if isinstance(column, list):
        return [_tensor(field, row) for row in column]
    return column.tolist() if column.dtype == object else _tensor(field, column)


def _tensor(field: Field | None, array: npt.NDArray[Any]) -> torch.Tensor:
    """The array's memory as a tensor."""
    return _channels_first(field, torch.from_numpy(array))


def _channels_first(field: Field | None, tensor: torch.Tensor) -> torch.Tensor:
    """Where it is HWC, channels come first, in the same memory: a batch is channels_last then."""
    if field is None or field.axes != "HWC":
        return tensor
    return tensor.permute(2, 0, 1) if tensor.ndim == 3 else tensor.permute(0, 3, 1, 2)


def _refuse_transforms(data: StagedDataset) -> None:
    """What a data set does to single samples would be left out of our batches, without a word."""
    for name in ("transform", "target_transform"):
        if getattr(data, name) is not None:
            raise UsageError(
                f"the StagedDataset has a {name}, which a StagedLoader does not call: it makes whole batches",
                hint="give the loader a transform, which gets each batch, and change labels in the"
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
