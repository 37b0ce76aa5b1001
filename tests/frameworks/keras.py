"""Keras, on torch: fit() with a DataLoader of StagedDataset, and with StagedArrays as a generator."""

import os
from collections.abc import Iterator
from typing import Any

os.environ["KERAS_BACKEND"] = "torch"

import keras
from torch.utils.data import DataLoader

from frameworks.numbered import CLASSES, NAME, SIDE, Seen, main
from stager_client.numpy import StagedArrays
from stager_client.torch import StagedDataset


class Recorded(keras.Sequential):
    """A model that tells what it trains with."""

    seen: Seen
    epoch = 0

    def train_step(self, data: Any) -> Any:
        self.seen.add(self.epoch, *data)
        return super().train_step(data)


class Epoch(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.model.epoch = epoch


def dataset() -> None:
    fit((3, SIDE, SIDE), DataLoader(StagedDataset(NAME), 10, shuffle=True))


def arrays() -> None:
    loader = StagedArrays(NAME, 10, shuffle=True)
    fit((SIDE, SIDE, 3), repeated(loader), steps_per_epoch=len(loader))


def repeated(loader: StagedArrays) -> Iterator[Any]:
    while True:
        yield from loader


def fit(shape: tuple[int, ...], data: Any, **options: Any) -> None:
    layers = keras.layers
    net = Recorded([layers.Input(shape), layers.Rescaling(1 / 255), layers.Flatten(), layers.Dense(CLASSES)])
    net.seen = Seen()
    net.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    net.fit(data, epochs=2, verbose=0, callbacks=[Epoch()], **options)
    net.seen.save()


if __name__ == "__main__":
    main(dataset, arrays)
