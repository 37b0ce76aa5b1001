"""tf.data from raw TFRecords and from its own file cache; and stager's client for TensorFlow."""

import os
import sys

from bench.peers.common import BATCH, SIDE, Epoch, Task, main, raw_items, start_decoders

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
if '"prepare"' in sys.argv[1]:
    start_decoders()  # before TensorFlow is loaded: it does not like to be forked

from pathlib import Path
from typing import Any

import tensorflow as tf

FILE_SAMPLES = 1024
SHUFFLE_SAMPLES = 1000
COLUMNS = {"x": tf.io.FixedLenFeature([], tf.string), "y": tf.io.FixedLenFeature([], tf.int64)}


def prepare(task: Task) -> None:
    out = Path(task["out"])
    out.mkdir(parents=True)
    writer: Any = None
    for number, (image, label) in enumerate(raw_items(task)):
        if number % FILE_SAMPLES == 0:
            if writer is not None:
                writer.close()
            writer = tf.io.TFRecordWriter(str(out / f"{number // FILE_SAMPLES:05d}.tfrecord"))
        writer.write(example(image, label))
    writer.close()


def example(image: bytes, label: int) -> bytes:
    values = {
        "x": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
        "y": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
    }
    made: bytes = tf.train.Example(features=tf.train.Features(feature=values)).SerializeToString()
    return made


def parse(record: Any) -> Any:
    row = tf.io.parse_single_example(record, COLUMNS)
    return tf.reshape(tf.io.decode_raw(row["x"], tf.uint8), (SIDE, SIDE, 3)), row["y"]


def open_epochs(task: Task) -> Epoch:
    if task["store"] == "stager":
        from stager_client.tensorflow import staged_dataset

        data = staged_dataset("bench", BATCH, shuffle=True, threads=task["workers"])
        return lambda: data
    parallel = task["workers"] or tf.data.AUTOTUNE
    files = tf.data.Dataset.list_files(f"{task['path']}/*.tfrecord", shuffle=True)
    data = files.interleave(tf.data.TFRecordDataset, cycle_length=2, num_parallel_calls=parallel)
    if task["store"] == "cache":
        data = (
            data.map(parse, num_parallel_calls=parallel).cache(task["cache"] + "/tf").shuffle(SHUFFLE_SAMPLES)
        )
    else:
        data = data.shuffle(SHUFFLE_SAMPLES).map(parse, num_parallel_calls=parallel)
    data = data.batch(BATCH).prefetch(2)
    options = tf.data.Options()
    options.autotune.enabled = False  # it makes epochs end in steps of seconds
    if task["workers"]:
        options.threading.private_threadpool_size = task["workers"]
    data = data.with_options(options)
    return lambda: data


if __name__ == "__main__":
    main(prepare, open_epochs, tf.__version__)
