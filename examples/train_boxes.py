"""Train on three pictures of a wound, each cropped by its box, fold by fold: python examples/train_boxes.py

examples/boxes_data.py makes such data, and docs/BOXES.md has their config. What is not staged yet is staged
when it is read; all folds share it.
"""

import argparse
import time
from typing import Any

import tensorflow as tf

from stager_client.augment import HorizontalFlip, RandomCrop
from stager_client.numpy import StagedArrays
from stager_client.tensorflow import as_dataset

layers = tf.keras.layers
SIDE = 112
RANGES = {"photo": 255.0, "depth_rgb": 255.0, "depth": 1000.0}


def three_branches(spec: dict[str, Any], classes: int) -> tf.keras.Model:
    """A few convolutions for each picture, for a CPU. Put your own network here."""
    inputs = {name: layers.Input(spec[name].shape[1:], dtype=spec[name].dtype, name=name) for name in RANGES}
    found = []
    for name, image in inputs.items():
        x = layers.Rescaling(1 / RANGES[name])(
            layers.AveragePooling2D(4)(tf.keras.ops.cast(image, "float32"))
        )
        for filters in (16, 32):
            x = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(filters, 3, 2, "same")(x)))
        found.append(layers.GlobalMaxPooling2D()(x))
    return tf.keras.Model(inputs, layers.Dense(classes)(layers.Concatenate()(found)))


def pictures(values: dict[str, Any], labels: Any) -> tuple[dict[str, Any], Any]:
    return {name: values[name] for name in RANGES}, labels


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("dataset", nargs="?", default="wounds", help="a data set of stager.toml")
    parser.add_argument("--folds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    tf.keras.utils.set_random_seed(options.seed)
    for fold in range(options.folds):
        train = StagedArrays(
            options.dataset, options.batch_size, where=f"fold != {fold}", shuffle=True, seed=options.seed,
            augment=[RandomCrop(SIDE), HorizontalFlip()],  # the same for all three
        )  # fmt: skip
        test = StagedArrays(
            options.dataset, options.batch_size, where=f"fold = {fold}", augment=RandomCrop(SIDE)
        )
        data = as_dataset(train)
        model = three_branches(data.element_spec[0], len(train.classes))
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(tf.keras.optimizers.Adam(2e-3), loss, metrics=["accuracy"])
        began = time.perf_counter()
        model.fit(data.map(pictures), epochs=options.epochs, shuffle=False, verbose=0)
        seconds = time.perf_counter() - began
        _, right = model.evaluate(as_dataset(test).map(pictures), verbose=0)
        steps = len(train) * options.epochs
        print(f"fold {fold}: {right:.0%} right, {steps / seconds:.1f} steps/s", flush=True)


if __name__ == "__main__":
    main()
