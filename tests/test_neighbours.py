"""Rows of one batch in a plain DataLoader: what torch's own collate makes of them is the batch itself."""

import pickle
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import ConcatDataset, DataLoader, Subset, default_collate  # noqa: E402

from making import image_folder  # noqa: E402
from running import Place  # noqa: E402
from sets import table  # noqa: E402
from stager_client.batches.torch import Neighbour, neighbours  # noqa: E402
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
