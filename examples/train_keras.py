"""Train a small network with Keras on a staged data set: python examples/train_keras.py DATASET --classes 10

What is not staged yet is staged when it is read. Pixels stay uint8 until the network takes them.
"""

import argparse
import time
from typing import Any

import tensorflow as tf

from stager_client.numpy import StagedArrays
from stager_client.tensorflow import as_dataset

layers = tf.keras.layers


def small_net(shape: tuple[int, ...], classes: int) -> tf.keras.Model:
    """Three convolutions, for a CPU. Put your own network here."""
    net = tf.keras.Sequential([layers.Input(shape, dtype="uint8"), layers.Rescaling(1 / 127.5, -1)])
    net.add(layers.AveragePooling2D(4))  # pixels enough for this network; a real one takes them all
    for filters in (16, 32, 64):
        net.add(layers.Conv2D(filters, 3, 2, "same", use_bias=False))
        net.add(layers.BatchNormalization())
        net.add(layers.ReLU())
    net.add(layers.GlobalMaxPooling2D())
    net.add(layers.Dense(classes))
    return net


class Speed(tf.keras.callbacks.Callback):
    """Prints the samples/s of each epoch, and its loss."""

    def __init__(self, samples: int) -> None:
        super().__init__()
        self.samples = samples

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.began = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        rate = self.samples / (time.perf_counter() - self.began)
        known = logs or {}
        print(
            f"epoch {epoch}: loss {known['loss']:.3f}, {known['accuracy']:.0%} right, {rate:,.0f} samples/s",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("dataset", help="a data set of stager.toml, or one that was prefetched by URL")
    parser.add_argument("--classes", type=int, help="this many classes, drawn by the seed (default: all)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64)
    options = parser.parse_args()

    tf.keras.utils.set_random_seed(options.seed)
    arrays = StagedArrays(
        options.dataset, options.batch_size, classes=options.classes, subset_seed=options.seed,
        shuffle=True, seed=options.seed, drop_last=True,
    )  # fmt: skip
    data = as_dataset(arrays)
    model = small_net(tuple(data.element_spec[0].shape[1:]), len(arrays.classes))
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tf.keras.optimizers.Adam(2e-3), loss, metrics=["accuracy"])
    speed = Speed(len(arrays) * options.batch_size)
    # shuffle is the loader's, not Keras's.
    model.fit(data, epochs=options.epochs, shuffle=False, verbose=0, callbacks=[speed])


if __name__ == "__main__":
    main()
