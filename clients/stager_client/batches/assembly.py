"""Samples become a batch: fields of one shape in buffers that are used again, others as the field says."""

import threading
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stager.errors import UsageError
from stager.reader.cuts.cut import Cut, Draws
from stager.reader.cuts.patches.floats import Floats
from stager.reader.cuts.patches.patch import Patches
from stager.reader.values import Arrays, Field, Numbers, Shape
from stager_client.augment.transforms import Augment, chains_of, fields_among
from stager_client.batches.ahead import Stopped
from stager_client.batches.buffers import BufferPool, Pin
from stager_client.columns import Columns, is_padded, length_name, lengths_of, values_at
from stager_client.samples import Missed, StagedSamples

TOGETHER_MAX: Final = 16  # batches that are cut together
TOGETHER_BYTES: Final = 16 << 20

Reasons = dict[str, int]  # why draws had to be waited for, and how many
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
        augment_fields: Sequence[str] | None = None,
        augment_later: bool = False,
        pin: Pin | None = None,
    ) -> None:
        """With `augment_later` fields are as staged, and the caller augments some by the uniforms."""
        self.samples = samples
        self.cut = cut = cut.for_fields(columns.fields) if cut else None
        self._floats = {name: of for name, of in _floats_of(cut).items() if name in columns.fields}
        self.columns = columns = _as_floats(columns, self._floats)
        self.shapes: dict[str, Shape] = {name: field.shape for name, field in columns.fields.items()}
        if cut:
            self.shapes = cut.shapes(self.shapes)
        self._cut_shapes = dict(self.shapes)
        fields = fields_among(columns.fields.values(), samples.name, augment_fields) if augment else ()
        self.chains = chains_of(augment, fields, self.shapes)  # by the fields that are augmented
        self.chain = next(iter(self.chains.values()), None)  # what is drawn is the same for all
        self._chains_now = {} if augment_later else self.chains
        self.shapes |= {name: chain.out_shape for name, chain in self._chains_now.items()}
        self.pools = {
            name: BufferPool((batch_size, *(side or 0 for side in shape)), columns.fields[name].dtype, pin)
            for name, shape in self.shapes.items()
            if None not in shape
        }
        self._raw = {
            name: BufferPool(self.pools[name].shape, samples.field(name).dtype) for name in self._floats
        }
        self._varied = [name for name in self.shapes if name not in self.pools]
        self.together = self._how_many_together()
        self._of_several = {
            name: BufferPool((self.together * batch_size, *pool.shape[1:]), pool.dtype, pin)
            for name, pool in self.pools.items()
        }
        self.label_shape = (1 + len(cut.size),) if isinstance(cut, Patches) else ()
        self._attributes = {name: samples.attribute(name) for name in columns.attributes}
        for name in self._varied:
            if is_padded(columns.fields[name], self.shapes[name]) and length_name(name) in self._attributes:
                raise UsageError(
                    f"{length_name(name)} is an attribute of {samples.name}, and has the lengths of {name}",
                    hint="name one of the two in columns",
                )

    def _how_many_together(self) -> int:
        """Batches that are cut at once: numbers of one small batch take longer to work out than its bytes."""
        sizes = [pool.size_bytes for pool in self.pools.values()]
        if not self.cut or self._varied or self._chains_now or self._floats or not sizes:
            return 1
        if any(size % BufferPool.ALIGNED_BYTES for size in sizes):
            return 1  # the second would not begin where frameworks want it to
        return max(1, min(TOGETHER_MAX, TOGETHER_BYTES // max(sum(sizes), 1)))

    def make_all(
        self,
        order: Numbers,
        draws: Sequence[Numbers],
        seed: int,
        epoch: int,
        stopped: threading.Event,
    ) -> Iterator[Batch]:
        """The batches of these draws of an order: together if all is there, else one after the other."""
        if len(draws) > 1:
            every = np.concatenate(draws)
            fields = {name: pool.take()[: len(every)] for name, pool in self._of_several.items()}
            assert self.cut, "others are read one by one"
            drawn = Draws.of(seed, epoch, every, order[every])
            rows, reader = self.cut.rows(drawn), self.samples.reader
            if not any(reader.cut(self.samples.numbers[rows.positions], self.cut, drawn, rows, fields)):
                labels, first = self._labels(drawn), 0
                for of in draws:
                    here = slice(first, first := first + len(of))
                    yield self._batch(
                        {name: rows[here] for name, rows in fields.items()},
                        {},
                        labels[here],
                        drawn.positions[here],
                        {},
                        [],
                    )
                return
            del fields
        for of in draws:
            yield self.make(order[of], of, seed, epoch, stopped)

    def _labels(self, draws: Draws) -> npt.NDArray[np.int64]:
        """Of patches: where they are."""
        if isinstance(self.cut, Patches):
            return self.cut.corners_in(draws)
        return self.samples.labels[draws.positions]

    def make(
        self, positions: Numbers, draws: Numbers, seed: int, epoch: int, stopped: threading.Event
    ) -> Batch:
        """The batch of the samples at these positions. Raise Stopped if nobody waits for it any more.

        `draws`: which reads of the epoch they are, of all ranks together.
        """
        fields = {name: pool.take()[: len(positions)] for name, pool in self.pools.items()}
        drawn = Draws.of(seed, epoch, draws, positions)
        labels = self._labels(drawn)
        uniforms: list[list[float]] = []
        if self.chain:
            uniforms = self.chain.uniforms(self.samples.key_hashes(positions), seed, epoch)
        rows: dict[str, Rows] = {name: [np.empty(0)] * len(positions) for name in self._varied}
        if self.cut:
            missed = self._cut(self.cut, drawn, uniforms, fields, rows, stopped)
        elif rows or self._chains_now or not fields:
            missed = self._visit(positions, uniforms, fields, rows, self.shapes, stopped)
        else:  # whole rows of one size, straight to where they belong
            missed = self.samples.fill(positions, fields, stopped)
        if (rows or self.cut or self._chains_now) and stopped.is_set():
            raise Stopped  # some rows may not have come
        return self._batch(fields, rows, labels, positions, dict(Counter(missed.values())), uniforms)

    def _batch(
        self,
        fields: Arrays,
        rows: Mapping[str, Rows],
        labels: npt.NDArray[np.int64],
        positions: Numbers,
        missed: Reasons,
        uniforms: list[list[float]],
    ) -> Batch:
        columns: dict[str, Column] = {}
        for name in self.shapes:
            columns |= self._joined(name, rows[name], positions) if name in rows else {name: fields[name]}
        columns |= {name: values_at(values, positions) for name, values in self._attributes.items()}
        return Batch(columns, labels, positions, missed, uniforms)

    def _cut(
        self,
        cut: Cut,
        draws: Draws,
        uniforms: list[list[float]],
        fields: Arrays,
        rows: dict[str, Rows],
        stopped: threading.Event,
    ) -> Missed:
        """Copy what is drawn to where it belongs, and change what is augmented on its way."""
        out = fields | {name: pool.take()[: len(draws)] for name, pool in self._raw.items()}
        for changed in self._chains_now:
            sides = (side or 0 for side in self._cut_shapes[changed])
            out[changed] = np.empty((len(draws), *sides), out[changed].dtype)
        missed = self.samples.cut(cut, draws, out, stopped)
        if rows:  # the cut leaves them as they are
            missed = self._visit(draws.positions, uniforms, fields, rows, rows, stopped) | missed
        for name, floats in self._floats.items() if not stopped.is_set() else ():
            floats.convert(out[name], fields[name])
        for changed, chain in self._chains_now.items() if not stopped.is_set() else ():
            for at, array in enumerate(out[changed]):
                chain.apply(array, uniforms[at], fields[changed][at])
        return missed

    def _visit(
        self,
        positions: Numbers,
        uniforms: list[list[float]],
        fields: Arrays,
        rows: dict[str, Rows],
        names: Collection[str],
        stopped: threading.Event,
    ) -> Missed:
        """Take sample after sample, and change it on its way."""

        def take(at: int, arrays: Arrays) -> None:
            if len(self._chains_now) > 1:
                self._check_sides(int(positions[at]), arrays)
            for name, array in arrays.items():
                if chain := self._chains_now.get(name):
                    chain.apply(array, uniforms[at], fields[name][at])
                elif name in fields:
                    fields[name][at] = array
                else:
                    rows[name][at] = np.ascontiguousarray(array)

        return self.samples.visit(positions, take, stopped, names)

    def _check_sides(self, position: int, arrays: Arrays) -> None:
        """What is cropped alike has to be of one size."""
        sides = {name: arrays[name].shape[:2] for name in self._chains_now if name in arrays}
        if len(set(sides.values())) > 1:
            told = ", ".join(f"{name} {height}x{width}" for name, (height, width) in sides.items())
            raise UsageError(
                f"{self.samples.key(position)} of {self.samples.name} cannot be augmented alike: {told}",
                hint="stage its fields in one size, or name one in augment_fields",
            )

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
        keys = [self.samples.key(int(positions[at])) for at in (0, other)]
        return UsageError(
            f"the samples of {self.samples.name} differ in size: {field.name} of {keys[0]} is"
            f" {list(rows[0].shape)}, of {keys[1]} {list(rows[other].shape)}",
            hint='give the field batch = "pad" or "ragged" in the recipe, or the loader a cut',
        )


def _floats_of(cut: Cut | None) -> Mapping[str, Floats]:
    return cut.floats if isinstance(cut, Patches) else {}


def _as_floats(columns: Columns, floats: Mapping[str, Floats]) -> Columns:
    """The same, with fields that are handed out as floats."""
    changed = {name: replace(columns.fields[name], dtype=of.dtype) for name, of in floats.items()}
    return replace(columns, fields={**columns.fields, **changed})


def _padded(rows: Rows) -> npt.NDArray[Any]:
    """All in one array, with zeros behind those that are shorter than the longest."""
    sides = np.max([row.shape for row in rows], axis=0).tolist()
    joined = np.zeros((len(rows), *sides), rows[0].dtype)
    for at, row in enumerate(rows):
        joined[at][tuple(map(slice, row.shape))] = row
    return joined
