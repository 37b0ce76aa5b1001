"""Staged data sets for TensorFlow: a tf.data.Dataset of batches that TensorFlow takes without a copy."""

import atexit
import gc
import inspect
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import tensorflow as tf

from stager.reader.values import Shape
from stager_client.batches.assembly import Assembly, Rows
from stager_client.batches.options import check_options
from stager_client.columns import is_padded, length_name
from stager_client.cuts import (
    CentredPatch,
    Floats,
    GridPatch,
    GridSegments,
    RandomCrop,
    RandomPatch,
    RandomSegment,
)
from stager_client.numpy import StagedArrays

__all__ = [
    "CentredPatch",
    "Floats",
    "GridPatch",
    "GridSegments",
    "RandomCrop",
    "RandomPatch",
    "RandomSegment",
    "as_dataset",
    "staged_dataset",
]

ITERATORS: Final = ("OwnedIterator", "OwnedMultiDeviceIterator")


def staged_dataset(name: str, batch_size: int, **options: Any) -> tf.data.Dataset:
    """Batches of a staged data set as (tensor, int64 labels), in StagedLoader's order.

    Of several fields, or with `columns`, they are ({name: tensor}, labels); a ragged field is a RaggedTensor.
    The options are those of StagedArrays: classes, subset_seed, per_class, fraction, where, split, shuffle,
    seed, drop_last, rank, world_size, versions and so on. Each pass that is read to its end is followed by
    the next epoch, so `repeat` and `model.fit` see a new order each time; a pass that is broken off is begun
    anew.
    """
    check_options("staged_dataset", options, inspect.signature(StagedArrays).parameters)
    return as_dataset(StagedArrays(name, batch_size, **options))


def as_dataset(arrays: StagedArrays) -> tf.data.Dataset:
    """The batches of `arrays`, for those who want its classes, state or stats too.

    Nothing runs ahead of the consumer but the loader's own threads: also not the `prefetch` that TensorFlow
    else adds to the end. So state and stats are those of the consumer, unless a `prefetch` follows.
    """
    loader = arrays.loader
    batch_size = loader.batch_size if loader.drop_last else None
    signature = loader.assembly.columns.given(_signature(loader.assembly, batch_size))
    dataset = tf.data.Dataset.from_generator(
        lambda: _tensors(arrays),
        output_signature=(signature, tf.TensorSpec((batch_size, *loader.assembly.label_shape), tf.int64)),
    )
    # Else the first epoch is a part of one, or the next one may have more or fewer samples.
    if arrays.state_dict()["position"] == 0 and not loader.takes_latest:
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(len(arrays)))
    settings = tf.data.Options()
    settings.experimental_optimization.inject_prefetch = False
    if loader.ranks[1] > 1:  # it is a shard already: tf.distribute is not to take a shard of it
        settings.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return dataset.with_options(settings)


def _signature(assembly: Assembly, batch_size: int | None) -> dict[str, Any]:
    """What a batch has under each name. Sides on which samples differ are None."""
    specs: dict[str, Any] = {}
    for name, field in assembly.columns.fields.items():
        shape, dtype = assembly.shapes[name], tf.as_dtype(np.dtype(field.dtype))
        if field.batch == "ragged" and None in shape:
            specs[name] = tf.RaggedTensorSpec((batch_size, *shape), dtype, _ragged_rank(shape))
            continue
        specs[name] = tf.TensorSpec((batch_size, *shape), dtype)
        if is_padded(field, shape):
            sides = () if shape.count(None) == 1 else (shape.count(None),)
            specs[length_name(name)] = tf.TensorSpec((batch_size, *sides), tf.int64)
    for name, attribute in assembly.columns.attributes.items():
        specs[name] = tf.TensorSpec((batch_size,), tf.as_dtype(attribute.type))
    return specs


def _tensors(arrays: StagedArrays) -> Iterator[Any]:
    """The batches, for TensorFlow: it takes arrays as they are; of ragged rows we make a tensor."""
    assembly = arrays.loader.assembly
    ranks = {name: _ragged_rank(shape) for name, shape in assembly.shapes.items() if None in shape}
    ragged = [name for name in ranks if assembly.columns.fields[name].batch == "ragged"]
    if not ragged:
        return iter(arrays)
    if assembly.columns.is_alone:
        return ((_ragged(rows, ranks[ragged[0]]), labels) for rows, labels in arrays)
    return (
        (values | {name: _ragged(values[name], ranks[name]) for name in ragged}, labels)
        for values, labels in arrays
    )


def _ragged_rank(shape: Shape) -> int:
    """Of a batch: all sides up to the last one that differs are ragged for TensorFlow."""
    return max(at + 1 for at, side in enumerate(shape) if side is None)


def _ragged(rows: Rows, rank: int) -> tf.RaggedTensor:
    """One tensor of rows that differ in their first `rank` sides."""
    flat = np.concatenate([row.reshape(-1, *row.shape[rank:]) for row in rows])
    lengths = [
        np.concatenate([np.full(np.prod(row.shape[:side], dtype=int), row.shape[side]) for row in rows])
        for side in range(rank)
    ]
    return tf.RaggedTensor.from_nested_row_lengths(flat, lengths, validate=False)


@atexit.register
def _drop_iterators() -> None:
    """End all iterators while there is a Python to call.

    A `prefetch` calls us from a thread of TensorFlow's. If the interpreter ends under such a call, it never
    returns, and the iterator's end, which waits for it, hangs the process.
    """
    for found in gc.get_objects():
        if type(found).__name__ in ITERATORS and type(found).__module__.startswith("tensorflow."):
            vars(found).clear()
