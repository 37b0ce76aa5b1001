"""Several fields a sample, of any dtype and shape, and attributes: the same in torch and NumPy."""

import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch.utils.data import DataLoader

from fielded import SHARD_ROWS, stage_by_hand
from running import Place
from stager.errors import UsageError
from stager.reader.order import epoch_order
from stager.reader.shards import opened
from stager.reader.values import Arrays, Field
from stager_client.augment import CentreCrop
from stager_client.numpy import StagedArrays
from stager_client.torch import StagedDataset, StagedLoader

COUNT = 24
PHOTO = Field("photo", "uint8", (6, 5, 3), axes="HWC")
DEPTH = Field("depth", "uint16", (4, 4))
POINT = Field("point", "float32", ())
VOLUME = Field("volume", "int16", (2, 3, 4))
CLIP = Field("clip", "int16", (None,))
ATTRIBUTES = {
    "age": ("int64", list(range(COUNT))),
    "is_left": ("bool", [at % 3 == 0 for at in range(COUNT)]),
    "weight": ("float64", [None if at % 4 == 0 else at / 8 for at in range(COUNT)]),
    "site": ("string", [None if at % 5 == 0 else f"Köln {at}" for at in range(COUNT)]),
    "fold": ("int64", [None if at == 7 else at % 2 for at in range(COUNT)]),
    "is_new": ("bool", [None if at == 9 else True for at in range(COUNT)]),
}
FORMATS = ("arrow", "lmdb")
Rows = list[Arrays]


def array_of(field: Field, number: int) -> npt.NDArray[Any]:
    """An array of the field that differs with the number, also in its length where that may be."""
    random = np.random.default_rng([number, len(field.name)])
    shape = [1 + (7 * number + at) % 9 if side is None else side for at, side in enumerate(field.shape)]
    return random.integers(0, 200, shape).astype(field.dtype)


def samples_of(*fields: Field) -> Rows:
    return [{field.name: array_of(field, number) for field in fields} for number in range(COUNT)]


SETS: dict[str, tuple[Field, ...]] = {
    "one": (PHOTO,),
    "two": (PHOTO, DEPTH, POINT, VOLUME),
    "mixed": (CLIP, DEPTH),
    **{
        f"clip-{batch}": (Field("clip", "int16", (None,), batch=batch),)
        for batch in ("stack", "pad", "ragged")
    },
    **{
        f"{batch}": (
            Field("grid", "float32", (None, 2, None), batch=batch),
            Field("line", "uint8", (None, 3), batch=batch),
            DEPTH,
        )
        for batch in ("pad", "ragged")
    },
}
EVEN = Field("clip", "int16", (None,))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    place = Place(tmp_path_factory.mktemp("fields")).configure("")
    for name, fields in SETS.items():
        for kind in FORMATS:
            stage_by_hand(place, f"{name}.{kind}", fields, samples_of(*fields), ATTRIBUTES, kind)
    even = [{"clip": np.full(4, number, np.int16)} for number in range(COUNT)]
    stage_by_hand(place, "even", [EVEN], even)
    bare = [{**sample, "depth": np.full((4, 4), 1, np.uint16)} for sample in samples_of(PHOTO)]
    stage_by_hand(place, "bare", [PHOTO, DEPTH], bare, {"depth_length": ("int64", [1] * COUNT)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STAGER_CONFIG", str(place.config))
        yield place


def from_torch(value: Any) -> Any:
    """As NumPy has it: channels last, texts in an array."""
    if isinstance(value, list):
        return np.asarray(value, object) if isinstance(value[0], str) else [row.numpy() for row in value]
    return value.permute(0, 2, 3, 1).numpy() if value.shape[1:] == (3, 6, 5) else value.numpy()


def same(one: Any, other: Any) -> bool:
    if isinstance(one, list):
        return all(same(*pair) for pair in zip(one, other, strict=True))
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return bool(np.array_equal(one, other, equal_nan=one.dtype.kind == "f"))


def expected(name: str, fields: tuple[Field, ...], numbers: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    (field,) = (field for field in fields if field.name == name)
    return np.stack([array_of(field, number) for number in numbers.tolist()])


KNOWN = ["photo", "depth", "point", "volume", "age", "is_left", "weight", "site"]


@pytest.mark.parametrize("kind", FORMATS)
def test_fields_of_any_dtype_come_by_name_at_the_first_touch_and_afterwards(place: Place, kind: str) -> None:
    loader = StagedLoader(StagedDataset(f"two.{kind}"), 7, shuffle=True, seed=3, columns=KNOWN)
    for epoch in range(2):
        order, at = epoch_order(COUNT, 3, epoch), 0
        for values, labels in loader:
            numbers = order[at : at + 7]
            at += len(labels)
            assert list(values) == KNOWN
            assert labels.tolist() == [2 * number // COUNT for number in numbers.tolist()]
            assert values["photo"].is_contiguous(memory_format=torch.channels_last)
            for field in SETS["two"]:
                assert same(from_torch(values[field.name]), expected(field.name, SETS["two"], numbers))
        assert at == COUNT


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("name", ["two", "mixed", "pad", "ragged", "clip-pad", "clip-ragged"])
def test_numpy_has_what_torch_has(place: Place, name: str, kind: str) -> None:
    columns = None if name.startswith("clip") else [field.name for field in SETS[name]] + ["age", "site"]
    if name == "mixed":
        columns = ["depth", "weight"]
    options: dict[str, Any] = {"shuffle": True, "seed": 2, "columns": columns}
    arrays = StagedArrays(f"{name}.{kind}", 5, **options)
    loader = StagedLoader(StagedDataset(f"{name}.{kind}"), 5, **options)
    for (mine, labels), (theirs, targets) in zip(arrays, loader, strict=True):
        assert labels.tolist() == targets.tolist()
        if isinstance(mine, dict):
            assert mine.keys() == theirs.keys()
            assert all(same(mine[key], from_torch(theirs[key])) for key in mine)
        else:
            assert same(mine, from_torch(theirs))


def test_one_field_is_handed_out_alone_as_it_always_was(place: Place) -> None:
    data = StagedDataset("one.arrow")
    assert torch.equal(data[3][0], torch.from_numpy(array_of(PHOTO, 3)).permute(2, 0, 1))
    (photos, labels) = next(iter(StagedLoader(data, 4)))
    assert (photos.shape, photos.dtype, labels.dtype) == ((4, 3, 6, 5), torch.uint8, torch.int64)
    (photos, _) = next(iter(StagedArrays("one.arrow", 4)))
    assert np.array_equal(photos, expected("photo", SETS["one"], np.arange(4)))


@pytest.mark.parametrize("kind", FORMATS)
def test_a_sample_has_the_structure_of_a_batch(place: Place, kind: str) -> None:
    data = StagedDataset(f"two.{kind}", columns=KNOWN)
    values, label = data[20]
    assert (list(values), label) == (KNOWN, 1)
    assert torch.equal(values["photo"], torch.from_numpy(array_of(PHOTO, 20)).permute(2, 0, 1))
    for field in (DEPTH, POINT, VOLUME):  # VOLUME has three sides, and they are no height, width and channels
        assert torch.equal(values[field.name], torch.from_numpy(np.asarray(array_of(field, 20))))
    assert [values[name] for name in ("age", "is_left", "site")] == [20, False, ""]
    assert np.isnan(values["weight"])
    (first, _), (second, _) = data.__getitems__([0, 6])
    assert (first["is_left"], second["weight"], second["site"]) == (True, 0.75, "Köln 6")
    padded, _ = StagedDataset(f"clip-pad.{kind}")[2]
    assert padded["clip_length"] == len(padded["clip"]) == len(array_of(CLIP, 2))
    plain, _ = StagedDataset(f"clip-ragged.{kind}")[2]
    assert np.array_equal(plain.numpy(), array_of(CLIP, 2))


def test_a_transform_gets_the_tensor_or_the_dict(place: Place) -> None:
    loader = StagedLoader(StagedDataset("two.arrow"), 4, columns=["depth", "age"], transform=sorted)
    assert next(iter(loader))[0] == ["age", "depth"]
    data = StagedDataset("two.arrow", columns=["depth"], transform=lambda values: values["depth"].sum())
    assert data[1][0] == array_of(DEPTH, 1).sum()


# Attributes and columns


def test_attributes_have_their_types_and_what_is_missing_is_nan_or_empty(place: Place) -> None:
    values, _ = next(iter(StagedLoader(StagedDataset("two.arrow"), 8, columns=KNOWN[4:])))
    assert values["age"].dtype == torch.int64
    assert values["age"].tolist() == list(range(8))
    assert values["is_left"].dtype == torch.bool
    assert values["is_left"].tolist() == [at % 3 == 0 for at in range(8)]
    assert values["weight"].dtype == torch.float64
    assert torch.isnan(values["weight"]).tolist() == [at % 4 == 0 for at in range(8)]
    assert values["weight"][5] == 5 / 8
    assert values["site"] == ["" if at % 5 == 0 else f"Köln {at}" for at in range(8)]
    arrays, _ = next(iter(StagedArrays("two.arrow", 8, columns=["site"])))
    assert arrays["site"].dtype == object


@pytest.mark.parametrize(("name", "count"), [("fold", 1), ("is_new", 1)])
def test_a_whole_number_or_a_truth_that_is_missing_is_refused_by_name(
    place: Place, name: str, count: int
) -> None:
    data = StagedDataset("two.arrow")
    for refused in (
        lambda: StagedLoader(data, 4, columns=["depth", name]),
        lambda: StagedArrays("two.arrow", 4, columns=[name]),
        lambda: StagedDataset("two.arrow", columns=[name]),
    ):
        with pytest.raises(UsageError, match=f"{count} samples of two.arrow have no {name}, and"):
            refused()
    with pytest.raises(UsageError, match=r"have no (fold|is_new)"):
        data[0]  # nobody named columns: all are wanted
    values, _ = next(iter(StagedArrays("two.arrow", 4, columns=[name], classes=["b"])))
    assert len(values[name]) == 4  # there none is missing


def test_columns_give_a_dict_of_just_those_and_loaders_columns_go_before_those_of_the_data(
    place: Place,
) -> None:
    data = StagedDataset("two.arrow", columns=["depth", "age"])
    assert list(data[0][0]) == ["depth", "age"]
    assert list(next(iter(StagedLoader(data, 4)))[0]) == ["depth", "age"]
    assert list(next(iter(StagedLoader(data, 4, columns=["point"])))[0]) == ["point"]
    values, _ = next(iter(StagedLoader(StagedDataset("one.arrow"), 4, columns=["photo"])))
    assert list(values) == ["photo"]
    values, _ = next(iter(StagedArrays("one.arrow", 4, columns=["age"])))
    assert values["age"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        (["dept"], "'depth'"),
        (["nothing-like-it"], "known: age, depth"),
        ([], "has photo"),
        ("depth", "a list"),
    ],
)
def test_names_that_are_not_there_are_refused_with_a_hint(place: Place, columns: Any, told: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: StagedDataset("two.arrow", columns=columns),
        lambda: StagedLoader(StagedDataset("two.arrow"), 4, columns=columns),
        lambda: StagedArrays("two.arrow", 4, columns=columns),
    ]
    for call in calls:
        with pytest.raises(UsageError, match="column") as caught:
            call()
        assert told in caught.value.hint


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("name", ["two", "mixed"])
def test_only_the_columns_that_are_asked_for_are_read(
    place: Place, name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the first touch all are, for the checksum is of all; afterwards only these."""
    read: list[int] = []
    whole = opened.read_stored
    monkeypatch.setattr(
        opened, "read_stored", lambda file, stored: read.append(stored.size_bytes) or whole(file, stored)
    )
    loader = StagedLoader(StagedDataset(f"{name}.{kind}"), COUNT, columns=["depth"])
    ((first, _),) = loader
    assert len(read) == COUNT * len(SETS[name])
    read.clear()
    ((second, _),) = loader
    assert set(read) <= {32}  # in C, or one by one
    assert torch.equal(first["depth"], second["depth"])
    assert same(first["depth"].numpy(), expected("depth", SETS[name], np.arange(COUNT)))


# Rows of different length


@pytest.mark.parametrize("kind", FORMATS)
def test_a_padded_field_is_as_long_as_the_longest_and_tells_the_lengths(place: Place, kind: str) -> None:
    for values, labels in StagedArrays(f"clip-pad.{kind}", 5, shuffle=True, seed=1):
        assert list(values) == ["clip", "clip_length"]
        assert values["clip_length"].dtype == np.int64
        assert values["clip"].shape == (len(labels), values["clip_length"].max())
    at = 0
    for values, _ in StagedLoader(StagedDataset(f"pad.{kind}"), 5, columns=["grid", "line", "age"]):
        assert list(values) == ["grid", "grid_length", "line", "line_length", "age"]
        for grid, (high, wide), line, length in zip(
            *(values[name] for name in ("grid", "grid_length", "line", "line_length")), strict=True
        ):
            for field, row, sides in (
                (SETS["pad"][0], grid, (slice(high), slice(2), slice(wide))),
                (SETS["pad"][1], line, (slice(length),)),
            ):
                right = array_of(field, at)
                assert np.array_equal(row.numpy()[sides], right)
                assert row.numpy().sum() == right.sum()  # all else is 0
            at += 1
    assert at == COUNT


@pytest.mark.parametrize("kind", FORMATS)
def test_a_ragged_field_is_a_list(place: Place, kind: str) -> None:
    ((clips, _), *_) = StagedLoader(StagedDataset(f"clip-ragged.{kind}"), 5)
    assert [len(clip) for clip in clips] == [len(array_of(CLIP, at)) for at in range(5)]
    ((values, _), *_) = StagedArrays(f"ragged.{kind}", 5, columns=["grid", "depth"])
    assert all(same(values["grid"][at], array_of(SETS["ragged"][0], at)) for at in range(5))
    assert values["depth"].shape == (5, 4, 4)


@pytest.mark.parametrize("kind", FORMATS)
def test_stacked_rows_of_different_length_are_refused_and_the_error_names_a_sample(
    place: Place, kind: str
) -> None:
    with pytest.raises(UsageError, match=r"differ in size: clip of a/000 is \[1\], of a/001 \[8\]") as caught:
        next(iter(StagedLoader(StagedDataset(f"clip-stack.{kind}"), 5)))
    assert all(word in caught.value.hint for word in ("pad", "ragged", "cut"))
    (clips, _) = next(iter(StagedLoader(StagedDataset("even"), 5)))
    assert clips.tolist() == [[number] * 4 for number in range(5)]


def test_an_attribute_that_has_the_name_of_lengths_is_refused(place: Place) -> None:
    values, _ = next(iter(StagedLoader(StagedDataset("bare"), 5)))
    assert list(values) == ["photo", "depth", "depth_length"]  # nothing is padded
    place_of = Field("depth", "uint16", (None, 4), batch="pad")
    samples = [{"depth": np.zeros((1, 4), np.uint16)} for _ in range(4)]
    stage_by_hand(place, "clash", [place_of], samples, {"depth_length": ("int64", [1] * 4)})
    with pytest.raises(UsageError, match="depth_length is an attribute"):
        StagedArrays("clash", 2, columns=["depth", "depth_length"])


# Around them


def test_fixed_fields_are_in_buffers_that_are_used_again(place: Place) -> None:
    loader = StagedLoader(StagedDataset("two.arrow"), 4, prefetch=2, columns=["photo", "depth", "age"])
    for _ in range(5):
        for _values in loader:
            del _values
    assert list(loader.loader.pools) == ["photo", "depth"]
    assert max(pool.made for pool in loader.loader.pools.values()) <= 5


def test_the_only_image_is_augmented_and_what_is_none_is_refused(place: Place) -> None:
    options: dict[str, Any] = {"augment": [CentreCrop(4)], "columns": ["photo", "depth", "age"]}
    for values, _ in StagedArrays("two.arrow", 8, **options):
        assert values["photo"].shape == (8, 4, 4, 3)
        numbers = values["age"]
        assert same(values["depth"], expected("depth", SETS["two"], numbers))
        assert same(values["photo"], expected("photo", SETS["two"], numbers)[:, 1:5, 0:4])
    on_device = StagedLoader(StagedDataset("two.arrow"), 8, augment_on_device=True, **options)
    assert next(iter(on_device))[0]["photo"].shape == (8, 3, 4, 4)
    with pytest.raises(UsageError, match="only images of uint8, uint16, float32 can be augmented"):
        StagedArrays("two.arrow", 8, augment=[CentreCrop(4)], columns=["depth"])


def test_a_copy_has_the_same_columns(place: Place) -> None:
    data = StagedDataset("two.lmdb", columns=KNOWN)
    copy = pickle.loads(pickle.dumps(data))  # noqa: S301
    for one, other in zip(data[6][0].values(), copy[6][0].values(), strict=True):
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
    assert list(next(iter(StagedLoader(copy, 4, columns=["age", "point"])))[0]) == ["point", "age"]


WORKERS = """
import sys
from torch.utils.data import DataLoader
from stager_client.torch import StagedDataset

if __name__ == "__main__":
    data = StagedDataset(sys.argv[1], columns=["photo", "depth", "age", "site", "is_left", "weight"])
    loader = DataLoader(data, batch_size=5, num_workers=2, multiprocessing_context=sys.argv[2])
    at = 0
    for values, labels in loader:
        for row in range(len(labels)):
            own, label = data[at]
            assert label == labels[row] and own["age"] == values["age"][row] == at
            assert (own["photo"] == values["photo"][row]).all()
            assert (own["depth"] == values["depth"][row]).all()
            assert own["site"] == values["site"][row] and own["is_left"] == values["is_left"][row]
            at += 1
        assert values["weight"].dtype.is_floating_point
    print("read", at)
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_dataloader_read_several_fields(place: Place, method: str, tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(WORKERS)
    done = subprocess.run(
        [sys.executable, "-W", "error", program, "two.lmdb", method],
        env=place.env(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, f"read {COUNT}\n"), done.stderr


def test_a_plain_dataloader_collates_what_a_sample_is(place: Place) -> None:
    values, labels = next(iter(DataLoader(StagedDataset("two.arrow", columns=KNOWN), batch_size=SHARD_ROWS)))
    assert values["weight"].dtype == torch.float64
    assert values["site"] == ["", "Köln 1", "Köln 2", "Köln 3", "Köln 4"]
    assert labels.tolist() == [0] * SHARD_ROWS


def test_a_field_without_elements_is_handed_out(place: Place) -> None:
    nothing = Field("nothing", "float64", (0, 4))
    stage_by_hand(place, "nothing", [nothing, POINT], samples_of(nothing, POINT))
    for _ in range(2):
        for values, labels in StagedLoader(StagedDataset("nothing"), 5):
            assert values["nothing"].shape == (len(labels), 0, 4)
