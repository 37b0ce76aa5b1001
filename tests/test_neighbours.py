"""Rows of one batch in a plain DataLoader: what torch's own collate makes of them is the batch itself."""

import pickle
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import ConcatDataset, DataLoader, Subset, default_collate  # noqa: E402

from making import image_folder  # noqa: E402
from running import Place  # noqa: E402
from sets import table  # noqa: E402
from stager_client.batches.buffers import KEPT, BufferPool  # noqa: E402
from stager_client.batches.torch import BatchMemory, Neighbour, neighbours  # noqa: E402
from stager_client.torch import StagedDataset  # noqa: E402


@pytest.fixture(scope="module")
def staged_place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    place = Place(tmp_path_factory.mktemp("neighbours"))
    image_folder(place.root / "source", 3, 5)
    place.configure(table("pets", place.root / "source"))
    place.json("prefetch", "pets")
    return place


@pytest.fixture
def data(staged_place: Place, monkeypatch: pytest.MonkeyPatch) -> StagedDataset:
    monkeypatch.setenv("STAGER_CONFIG", str(staged_place.config))
    return StagedDataset("pets")


def want(data: StagedDataset, order: list[int]) -> "torch.Tensor":
    return torch.stack([data[index][0] for index in order])


def test_torch_has_the_collate_and_the_shared_memory_that_we_rely_on() -> None:
    """Private doors of torch: whoever upgrades it is told here, and by name."""
    from torch.utils.data._utils import collate

    told = f"torch {torch.__version__}: neighbours.py relies on it, find another way"
    assert collate.default_collate_fn_map[Neighbour], told
    assert callable(torch.UntypedStorage._new_shared), told
    shared = torch.UntypedStorage._new_shared(64, device="cpu")
    assert shared.is_shared(), told
    assert shared.nbytes() == 64, told


def test_a_batch_of_all_rows_in_order_is_the_batch_and_no_copy() -> None:
    batch = torch.arange(24, dtype=torch.uint8).reshape(4, 2, 3)
    collated = default_collate(neighbours(batch))
    assert type(collated) is torch.Tensor
    assert collated.data_ptr() == batch.data_ptr()


@pytest.mark.parametrize("rows", [[0], [1, 0], [0, 0], [0, 1, 1], [0, 1, 2, 0]])
def test_other_rows_or_another_order_is_a_stack_of_them(rows: list[int]) -> None:
    batch, other = torch.arange(9).reshape(3, 3), torch.arange(9, 18).reshape(3, 3)
    mine, others = neighbours(batch), neighbours(other)
    assert torch.equal(default_collate([mine[row] for row in rows]), batch[rows])
    mixed = [mine[0], others[1], mine[2]]
    assert torch.equal(default_collate(mixed), torch.stack([batch[0], other[1], batch[2]]))


def test_what_is_worked_out_from_a_row_is_a_plain_tensor_and_a_change_in_place_is_in_the_batch() -> None:
    batch = torch.ones(2, 3)
    row, _ = rows = neighbours(batch)
    assert type(row + 1) is torch.Tensor
    assert type(row[:2]) is torch.Tensor
    row.mul_(5)
    assert default_collate(rows).tolist() == [[5.0] * 3, [1.0] * 3]


def test_a_row_that_is_pickled_is_a_plain_tensor_of_its_own(tmp_path: Path) -> None:
    batch = torch.arange(6).reshape(2, 3)
    back = pickle.loads(pickle.dumps(neighbours(batch)[1]))  # noqa: S301
    assert type(back) is torch.Tensor
    assert back.tolist() == [3, 4, 5]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_a_plain_dataloader_gives_the_samples_in_order(data: StagedDataset, workers: int, start: str) -> None:
    if not workers and start == "spawn":
        return
    loader = DataLoader(
        data, batch_size=4, num_workers=workers, multiprocessing_context=start if workers else None
    )
    images, labels = zip(*loader, strict=True)
    assert [len(batch) for batch in images] == [4, 4, 4, 3]
    assert all(type(batch) is torch.Tensor for batch in images)
    assert images[0].is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(torch.cat(images), want(data, list(range(15))))
    assert torch.cat(labels).tolist() == data.targets


def test_a_list_of_samples_leaves_a_worker_whole(data: StagedDataset) -> None:
    (batch,) = DataLoader(data, batch_size=15, num_workers=1, collate_fn=list)
    assert torch.equal(torch.stack([image for image, _ in batch]), want(data, list(range(15))))


def test_subsets_and_joined_data_sets_give_their_own_samples(data: StagedDataset) -> None:
    order = [7, 3, 3, 14]
    ((images, labels),) = DataLoader(Subset(data, order), batch_size=4)
    assert torch.equal(images, want(data, order))
    assert labels.tolist() == [data.targets[index] for index in order]
    ((images, _),) = DataLoader(ConcatDataset([data, data]), batch_size=30)
    assert torch.equal(images, want(data, [*range(15), *range(15)]))


def test_batches_that_are_kept_are_not_written_again(data: StagedDataset) -> None:
    batches = [images for images, _ in DataLoader(data, batch_size=5)]
    assert torch.equal(torch.cat(batches), want(data, list(range(15))))


def test_a_transform_gets_each_sample_alone_as_a_plain_tensor(data: StagedDataset) -> None:
    data.transform = lambda image: image.float() if type(image) is torch.Tensor else None
    data.target_transform = lambda label: label + 10
    ((images, labels),) = DataLoader(data, batch_size=15)
    data.transform = None
    assert torch.equal(images, want(data, list(range(15))).float())
    assert labels.tolist() == [label + 10 for label in data.targets]


def test_a_transform_has_one_thread_as_in_a_worker_and_all_are_there_again_afterwards(
    data: StagedDataset,
) -> None:
    before, during = torch.get_num_threads(), []
    torch.set_num_threads(3)
    try:
        data.transform = lambda image: during.append(torch.get_num_threads()) or image
        assert len(list(DataLoader(data, 5))) == 3
        assert (set(during), torch.get_num_threads()) == ({1}, 3)
        data.transform = lambda image: 1 // 0
        with pytest.raises(ZeroDivisionError):
            data[0]
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    "transform",
    [
        lambda image: image,
        lambda image: image.float() / 255,
        lambda image: image[:, 2:9, 5::3],
        lambda image: image.transpose(0, 2).half().contiguous(),
        lambda image: image[:1, :1].expand(3, 4, 32),
        lambda image: {"whole": image, "mean": image.float().mean((1, 2))},
    ],
    ids=["same", "float", "view", "turned", "expanded", "dict"],
)
def test_what_a_transform_makes_lies_side_by_side_and_is_what_a_stack_of_it_would_be(
    data: StagedDataset, transform: Any
) -> None:
    single = default_collate([transform(data[index][0]) for index in range(15)])
    data.transform = transform
    ((batch, labels),) = DataLoader(data, 15)
    torch.testing.assert_close(batch, single, rtol=0, atol=0)
    assert labels.tolist() == data.targets
    values = [value for value, _ in data.__getitems__([3, 1])]
    columns = [list(value.values()) if isinstance(value, dict) else [value] for value in values]
    assert all(isinstance(tensor, Neighbour) for column in columns for tensor in column)


@pytest.mark.parametrize(
    "transform",
    [
        lambda image: image.bfloat16(),
        lambda image: image.float().requires_grad_(),
        lambda image: image.float().mean(),
        lambda image: int(image[0, 0, 0]),
        lambda image: image[:, : 1 + int(image[0, 0, 0]) % 4],
        lambda image: {f"{int(image[0, 0, 0]) % 3}": image},
    ],
    ids=["bfloat16", "slope", "number", "int", "shapes", "keys"],
)
def test_what_cannot_lie_side_by_side_is_given_as_the_transform_made_it(
    data: StagedDataset, transform: Any
) -> None:
    data.transform = transform
    for index, (value, label) in enumerate(data.__getitems__(range(15))):
        assert type(value) is not Neighbour
        torch.testing.assert_close(value, data[index][0], rtol=0, atol=0)
        assert label == data.targets[index]


def test_memory_for_shapes_that_change_from_batch_to_batch_is_kept_for_the_last_one() -> None:
    memory = BatchMemory()
    for side in range(1, 50):
        assert memory.take("made", 2, (side,), "uint8").shape == (2, side)
    assert len(memory._pools) == 1


def test_a_batch_that_is_kept_is_never_written_again(data: StagedDataset) -> None:
    loader = DataLoader(data, 4, shuffle=True)
    kept = [(images, images.clone()) for _ in range(3) for images, _ in loader]
    first_rows = [data.__getitems__([index, index + 1])[0][0] for index in range(10)]
    assert all(torch.equal(images, before) for images, before in kept)
    assert all(torch.equal(row, data[index][0]) for index, row in enumerate(first_rows))


def test_memory_that_nobody_holds_is_used_again(data: StagedDataset) -> None:
    def address() -> int:
        (images, _), *_ = DataLoader(data, 15)
        return int(images.data_ptr())

    assert len({address() for _ in range(5)}) == 1


def test_the_memory_of_many_batches_is_given_back() -> None:
    pool = BufferPool((4, 1000), "uint8")
    held = [pool.take() for _ in range(50)]
    held.clear()
    again = [pool.take() for _ in range(50)]
    assert len(again) == 50
    assert pool.made == 50 + (50 - KEPT)
