"""Staged data sets for TensorFlow: a tf.data.Dataset of batches that TensorFlow takes without a copy."""

import atexit
import gc
from typing import Any, Final

import tensorflow as tf

from stager_client.numpy import StagedArrays

ITERATORS: Final = ("OwnedIterator", "OwnedMultiDeviceIterator")


def staged_dataset(name: str, batch_size: int, **options: Any) -> tf.data.Dataset:
    """Batches of a staged data set as (uint8 NHWC images, int64 labels), in StagedLoader's order.

    The options are those of StagedArrays: classes, subset_seed, per_class, fraction, where, split, shuffle,
    seed, drop_last, rank, world_size and so on. Each pass that is read to its end is followed by the next
    epoch, so `repeat` and `model.fit` see a new order each time; a pass that is broken off is begun anew.
    """
    return as_dataset(StagedArrays(name, batch_size, **options))


def as_dataset(arrays: StagedArrays) -> tf.data.Dataset:
    """The batches of `arrays`, for those who want its classes, state or stats too.

    Nothing runs ahead of the consumer but the loader's own threads: also not the `prefetch` that TensorFlow
    else adds to the end. So state and stats are those of the consumer, unless a `prefetch` follows.
    """
    loader = arrays.loader
    images = loader.pools["image"]
    dataset = tf.data.Dataset.from_generator(
        lambda: iter(arrays),
        output_signature=(
            tf.TensorSpec((loader.batch_size if loader.drop_last else None, *images.shape[1:]), images.dtype),
            tf.TensorSpec((loader.batch_size if loader.drop_last else None,), tf.int64),
        ),
    )
    if arrays.state_dict()["position"] == 0:  # else the first epoch is a part of one
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(len(arrays)))
    settings = tf.data.Options()
    settings.experimental_optimization.inject_prefetch = False
    if loader.ranks[1] > 1:  # it is a shard already: tf.distribute is not to take a shard of it
        settings.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return dataset.with_options(settings)


@atexit.register
def _drop_iterators() -> None:
    """End all iterators while there is a Python to call.

    A `prefetch` calls us from a thread of TensorFlow's. If the interpreter ends under such a call, it never
    returns, and the iterator's end, which waits for it, hangs the process.
    """
    for found in gc.get_objects():
        if type(found).__name__ in ITERATORS and type(found).__module__.startswith("tensorflow."):
            vars(found).clear()
