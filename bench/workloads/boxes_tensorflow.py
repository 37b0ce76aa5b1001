"""A training in TensorFlow on cropped pictures: by a Python function of the user, and by stager."""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

import numpy as np
import pyarrow.csv
import tensorflow as tf
from PIL import Image

BATCH: Final = 32
SIDE: Final = 128
FIELDS: Final = {"photo": (np.uint8, 3), "depth_rgb": (np.uint8, 3), "depth": (np.uint16, 1)}
CORNERS: Final = ("xmin", "ymin", "xmax", "ymax")
Opened = Callable[[int], Any]  # the fold that is left out -> a tf.data.Dataset


def own_way(folder: Path, parallel: int | None) -> Opened:
    """As people write it: each row through a Python function, which opens, crops and resizes each picture."""
    table = pyarrow.csv.read_csv(folder / "samples.csv").to_pydict()
    classes = sorted(set(table["phase"]))

    def load(row: int) -> list[Any]:
        found = []
        for name, (dtype, channels) in FIELDS.items():
            with Image.open(folder / name / table[name][row]) as image:
                part = image.crop(tuple(table[corner][row] for corner in CORNERS))
                pixels = np.asarray(part.resize((SIDE, SIDE), Image.Resampling.BILINEAR), dtype)
            found.append(pixels.reshape(SIDE, SIDE, channels))
        return [*found, np.int64(classes.index(table["phase"][row]))]

    types = [dtype for dtype, _ in FIELDS.values()]

    def loaded(row: Any) -> Any:
        *pixels, label = tf.numpy_function(load, [row], [*types, np.int64])
        for part, (_, channels) in zip(pixels, FIELDS.values(), strict=True):
            part.set_shape((SIDE, SIDE, channels))
        return dict(zip(FIELDS, pixels, strict=True)), label

    def opened(fold: int) -> Any:
        rows = [row for row, of in enumerate(table["fold"]) if of != fold]
        data = tf.data.Dataset.from_tensor_slices(rows).shuffle(len(rows), seed=fold)
        return data.map(loaded, num_parallel_calls=parallel).batch(BATCH).prefetch(1)

    return opened


def staged(fold: int) -> Any:
    from stager_client.tensorflow import staged_dataset

    return staged_dataset(
        "wounds", BATCH, where=f"fold != {fold}", shuffle=True, columns=list(FIELDS), timeout_s=120
    )


@tf.function
def step(values: Any) -> Any:
    """What stands for a model: every value is read once."""
    return tf.add_n([tf.reduce_mean(tf.cast(values[name], tf.float32)) for name in FIELDS])


@tf.function
def summed(values: Any) -> Any:
    return tf.add_n([tf.reduce_sum(tf.cast(values[name], tf.int64)) for name in FIELDS])


def epoch(data: Any, steps: int) -> dict[str, float]:
    """One pass, or so many steps of it. The clock of the steps runs from the start of the pass."""
    began, first_s, done = time.perf_counter(), 0.0, 0
    for values, _ in data.take(steps) if steps else data:
        first_s = first_s or time.perf_counter() - began
        step(values)
        done += 1
    return {"rate": done / (time.perf_counter() - began), "first_batch_s": first_s}


def main() -> None:
    task = json.loads(sys.argv[1])
    shapes = {name: tf.TensorSpec((None, SIDE, SIDE, n), dtype) for name, (dtype, n) in FIELDS.items()}
    for function in (step, summed):
        function.get_concrete_function(shapes)  # compiled before the clock runs
    parallel = tf.data.AUTOTUNE if task["parallel"] else None
    opened = staged if task["way"] == "stager" else own_way(Path(task["folder"]), parallel)
    answer: dict[str, Any] = {}
    if task.get("sums"):
        answer["pixel_sums"] = [sum(int(summed(values)) for values, _ in opened(f)) for f in task["folds"]]
    else:
        (fold,) = task["folds"]
        began = time.perf_counter()
        data = opened(fold)
        open_s = time.perf_counter() - began
        for number in range(task["epochs"]):
            told = epoch(data, task["steps"])
            answer[f"rate_epoch_{number}"] = told["rate"]
            answer.setdefault("first_batch_s", open_s + told["first_batch_s"])
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
