"""staged_dataset: StagedLoader's samples in StagedLoader's order, as a tf.data.Dataset.

TensorFlow is 1.4 GB, so it has an environment of its own: `make tensorflow` runs this file there. In
`make test` it is skipped; that is the one skip we allow.
"""

import os
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fielded import stage_by_hand
from making import image_folder
from running import Place
from stager.reader.order import epoch_order
from stager.reader.values import Field
from stager_client.numpy import StagedArrays
from tables import COUNT, left, right, tables_at

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
tf = pytest.importorskip("tensorflow", reason="TensorFlow has an environment of its own: make tensorflow")

from stager_client.tensorflow import (  # noqa: E402
    ITERATORS,
    GridSegments,
    RandomCrop,
    RandomSegment,
    as_dataset,
    staged_dataset,
)

SAMPLES, CLASSES = 60, 6
Batch = tuple[Any, Any]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    root = tmp_path_factory.mktemp("tensorflow")
    image_folder(root / "source", CLASSES, SAMPLES // CLASSES)
    table = f'source = "{root}/source"\nrecipe = {{resize = 24, crop = 16}}\n'
    place = Place(root).configure(
        f"[datasets.data]\n{table}[datasets.counted]\n{table}[datasets.partly]\n{table}"
    )
    assert place.run("prefetch", "data", "--format", "arrow").returncode == 0
    assert place.run("prefetch", "partly", "--classes", "class000").returncode == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STAGER_CONFIG", str(place.config))
        yield place


def same(ours: Iterator[Batch], theirs: Iterator[Batch]) -> bool:
    pairs = list(zip(ours, theirs, strict=True))
    return bool(pairs) and all(
        np.array_equal(images, pixels) and np.array_equal(labels, targets)
        for (images, labels), (pixels, targets) in pairs
    )


def epoch_of(arrays: StagedArrays, epoch: int) -> list[Batch]:
    arrays.set_epoch(epoch)
    return list(arrays)


def batch_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("stager-batch")]


def labels_of(dataset: Any) -> list[int]:
    return [int(label) for _, labels in dataset for label in labels]


@pytest.mark.parametrize("seed", [0, 5])
@pytest.mark.parametrize(("rank", "world_size"), [(0, 1), (1, 2), (3, 4)])
@pytest.mark.parametrize("drop_last", [False, True])
def test_the_samples_and_their_order_are_those_of_numpy(
    place: Place, seed: int, rank: int, world_size: int, drop_last: bool
) -> None:
    options: dict[str, Any] = {
        "shuffle": True, "seed": seed, "rank": rank, "world_size": world_size, "drop_last": drop_last
    }  # fmt: skip
    dataset = staged_dataset("data", 7, **options)
    arrays = StagedArrays("data", 7, **options)
    assert len(dataset) == len(arrays)
    for epoch in range(3):
        assert same(dataset.as_numpy_iterator(), iter(epoch_of(arrays, epoch)))


def test_a_named_epoch_has_its_own_order(place: Place) -> None:
    arrays = StagedArrays("data", 8, shuffle=True, seed=1)
    arrays.set_epoch(4)
    dataset = as_dataset(arrays)
    assert same(dataset.as_numpy_iterator(), iter(epoch_of(StagedArrays("data", 8, shuffle=True, seed=1), 4)))


def test_a_subset_is_the_subset_of_numpy(place: Place) -> None:
    subset: dict[str, Any] = {"classes": 3, "subset_seed": 7, "per_class": 4}
    dataset = staged_dataset("data", 5, **subset)
    assert same(dataset.as_numpy_iterator(), iter(StagedArrays("data", 5, **subset)))


def test_shapes_are_static_and_the_batch_is_when_the_last_is_dropped(place: Place) -> None:
    images, labels = staged_dataset("data", 7).element_spec
    assert (images.shape.as_list(), images.dtype) == ([None, 16, 16, 3], tf.uint8)
    assert (labels.shape.as_list(), labels.dtype) == ([None], tf.int64)
    images, labels = staged_dataset("data", 7, drop_last=True).element_spec
    assert images.shape.as_list() == [7, 16, 16, 3]
    assert labels.shape.as_list() == [7]


def test_repeat_gives_a_new_order_each_epoch(place: Place) -> None:
    arrays = StagedArrays("data", 10, shuffle=True, seed=3)
    orders = [arrays.loader.samples.labels[epoch_order(SAMPLES, 3, epoch)] for epoch in range(3)]
    assert orders[0].tolist() != orders[1].tolist()
    assert labels_of(as_dataset(arrays).repeat(3)) == np.concatenate(orders).tolist()


def test_tensors_that_are_kept_stay_what_they_were(place: Place) -> None:
    dataset = staged_dataset("data", 7, shuffle=True, seed=2)
    kept = [list(dataset) for _ in range(4)]
    for epoch, batches in enumerate(kept):
        expected = epoch_of(StagedArrays("data", 7, shuffle=True, seed=2), epoch)
        assert same(((images.numpy(), labels.numpy()) for images, labels in batches), iter(expected))


def test_a_loop_that_keeps_nothing_uses_few_buffers_again(place: Place) -> None:
    arrays = StagedArrays("data", 4, prefetch=3)
    for _ in as_dataset(arrays).repeat(5):
        pass
    (pool,) = arrays.loader.pools.values()
    assert pool.made <= 15  # of 75 batches: TensorFlow gives a buffer back some batches later


def test_tensorflow_takes_the_buffers_without_a_copy(place: Place) -> None:
    """While all tensors of an epoch are kept, each has a buffer of its own: it holds them."""
    arrays = StagedArrays("data", 4)
    kept = list(as_dataset(arrays))
    (pool,) = arrays.loader.pools.values()
    assert pool.made == len(kept) == SAMPLES // 4


def test_a_loop_that_breaks_starts_the_epoch_anew_and_leaves_no_thread(place: Place) -> None:
    dataset = staged_dataset("data", 4, shuffle=True, seed=2)
    for _ in range(5):
        for _images, _labels in dataset:
            break
    deadline = time.monotonic() + 10
    while batch_threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert batch_threads() == []
    expected = epoch_of(StagedArrays("data", 4, shuffle=True, seed=2), 0)
    assert same(dataset.as_numpy_iterator(), iter(expected))


def test_counts_add_up_from_cold_to_warm(place: Place) -> None:
    with place.service():
        arrays = StagedArrays("counted", 10)
        assert len(labels_of(as_dataset(arrays).repeat(2))) == 2 * SAMPLES
        arrays.loader.samples.session.flush()
        row = place.json("stats")["datasets"]["counted"]
    assert row["requests"] == row["hits"] + row["misses"] == 2 * SAMPLES
    assert row["hits"] >= SAMPLES  # the second epoch, at least
    assert row["origin_reads"] == SAMPLES
    stats = arrays.stats()
    assert stats["batches"] == 12
    assert stats["waited_s"] > 0


def test_a_resumed_dataset_reads_the_rest_of_the_epoch_and_then_whole_ones(place: Place) -> None:
    before = StagedArrays("data", 10, shuffle=True, seed=6)
    seen = labels_of(as_dataset(before).take(2))
    after = StagedArrays("data", 10, shuffle=True, seed=6)
    after.load_state_dict(before.state_dict())
    dataset = as_dataset(after)
    whole = [int(label) for _, labels in epoch_of(before, 0) for label in labels]
    assert seen + labels_of(dataset) == whole
    assert len(labels_of(dataset)) == SAMPLES


def test_a_state_is_that_of_the_consumer_in_mid_epoch(place: Place) -> None:
    """TensorFlow would add a `prefetch` of its own, which runs ahead."""
    arrays = StagedArrays("data", 10, shuffle=True, seed=6)
    batches = iter(as_dataset(arrays).map(lambda images, labels: (images, labels)))
    for step in range(1, 4):
        next(batches)
        time.sleep(0.05)
        assert arrays.state_dict()["position"] == 10 * step
    assert arrays.stats()["batches"] == 3


def test_model_fit_learns_and_sees_each_epoch_in_its_own_order(place: Place) -> None:
    arrays = StagedArrays("data", 10, shuffle=True, seed=8)
    seen: list[int] = []

    def note(labels: Any) -> Any:
        seen.extend(labels.tolist())
        return labels

    def prepare(images: Any, labels: Any) -> Batch:
        noted = tf.numpy_function(note, [labels], tf.int64)
        noted.set_shape(labels.shape)
        return tf.cast(images, tf.float32) / 255.0, noted

    tf.keras.utils.set_random_seed(0)
    model = tf.keras.Sequential([tf.keras.layers.Flatten(), tf.keras.layers.Dense(CLASSES)])
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tf.keras.optimizers.SGD(0.01), loss)
    history = model.fit(as_dataset(arrays).map(prepare), epochs=2, shuffle=False, verbose=0).history["loss"]
    assert history[1] < history[0]
    orders = [arrays.loader.samples.labels[epoch_order(SAMPLES, 8, epoch)] for epoch in range(2)]
    assert seen[-2 * SAMPLES :] == np.concatenate(orders).tolist()


EXITING = """
import sys, time, types
import tensorflow as tf
from stager_client.numpy import StagedArrays
from stager_client.tensorflow import as_dataset

class Slow(StagedArrays):  # so a thread of TensorFlow's is in Python when the process ends
    def __iter__(self):
        for batch in super().__iter__():
            yield batch
            time.sleep(0.5)

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
dataset = as_dataset(Slow("data", 4)).repeat()
if sys.argv[1] == "prefetch":
    dataset = dataset.prefetch(2)
if sys.argv[1] == "distribute":
    dataset = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).experimental_distribute_dataset(dataset)
holder = sys.modules["holder"] = types.ModuleType("holder")  # Python takes it apart when it ends
holder.batches = iter(dataset)
next(holder.batches)
del holder, dataset
print("read", flush=True)
"""


@pytest.mark.parametrize("way", ["plain", "prefetch", "distribute"])
def test_a_process_may_end_in_the_middle_of_an_epoch(place: Place, way: str) -> None:
    done = place.python(EXITING, way)
    assert (done.returncode, done.stdout) == (0, "read\n"), done.stderr


LEAVING = """
from stager_client.tensorflow import staged_dataset
batches = iter(staged_dataset("partly", 4, timeout_s=600).prefetch(4))
next(batches)
print("read", flush=True)
"""


def test_a_process_may_end_while_samples_are_waited_for(place: Place) -> None:
    done = place.python(LEAVING)
    assert (done.returncode, done.stdout) == (0, "read\n"), done.stderr


DISTRIBUTED = """
import tensorflow as tf
from stager_client.numpy import StagedArrays
from stager_client.tensorflow import staged_dataset
(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
options = {"shuffle": True, "seed": 4, "drop_last": True}
expected = [labels.tolist() for _, labels in StagedArrays("data", 10, **options)]
parts = strategy.experimental_distribute_dataset(staged_dataset("data", 10, **options))
for step, (_, labels) in enumerate(parts):
    halves = [half.numpy().tolist() for half in strategy.experimental_local_results(labels)]
    assert [len(half) for half in halves] == [5, 5]
    assert halves[0] + halves[1] == expected[step]
print("steps", step + 1)
"""


def test_a_strategy_cuts_each_batch_up_between_its_devices(place: Place) -> None:
    done = place.python(DISTRIBUTED)
    assert (done.returncode, done.stdout) == (0, "steps 6\n"), done.stderr


def test_an_error_of_the_loader_says_what_is_wrong(place: Place) -> None:
    dataset = staged_dataset("partly", 4, timeout_s=0.5)
    with pytest.raises(tf.errors.OpError, match=r"WaitTimeout: .* samples of partly"):
        list(dataset)


# Several fields, attributes, rows of different length

DEPTH = Field("depth", "uint16", (4, 4))
GRID = Field("grid", "float32", (None, 2, None))
LINE = Field("line", "uint8", (None, 3))
SITES = [None if at % 5 == 0 else f"Köln {at}" for at in range(20)]
WEIGHTS = [None if at % 4 == 0 else at / 8 for at in range(20)]
TOLD = {"site": ("string", SITES), "weight": ("float64", WEIGHTS), "age": ("int64", list(range(20)))}


@pytest.fixture(scope="module", params=["arrow", "lmdb"])
def kind(request: pytest.FixtureRequest, place: Place) -> str:
    random = np.random.default_rng(0)
    samples = [
        {
            "depth": random.integers(0, 9999, (4, 4)).astype(np.uint16),
            "grid": random.random((1 + at % 3, 2, at % 4), np.float32),
            "line": random.integers(0, 255, (at % 5, 3)).astype(np.uint8),
        }
        for at in range(20)
    ]
    for batch in ("pad", "ragged"):
        fields = [DEPTH, replace(GRID, batch=batch), replace(LINE, batch=batch)]
        stage_by_hand(place, f"{batch}-{request.param}", fields, samples, TOLD, request.param)
    lines = [{"line": sample["line"]} for sample in samples]
    stage_by_hand(place, f"lines-{request.param}", [replace(LINE, batch="ragged")], lines, {}, request.param)
    return str(request.param)


def test_several_fields_and_attributes_have_static_shapes_and_numpys_values(place: Place, kind: str) -> None:
    dataset = staged_dataset(f"pad-{kind}", 6, shuffle=True, seed=2, drop_last=True)
    values, _ = dataset.element_spec
    assert {name: (spec.shape.as_list(), spec.dtype.name) for name, spec in values.items()} == {
        "depth": ([6, 4, 4], "uint16"),
        "grid": ([6, None, 2, None], "float32"),
        "grid_length": ([6, 2], "int64"),
        "line": ([6, None, 3], "uint8"),
        "line_length": ([6], "int64"),
        "site": ([6], "string"),
        "weight": ([6], "float64"),
        "age": ([6], "int64"),
    }
    arrays = StagedArrays(f"pad-{kind}", 6, shuffle=True, seed=2, drop_last=True)
    for (mine, labels), (theirs, targets) in zip(dataset, arrays, strict=True):
        assert labels.numpy().tolist() == targets.tolist()
        assert [text.decode() for text in mine.pop("site").numpy()] == theirs.pop("site").tolist()
        assert mine.keys() == theirs.keys()
        for name, value in mine.items():
            assert np.array_equal(value.numpy(), theirs[name], equal_nan=name == "weight")


def test_ragged_rows_are_a_ragged_tensor(place: Place, kind: str) -> None:
    dataset = staged_dataset(f"ragged-{kind}", 6, columns=["grid", "line", "depth"])
    values, _ = dataset.element_spec
    assert values["grid"] == tf.RaggedTensorSpec((None, None, 2, None), tf.float32, 3)
    assert values["line"] == tf.RaggedTensorSpec((None, None, 3), tf.uint8, 1)
    arrays = StagedArrays(f"ragged-{kind}", 6, columns=["grid", "line", "depth"])
    for (mine, _), (theirs, _) in zip(dataset, arrays, strict=True):
        assert np.array_equal(mine["depth"].numpy(), theirs["depth"])
        for name in ("grid", "line"):
            assert mine[name].to_list() == [row.tolist() for row in theirs[name]]
    (lines, _) = next(iter(staged_dataset(f"lines-{kind}", 6)))
    assert lines.to_list() == [row.tolist() for row in next(iter(StagedArrays(f"lines-{kind}", 6)))[0]]


def test_a_pass_over_ragged_rows_that_is_broken_off_leaves_no_thread(place: Place, kind: str) -> None:
    for _batch in staged_dataset(f"ragged-{kind}", 2, columns=["line"]):
        break
    deadline = time.monotonic() + 10
    while batch_threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert batch_threads() == []


def test_the_iterators_that_end_at_exit_are_those_that_tensorflow_has() -> None:
    """A private door, as those of test_private_doors.py: nobody tells which iterators there are."""
    from tensorflow.python.data.ops import iterator_ops, multi_device_iterator_ops

    file = "clients/stager_client/tensorflow.py (_drop_iterators)"
    told = f"TensorFlow {tf.__version__}: {{}}. {file} knows {ITERATORS}, or a process hangs at its end"
    iterator = iter(tf.data.Dataset.range(1))
    kinds = [type(iterator), getattr(multi_device_iterator_ops, "OwnedMultiDeviceIterator", None)]
    assert kinds[0] is getattr(iterator_ops, "OwnedIterator", None), told.format(f"an iterator is {kinds[0]}")
    assert [getattr(kind, "__name__", None) for kind in kinds] == list(ITERATORS), told.format(kinds)
    assert all(kind.__module__.startswith("tensorflow.") for kind in kinds), told.format(kinds)
    resource = weakref.ref(iterator._iterator_resource)
    vars(iterator).clear()
    assert resource() is None, told.format("it lives on though nothing is left in it")


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    ranks=st.sampled_from([(0, 1), (0, 2), (1, 2), (2, 3)]),
    seed=st.integers(0, 3),
    epoch=st.integers(0, 2),
    batches=st.integers(0, 3),
)
def test_samples_cuts_and_order_are_numpys_also_after_a_resume(
    place: Place, kind: str, ranks: tuple[int, int], seed: int, epoch: int, batches: int
) -> None:
    options: dict[str, Any] = {
        "shuffle": True, "seed": seed, "rank": ranks[0], "world_size": ranks[1],
        "columns": ["depth", "age"], "cut": RandomCrop((2, 3), fields=["depth"]),
    }  # fmt: skip
    whole = epoch_of(StagedArrays(f"pad-{kind}", 2, **options), epoch)
    before = StagedArrays(f"pad-{kind}", 2, **options)
    before.set_epoch(epoch)
    first = list(as_dataset(before).take(batches))
    after = StagedArrays(f"pad-{kind}", 2, **options)
    after.load_state_dict(before.state_dict())
    dataset = as_dataset(after)
    assert dataset.element_spec[0]["depth"].shape.as_list() == [None, 2, 3]
    found = [*first, *dataset]
    for (mine, _), (theirs, _) in zip(found, whole, strict=True):
        assert mine["age"].numpy().tolist() == theirs["age"].tolist()
        assert np.array_equal(mine["depth"].numpy(), theirs["depth"])


@pytest.mark.parametrize(
    ("cut", "shape"),
    [
        (RandomSegment(frames=4), [None, 4, 3]),
        (GridSegments(2, frames=4, pad="zero"), [None, 2, 4, 3]),
    ],
)
def test_segments_are_numpys_and_have_static_shapes(
    place: Place, kind: str, cut: Any, shape: list[int | None]
) -> None:
    has_line = "age != 0 and age != 5 and age != 10 and age != 15"
    options: dict[str, Any] = {"shuffle": True, "columns": ["line"], "cut": cut, "where": has_line}
    dataset = staged_dataset(f"pad-{kind}", 4, **options)
    assert dataset.element_spec[0]["line"].shape.as_list() == shape
    arrays = StagedArrays(f"pad-{kind}", 4, **options)
    for (mine, _), (theirs, _) in zip(dataset, arrays, strict=True):
        assert np.array_equal(mine["line"].numpy(), theirs["line"])


def test_a_table_is_read_as_it_was_staged_in_the_order_of_the_other_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tables_at(tmp_path)
    monkeypatch.setenv("STAGER_CONFIG", str(place.config))
    assert place.run("prefetch", "scans").returncode == 0
    options: dict[str, Any] = {"shuffle": True, "seed": 3, "where": "fold != 1"}
    seen = []
    for fields, labels in staged_dataset("scans", 5, **options):
        for number, first in enumerate(fields["left"][:, 0, 0].numpy().tolist()):
            at = int(first) // 100
            np.testing.assert_array_equal(fields["left"][number].numpy(), left(at))
            np.testing.assert_array_equal(fields["right"][number].numpy(), right(at % 8))
            assert int(fields["fold"][number]) == at % 4 != 1
            assert int(labels[number]) == (at % 3 == 0)
            seen.append(at)
    assert sorted(seen) == [at for at in range(COUNT) if at % 4 != 1]
    arrays = StagedArrays("scans", 5, **options)
    assert seen == [int(first) // 100 for fields, _ in arrays for first in fields["left"][:, 0, 0]]
