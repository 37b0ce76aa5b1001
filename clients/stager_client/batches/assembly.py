"""Samples become a batch: fields of one shape in buffers that are used again, others as the field says."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stager.errors import UsageError
from stager.reader.cuts import Cut, draw_uniforms
from stager.reader.values import Arrays, Field, Numbers, Shape, Shapes, Windows
from stager_client.augment.transforms import Augment, Chain, field_among
from stager_client.batches.ahead import Stopped
from stager_client.batches.buffers import BufferPool, Pin
from stager_client.columns import Columns, is_padded, length_name, lengths_of, values_at
from stager_client.reader import WindowsOf
from stager_client.samples import Reasons, StagedSamples

Rows = list[npt.NDArray[Any]]  # of one field, an array a sample
Column = npt.NDArray[Any] | Rows  # of a batch; rows: a field that is ragged


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples of one step: what is handed out of them, their labels, and where they are in the data set."""

    columns: dict[str, Column]
    labels: npt.NDArray[np.int64]
    positions: Numbers
    missed: Reasons
    uniforms: list[list[float]]  # for augmentation that comes later: a row a sample


class Assembly:
    """Puts batches together. Any number of threads may use one."""

    def __init__(
        self,
        samples: StagedSamples,
        batch_size: int,
        columns: Columns,
        cut: Cut | None = None,
        augment: Sequence[Augment] = (),
        augment_later: bool = False,
        pin: Pin | None = None,
    ) -> None:
        """With `augment_later` fields are as staged, and the caller augments one by the uniforms."""
        self._samples, self.columns, self.cut = samples, columns, cut
        self.shapes: dict[str, Shape] = {name: field.shape for name, field in columns.fields.items()}
        if cut:
            self.shapes = cut.shapes(self.shapes)
        self.augmented = field_among(columns.fields.values(), samples.name).name if augment else None
        self.chain = Chain(augment, self.shapes[self.augmented]) if self.augmented else None
        self._chain_now = None if augment_later else self.chain
        if self._chain_now and self.augmented:
            self.shapes[self.augmented] = self._chain_now.out_shape
        self.pools = {
            name: BufferPool((batch_size, *(side or 0 for side in shape)), columns.fields[name].dtype, pin)
            for name, shape in self.shapes.items()
            if None not in shape
        }
        self._varied = [name for name in self.shapes if name not in self.pools]
        self._attributes = {name: samples.attribute(name) for name in columns.attributes}
        for name in self._varied:
            if is_padded(columns.fields[name], self.shapes[name]) and length_name(name) in self._attributes:
                raise UsageError(
                    f"{length_name(name)} is an attribute of {samples.name}, and has the lengths of {name}",
                    hint="name one of the two in columns",
                )

    def make(
        self, positions: Numbers, draws: Numbers, seed: int, epoch: int, stopped: threading.Event
    ) -> Batch:
        """The batch of the samples at these positions. Raise Stopped if nobody waits for it any more.

        `draws`: which reads of the epoch they are, of all ranks together.
        """
        fields = {name: pool.take()[: len(positions)] for name, pool in self.pools.items()}
        uniforms: list[list[float]] = []
        if self.chain:
            uniforms = self.chain.uniforms(self._samples.key_hashes(positions), seed, epoch)
        columns: dict[str, Column] = {}
        if self._varied or self._chain_now or self.cut or not fields:
            part = self._cutting(self.cut, positions, draws, seed, epoch) if self.cut else None
            rows: dict[str, Rows] = {name: [np.empty(0)] * len(positions) for name in self._varied}
            missed = self._visit(positions, part, uniforms, fields, rows, stopped)
            if stopped.is_set():
                raise Stopped  # some rows may not have come
            for name in self.shapes:
                columns |= self._joined(name, rows[name], positions) if name in rows else {name: fields[name]}
        else:  # whole rows of one size, straight to where they belong
            missed = self._samples.fill(positions, fields, stopped)
            columns |= fields
        columns |= {name: values_at(values, positions) for name, values in self._attributes.items()}
        return Batch(columns, self._samples.labels[positions], positions, missed, uniforms)

    def _visit(
        self,
        positions: Numbers,
        part: WindowsOf | None,
        uniforms: list[list[float]],
        fields: Arrays,
        rows: dict[str, Rows],
        stopped: threading.Event,
    ) -> Reasons:
        """Take sample after sample, and change it on its way."""

        def take(at: int, arrays: Arrays) -> None:
            for name, array in arrays.items():
                if self._chain_now and name == self.augmented:
                    self._chain_now.apply(array, uniforms[at], fields[name][at])
                elif name in fields:
                    fields[name][at] = array
                else:
                    rows[name][at] = np.ascontiguousarray(array)

        return self._samples.visit(positions, take, stopped, self.shapes, part)

    def _cutting(self, cut: Cut, positions: Numbers, draws: Numbers, seed: int, epoch: int) -> WindowsOf:
        """Which part is taken of the sample at each place."""
        uniforms = draw_uniforms(draws, seed, epoch, cut.numbers)

        def part(at: int, shapes: Shapes) -> Windows:
            try:
                return cut.windows(uniforms[at], shapes)
            except UsageError as error:
                key = self._samples.key(int(positions[at]))
                raise UsageError(f"{key} of {self._samples.name}: {error.message}", error.hint) from None

        return part

    def _joined(self, name: str, rows: Rows, positions: Numbers) -> dict[str, Column]:
        """Rows that differ in shape, as their field says."""
        field, shape = self.columns.fields[name], self.shapes[name]
        if field.batch == "ragged":
            return {name: rows}
        if is_padded(field, shape):
            lengths = np.array([lengths_of(shape, row.shape) for row in rows], np.int64)
            alone = lengths[:, 0] if lengths.shape[1] == 1 else lengths
            return {name: _padded(rows), length_name(name): alone}
        other = next((at for at, row in enumerate(rows) if row.shape != rows[0].shape), None)
        if other is not None:
            raise self._differ(field, rows, positions, other)
        return {name: np.stack(rows)}

    def _differ(self, field: Field, rows: Rows, positions: Numbers, other: int) -> UsageError:
        keys = [self._samples.key(int(positions[at])) for at in (0, other)]
        return UsageError(
            f"the samples of {self._samples.name} differ in size: {field.name} of {keys[0]} is"
            f" {list(rows[0].shape)}, of {keys[1]} {list(rows[other].shape)}",
            hint='give the field batch = "pad" or "ragged" in the recipe, or the loader a cut',
        )


def _padded(rows: Rows) -> npt.NDArray[Any]:
    """All in one array, with zeros behind those that are shorter than the longest."""
    sides = np.max([row.shape for row in rows], axis=0).tolist()
    joined = np.zeros((len(rows), *sides), rows[0].dtype)
    for at, row in enumerate(rows):
        joined[at][tuple(map(slice, row.shape))] = row
    return joined
