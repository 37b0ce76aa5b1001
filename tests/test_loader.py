"""StagedLoader: the known order, exact resume on any number of ranks, buffers that are never torn away."""

import errno
import gc
import os
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from making import image_folder, jpeg
from running import Place
from sets import flip_a_bit, shard_files
from stager.cache.index_writer import IndexWriter
from stager.errors import UsageError
from stager.reader import native
from stager.reader.index import FAILED
from stager.reader.order import epoch_order
from stager.reader.record import index_path
from stager_client.batches.buffers import BufferPool
from stager_client.numpy import StagedArrays
from stager_client.torch import StagedDataset, StagedLoader, pin_for_cuda

SAMPLES = 60


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    root = tmp_path_factory.mktemp("loader")
    image_folder(root / "source", 6, 10)
    image_folder(root / "uneven", 1, 3)
    (root / "uneven/class000/wide.jpg").write_bytes(jpeg(0, width=144))
    tables = (
        f'[datasets.data]\nsource = "{root}/source"\nrecipe = {{resize = 24, crop = 16}}\n'
        f'[datasets.uneven]\nsource = "{root}/uneven"\nrecipe = {{resize = 24, crop = 0}}\n'
        f'[datasets.jpeg]\nsource = "{root}/source"\nrecipe = {{resize = 24, crop = 16, encode = "jpeg"}}\n'
    )
    for name in ("partly", "rotten"):
        tables += f'[datasets.{name}]\nsource = "{root}/source"\nrecipe = {{resize = 24, crop = 16}}\n'
    place = Place(root).configure(tables)
    assert place.run("prefetch", "partly", "--classes", "class000").returncode == 0
    for name in ("data", "uneven", "jpeg"):
        assert place.run("prefetch", name, "--format", "lmdb" if name == "jpeg" else "arrow").returncode == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STAGER_CONFIG", str(place.config))
        yield place


@pytest.fixture(scope="module")
def data(place: Place) -> StagedDataset:
    return StagedDataset("data")


def labels_of(loader: StagedLoader) -> list[int]:
    return [int(label) for _, labels in loader for label in labels]


def fail_in(loader: StagedLoader) -> None:
    for _images, _labels in loader:
        raise ZeroDivisionError


def positions_of(loader: StagedLoader) -> list[int]:
    return [int(position) for batch in loader.loader for position in batch.positions]


@pytest.mark.parametrize("name", ["data", "jpeg"])
def test_batches_have_the_pixels_and_labels_of_the_data_set_in_the_known_order(
    place: Place, name: str
) -> None:
    data = StagedDataset(name)
    loader = StagedLoader(data, 7, shuffle=True, seed=5)
    order = epoch_order(SAMPLES, 5, 0)
    at = 0
    for images, labels in loader:
        assert images.dtype == torch.uint8
        assert images.is_contiguous(memory_format=torch.channels_last)
        for image, label in zip(images, labels, strict=True):
            expected, target = data[int(order[at])]
            assert torch.equal(image, expected)
            assert int(label) == target
            at += 1
    assert at == SAMPLES


@pytest.mark.parametrize("name", ["data", "jpeg"])
def test_a_batch_is_right_at_the_first_touch_and_afterwards(place: Place, name: str) -> None:
    samples = StagedDataset(name).samples
    numbers = samples.numbers[::-1]
    right = np.stack([arrays["image"] for arrays in StagedDataset(name).samples.read(range(SAMPLES))])
    for _ in range(2):  # with checksums, and without
        rows = BufferPool((SAMPLES, 16, 16, 3), np.uint8).take()
        assert samples.reader.fill(numbers, {"image": rows}) == ([], [])
        assert np.array_equal(rows, right[::-1])


def test_a_row_that_is_damaged_is_told_and_the_others_are_right(place: Place) -> None:
    assert place.run("prefetch", "rotten", "--format", "arrow").returncode == 0
    right = np.stack([arrays["image"] for arrays in StagedDataset("rotten").samples.read(range(SAMPLES))])
    flip_a_bit(shard_files(place, "rotten")[0])
    samples = StagedDataset("rotten").samples
    for _ in range(2):
        rows = BufferPool((SAMPLES, 16, 16, 3), np.uint8).take()
        missing, corrupt = samples.reader.fill(samples.numbers, {"image": rows})
        assert missing == []
        assert corrupt == np.flatnonzero((rows != right).any(axis=(1, 2, 3))).tolist()
        assert len(corrupt) == 1


def test_a_disk_that_fails_is_told_and_not_the_end(
    data: StagedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = data.samples
    rows = BufferPool((SAMPLES, 16, 16, 3), np.uint8).take()
    read = os.preadv
    calls = 0

    def fail(fd: int, rooms: list[memoryview], offset: int) -> int:
        nonlocal calls
        calls += 1
        if calls % 3 == 0:
            raise OSError(errno.EIO, "Input/output error")
        return read(fd, [rooms[0][: calls % 3 * 700]], offset)  # and now and then it stops halfway

    for _ in range(2):  # at the first touch, and afterwards
        with monkeypatch.context() as patch:
            patch.setattr(
                native, "library", None
            )  # tests/test_native.py has files that fail under native code
            patch.setattr(os, "preadv", fail)
            missing, corrupt = samples.reader.fill(samples.numbers, {"image": rows})
        assert missing == []
        assert 0 < len(corrupt) < SAMPLES
        assert samples.reader.fill(samples.numbers, {"image": rows}) == ([], [])


def test_the_next_epoch_has_another_order_and_a_named_epoch_its_own(data: StagedDataset) -> None:
    loader = StagedLoader(data, 8, shuffle=True, seed=1)
    first, second = positions_of(loader), positions_of(loader)
    assert second == epoch_order(SAMPLES, 1, 1).tolist() != first
    loader.set_epoch(0)
    assert positions_of(loader) == first
    assert positions_of(StagedLoader(data, 8)) == list(range(SAMPLES))


def test_the_length_counts_the_last_batch_unless_it_is_dropped(data: StagedDataset) -> None:
    assert len(StagedLoader(data, 7)) == 9
    assert len(StagedLoader(data, 7, drop_last=True)) == 8
    assert [len(labels) for _, labels in StagedLoader(data, 25)] == [25, 25, 10]
    assert [len(labels) for _, labels in StagedLoader(data, 25, drop_last=True)] == [25, 25]


@settings(max_examples=40, deadline=None)
@given(
    stops=st.lists(st.tuples(st.sampled_from([1, 2, 4]), st.integers(0, 4)), max_size=4),
    batch=st.integers(1, 9),
    epoch=st.integers(0, 3),
)
def test_resuming_at_any_batch_on_any_number_of_ranks_reads_what_one_run_reads(
    data: StagedDataset, stops: list[tuple[int, int]], batch: int, epoch: int
) -> None:
    state = None
    read: list[int] = []
    for world_size, steps in [*stops, (2, SAMPLES)]:
        loaders = [
            StagedLoader(data, batch, shuffle=True, seed=9, rank=rank, world_size=world_size)
            for rank in range(world_size)
        ]
        for loader in loaders:
            loader.load_state_dict(state) if state else loader.set_epoch(epoch)
        before = loaders[0].state_dict()["position"]
        runs = [iter(loader.loader) for loader in loaders]
        rounds: list[list[int]] = []
        for _ in range(steps):
            batches = [next(run, None) for run in runs]
            if batches[0] is None:
                break
            parts = [found.positions for found in batches if found is not None]
            rounds.append(np.stack(parts, axis=1).reshape(-1).tolist())
            state = loaders[0].state_dict()
        assert len({str(loader.state_dict()) for loader in loaders}) == 1
        read += [position for part in rounds for position in part][: SAMPLES - before]
        state = state or loaders[0].state_dict()
        for run in runs:
            run.close()  # type: ignore[attr-defined]
        if state["position"] in (0, SAMPLES) and rounds:
            break
    assert read == epoch_order(SAMPLES, 9, epoch).tolist()


def test_a_state_is_three_integers_and_two_digests_and_fits_only_its_data(
    place: Place, data: StagedDataset
) -> None:
    loader = StagedLoader(data, 8, shuffle=True, seed=3)
    run = iter(loader)
    next(run)
    next(run)
    state = loader.state_dict()
    assert {name: value for name, value in state.items() if name != "digest"} == {
        "seed": 3,
        "epoch": 0,
        "position": 16,
        "version": data.samples.manifest_digest,
    }
    other = StagedLoader(StagedDataset("data", classes=2), 8, shuffle=True)
    with pytest.raises(UsageError, match="other data"):
        other.load_state_dict(state)


def test_a_state_is_of_the_very_samples_that_were_read(place: Place, data: StagedDataset) -> None:
    """With skip_failed there may be as many samples as before, and others."""
    record = data.samples.reader.record
    path = index_path(data.samples.reader.directory, record.recipe, record.lineage)
    index = IndexWriter(path, len(data.samples.reader.index.words), record.lineage, record.recipe)
    words = index.words.copy()
    states = []
    try:
        for failed in (3, 5, 3):
            index.publish(np.arange(len(words)), words)
            index.publish(np.asarray([failed]), np.asarray([FAILED]))
            loader = StagedLoader(StagedDataset("data", skip_failed=True), 8, shuffle=True)
            assert len(loader.loader.samples) == SAMPLES - 1
            states.append((loader, loader.state_dict()))
    finally:
        index.publish(np.arange(len(words)), words)
    states[0][0].load_state_dict(states[2][1])
    with pytest.raises(UsageError, match="other data"):
        states[0][0].load_state_dict(states[1][1])


def test_a_loop_that_breaks_starts_the_epoch_anew_and_leaves_no_thread(data: StagedDataset) -> None:
    before = threading.active_count()
    loader = StagedLoader(data, 4, shuffle=True, seed=2)
    for _ in range(20):
        for _images, _labels in loader:
            break
    with pytest.raises(ZeroDivisionError):
        fail_in(loader)
    assert positions_of(loader) == epoch_order(SAMPLES, 2, 0).tolist()
    for thread in threading.enumerate():
        if thread.name.startswith("stager-batch"):
            thread.join(5)
    assert threading.active_count() <= before + 1  # the reporter


def test_the_last_batch_ends_its_epoch_even_if_nobody_asks_for_one_more(data: StagedDataset) -> None:
    """Keras counts batches. A state that is saved then is the beginning of the next epoch."""
    loader = StagedLoader(data, 25, shuffle=True, seed=2)
    run = iter(loader)
    for _ in range(len(loader)):
        next(run)
    assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (1, 0)
    assert positions_of(loader) == epoch_order(SAMPLES, 2, 1).tolist()


def test_a_rest_that_is_dropped_ends_its_epoch(data: StagedDataset) -> None:
    loader = StagedLoader(data, 40, drop_last=True)
    loader.load_state_dict({**loader.state_dict(), "position": 40})
    assert positions_of(loader) == []
    assert len(positions_of(loader)) == 40


LEAVING = """
from stager_client.torch import StagedDataset, StagedLoader
batches = iter(StagedLoader(StagedDataset("partly", timeout_s=600), 5))
next(batches)
print("read", flush=True)
"""


def test_a_process_may_end_while_samples_are_waited_for(place: Place) -> None:
    """There is no service, so they never come."""
    done = place.python(LEAVING)
    assert (done.returncode, done.stdout) == (0, "read\n"), done.stderr


def test_batches_that_are_kept_stay_what_they_were(data: StagedDataset) -> None:
    kept = [images for images, _ in StagedLoader(data, 6)]
    for number, image in enumerate(torch.cat(kept)):
        assert torch.equal(image, data[number][0])


def test_a_loop_that_keeps_nothing_uses_few_buffers_again(data: StagedDataset) -> None:
    loader = StagedLoader(data, 4, prefetch=3)
    for _ in range(5):
        for _images, _labels in loader:
            pass
    (pool,) = loader.loader.pools.values()
    assert pool.made <= 6


def test_a_view_of_a_view_keeps_its_buffer() -> None:
    pool = BufferPool((4, 3), np.uint8)
    view = torch.from_numpy(pool.take()[1:3].T)[0]
    other = pool.take()
    assert pool.made == 2
    del view, other
    pool.take()
    assert pool.made == 2


def test_samples_of_different_sizes_are_refused_with_a_way_out(place: Place) -> None:
    with pytest.raises(UsageError, match="differ in size"):
        next(iter(StagedLoader(StagedDataset("uneven"), 4)))
    assert len(StagedDataset("uneven")[0][0].shape) == 3


@pytest.mark.parametrize("wrong", [{"batch_size": 0}, {"prefetch": 0}, {"rank": 2, "world_size": 2}])
def test_arguments_that_make_no_sense_are_refused(data: StagedDataset, wrong: dict[str, int]) -> None:
    with pytest.raises(UsageError):
        StagedLoader(data, **{"batch_size": 4, **wrong})  # type: ignore[arg-type]


def test_a_data_set_with_transforms_of_its_own_is_refused_with_a_way_out(place: Place) -> None:
    """They are for single samples, and the loader makes whole batches: it would leave them out."""
    for name in ("transform", "target_transform"):
        with pytest.raises(UsageError, match=f"StagedDataset has a {name}") as caught:
            StagedLoader(StagedDataset("data", **{name: lambda value: value}), 4)  # type: ignore[arg-type]
        assert "DataLoader" in caught.value.hint
    data = StagedDataset("data")
    loader = StagedLoader(data, 4)
    data.transform = lambda image: image
    with pytest.raises(UsageError, match="StagedDataset has a transform"):
        iter(loader)


def test_waiting_computing_and_the_transform_are_told_apart(place: Place) -> None:
    """A sleep is never too short, and together they are no more than the time there was."""
    data = StagedDataset("data")

    def slow(images: torch.Tensor) -> torch.Tensor:
        time.sleep(0.02)
        return images

    loader = StagedLoader(data, 10, transform=slow)
    began = time.perf_counter()
    for number, _ in enumerate(loader):
        time.sleep(0.05)
        if number == 3:
            break  # what it computed on the last one counts, too
    passed = time.perf_counter() - began
    stats = loader.stats()
    assert stats["batches"] == 4
    assert stats["transformed_s"] >= 4 * 0.02
    assert stats["waited_s"] >= stats["transformed_s"]
    assert stats["computed_s"] >= 4 * 0.05
    assert stats["waited_s"] + stats["computed_s"] <= passed


def test_numpy_has_the_same_samples_in_the_same_order(place: Place, data: StagedDataset) -> None:
    arrays = StagedArrays("data", 8, shuffle=True, seed=4, rank=1, world_size=2)
    loader = StagedLoader(data, 8, shuffle=True, seed=4, rank=1, world_size=2)
    assert len(arrays) == len(loader)
    for (images, labels), (tensors, targets) in zip(arrays, loader, strict=True):
        assert images.shape[1:] == (16, 16, 3)
        assert (images == tensors.permute(0, 2, 3, 1).numpy()).all()
        assert labels.tolist() == targets.tolist()
    assert arrays.state_dict() == loader.state_dict()


def test_each_piece_of_memory_is_pinned_once_and_before_it_is_given_out() -> None:
    pinned: list[int] = []
    pool = BufferPool((3, 4), np.uint8, lambda memory: pinned.append(id(memory)))
    first, second = pool.take(), pool.take()
    assert len(set(pinned)) == 2
    del first, second
    pool.take()
    assert len(pinned) == 2


@pytest.mark.parametrize("may_pin", [True, False])
def test_memory_is_registered_with_cuda_by_its_address_and_let_go_of_when_it_is_gone(
    may_pin: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no GPU here: a stand-in for CUDA's own calls tells what they were asked."""
    held: dict[int, int] = {}

    class Cudart:
        def cudaHostRegister(self, address: int, size_bytes: int, _flags: int) -> int:
            held[address] = size_bytes
            return 0 if may_pin else 1

        def cudaHostUnregister(self, address: int) -> int:
            held.pop(address)
            return 0

    monkeypatch.setattr(torch.cuda, "cudart", Cudart)
    pool = BufferPool((1000,), np.uint8, pin_for_cuda)
    rows = pool.take()
    assert held == {rows.ctypes.data: 1000}
    del rows, pool
    gc.collect()
    assert bool(held) is not may_pin  # what was not registered is not let go of
