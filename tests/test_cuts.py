"""Cuts: a part of each sample, by seed, epoch and draw alone, of which only the bytes are read."""

import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fielded import stage_by_hand
from making import image_folder, jpeg
from running import Place
from sets import table, wait_for
from stager.errors import UsageError
from stager.reader import native
from stager.reader.cuts import CUTS, open_cut
from stager.reader.cuts.crop import RandomCrop
from stager.reader.cuts.cut import Cut, Draws, draw_uniforms
from stager.reader.order import epoch_order
from stager.reader.service import Service
from stager.reader.values import Arrays, Field
from stager_client import cuts, numpy
from stager_client import torch as client
from stager_client.augment import CentreCrop
from stager_client.numpy import StagedArrays
from stager_client.torch import StagedDataset, StagedLoader
from test_api import ORDER, ask, opened
from test_native import compiled_or_skip

COUNT, SIZE = 30, (4, 3)
FORMATS = ("arrow", "lmdb")
PHOTO = Field("photo", "uint8", (12, 10, 3), axes="HWC")
MASK = Field("mask", "uint16", (12, 10))
WAVE = Field("wave", "int16", (None, 2))
NOTE = Field("note", "uint8", (2,))
FIELDS = (PHOTO, MASK, WAVE, NOTE)


def sample_of(number: int) -> Arrays:
    """Pixels that say which sample they are of, and where they are."""
    random = np.random.default_rng(number)
    places = np.arange(120, dtype=np.uint16).reshape(12, 10)
    return {
        "photo": np.stack([np.full((12, 10), number), places, places // 2], axis=2).astype(np.uint8),
        "mask": places + np.uint16(1000 * number),
        "wave": random.integers(-999, 999, (5 + number % 7, 2)).astype(np.int16),
        "note": np.array([number, 7], np.uint8),
    }


SAMPLES = [sample_of(number) for number in range(COUNT)]
LARGE = {
    "clips": [
        {"clip": np.arange(40_000 + number, dtype=np.int16), "note": np.array([number])}
        for number in range(COUNT)
    ],
    "maps": [{"map": np.full((200, 400), number, np.uint8)} for number in range(COUNT)],
}
LARGE_FIELDS = {
    "clips": [Field("clip", "int16", (None,)), Field("note", "int64", (1,))],
    "maps": [Field("map", "uint8", (200, 400))],
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    root = tmp_path_factory.mktemp("cuts")
    image_folder(root / "source", 2, 5)
    (root / "source/class000/wide.jpg").write_bytes(jpeg(0, width=144))
    recipe = 'resize = 24, encode = "jpeg"'
    place = Place(root).configure(f'[datasets.jpeg]\nsource = "{root}/source"\nrecipe = {{{recipe}}}\n')
    assert place.run("prefetch", "jpeg").returncode == 0
    for kind in FORMATS:
        stage_by_hand(place, kind, FIELDS, SAMPLES, {}, kind)
        waves = [{"wave": sample["wave"]} for sample in SAMPLES]
        stage_by_hand(place, f"wave-{kind}", [WAVE], waves, {}, kind)
        for name, samples in LARGE.items():
            stage_by_hand(place, f"{name}-{kind}", LARGE_FIELDS[name], samples, {}, kind)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STAGER_CONFIG", str(place.config))
        yield place


# The cut alone

Window = tuple[slice, ...]


def window(size: Sequence[int], sides: Sequence[int], draw: int, seed: int, epoch: int) -> Window:
    """The window of a draw, in plain Python."""
    (uniforms,) = draw_uniforms(np.array([draw]), seed, epoch, len(size)).tolist()
    starts = [int(by * (side - of + 1)) for by, side, of in zip(uniforms, sides, size, strict=False)]
    return tuple(slice(start, start + of) for start, of in zip(starts, size, strict=True))


def cut_of(cut: Cut, arrays: Arrays, draw: int, seed: int, epoch: int) -> Arrays:
    """What the cut itself says of a sample with these fields, copied by its pieces."""
    draws = Draws.of(seed, epoch, np.array([draw]), np.array([0]))
    sides = {name: np.array([array.shape]) for name, array in arrays.items()}
    shapes = cut.shapes({name: array.shape for name, array in arrays.items()})
    found = {}
    for name, pieces in cut.pieces(draws, cut.rows(draws), sides).items():
        found[name] = np.zeros([side or 0 for side in shapes[name]], arrays[name].dtype)
        flat = arrays[name].reshape(-1)
        pieces.check(np.array([flat.size]), found[name].size)
        pieces.copy(found[name], lambda row, start, count, flat=flat: flat[start : start + count])
    return found


@pytest.mark.parametrize(
    ("seed", "epoch", "starts"),
    [
        (0, 0, [(67, 1138), (28, 1856), (85, 3627), (44, 3832), (73, 2172), (71, 2502)]),
        (7, 11, [(31, 2743), (63, 2309), (51, 416), (38, 1686), (47, 3196), (19, 6)]),
    ],
)
def test_windows_are_where_they_were_in_the_first_version(
    seed: int, epoch: int, starts: list[tuple[int, int]]
) -> None:
    """Kept from the version that had no pieces: a run that began with it goes on with the same windows."""
    whole = np.stack(np.indices((100, 4000), np.int16), axis=2)
    for draw, start in zip([0, 1, 2, 3, 1000, 10**9], starts, strict=True):
        found = cut_of(RandomCrop((5, 3)), {"a": whole}, draw, seed, epoch)["a"]
        assert found.shape == (5, 3, 2)
        assert tuple(found[0, 0]) == start
        assert tuple(found[-1, -1]) == (start[0] + 4, start[1] + 2)


def test_the_numbers_are_this_function_for_good() -> None:
    """In plain integers. Another function would change the parts of a run that is resumed after it."""
    wrap = 2**64 - 1

    def mixed(value: int, seed: int) -> int:
        start = (seed * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) & wrap
        value ^= start ^ start >> 29
        value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & wrap
        value = (value ^ value >> 27) * 0x94D049BB133111EB & wrap
        return value ^ value >> 31

    salt = 0x5354414745524355
    for draw, row in zip([0, 5, 10**9], draw_uniforms(np.array([0, 5, 10**9]), 7, 11, 3), strict=True):
        of_draw = mixed(mixed(draw, 7), 11)
        assert row.tolist() == [(mixed(of_draw ^ mixed(at, salt), salt) >> 11) / 2**53 for at in range(3)]


def test_places_are_uniform_and_independent() -> None:
    rows = np.asarray(draw_uniforms(np.arange(5000), 1, 2, 3))
    counts = np.stack([np.histogram(column, 20, (0, 1))[0] for column in rows.T])
    assert ((counts - 250) ** 2 / 250).sum(axis=1).max() < 55  # chi-square, 19 degrees: 1 in 40,000
    assert np.abs(np.corrcoef(rows.T) - np.eye(3)).max() < 4.5 / math.sqrt(5000)
    starts = {int(cut_of(RandomCrop(4), {"a": np.arange(6)}, draw, 1, 2)["a"][0]) for draw in range(200)}
    assert starts == {0, 1, 2}


@given(
    size=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    more=st.lists(st.integers(0, 5), min_size=3, max_size=3),
    rest=st.lists(st.integers(0, 3), max_size=2),
    draw=st.integers(0, 2**40),
)
def test_a_window_lies_inside_and_is_the_same_in_fields_that_are_alike(
    size: list[int], more: list[int], rest: list[int], draw: int
) -> None:
    cut = RandomCrop(size)
    sides = [side + room for side, room in zip(size, more, strict=False)]
    arrays = {
        name: np.arange(math.prod(of)).reshape(of)
        for name, of in (("one", sides), ("other", [*sides, *rest]), ("small", sides[:-1]))
    }
    found = cut_of(cut, arrays, draw, 3, 4)
    where = window(size, sides, draw, 3, 4)
    assert np.array_equal(found["one"], arrays["one"][where])
    assert np.array_equal(found["other"], arrays["other"][where])
    assert np.array_equal(found["small"], arrays["small"])


@pytest.mark.parametrize("cut", [RandomCrop(3), RandomCrop((4, 5)), RandomCrop([2], fields=["a", "b"])])
def test_a_cut_is_the_same_after_its_way_through_json(cut: Cut) -> None:
    assert open_cut(json.loads(json.dumps(cut.to_json()))) == cut
    draws = Draws.of(0, 0, np.arange(5), np.arange(5)[::-1])
    assert cut.rows(draws).positions.tolist() == [4, 3, 2, 1, 0]


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"kind": "random_crob", "size": [3]},
        {"kind": ["random_crop"]},
        {"kind": "random_crop"},
        {"kind": "random_crop", "size": [3], "more": 1},
        *({"kind": "random_crop", "size": size} for size in ([], [0], [-1], [1.5], ["3"], [True], "3", None)),
        *({"kind": "random_crop", "size": size} for size in ([1] * 9, [2**70])),
        *({"kind": "random_crop", "size": [3], "fields": fields} for fields in ("photo", [3], 3)),
    ],
)
def test_a_cut_that_makes_no_sense_is_refused(value: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        open_cut(value)


def test_a_cut_is_found_where_the_loaders_are() -> None:
    assert client.RandomCrop is numpy.RandomCrop is cuts.RandomCrop is CUTS["random_crop"]


# In a loader


def right(name: str, number: int, draw: int, cut: RandomCrop, seed: int, epoch: int) -> npt.NDArray[Any]:
    array = SAMPLES[number][name]
    return array[window(cut.size, array.shape, draw, seed, epoch)]


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("check", ["first", "always"])
def test_each_draw_has_its_window_at_the_first_touch_and_afterwards(
    place: Place, kind: str, check: str
) -> None:
    cut = RandomCrop(SIZE, fields=["photo", "mask"])
    arrays = StagedArrays(
        kind, 7, shuffle=True, seed=5, cut=cut, check=check, columns=["photo", "mask", "note"]
    )
    data = StagedDataset(kind, check=check, columns=["photo", "mask", "note"])
    loader = StagedLoader(data, 7, shuffle=True, seed=5, cut=cut)
    places = set()
    for epoch in range(3):
        order, draw = epoch_order(COUNT, 5, epoch), 0
        for (values, labels), (tensors, _) in zip(arrays, loader, strict=True):
            assert values["photo"].shape == (len(labels), *SIZE, 3)
            assert np.array_equal(tensors["photo"].permute(0, 2, 3, 1).numpy(), values["photo"])
            assert tensors["photo"].is_contiguous(memory_format=torch.channels_last)
            for photo, mask, note in zip(values["photo"], values["mask"], values["note"], strict=True):
                number = int(order[draw])
                assert np.array_equal(photo, right("photo", number, draw, cut, 5, epoch))
                assert np.array_equal(mask, right("mask", number, draw, cut, 5, epoch))
                assert np.array_equal(photo[..., 1], mask - 1000 * number)  # the same place in both
                assert note.tolist() == [number, 7]  # whole
                places.add(int(photo[0, 0, 1]))
                draw += 1
        assert draw == COUNT
    assert len(places) > 30  # of 72


@pytest.mark.parametrize("kind", FORMATS)
def test_rows_of_different_length_have_one_shape_after_a_cut(place: Place, kind: str) -> None:
    loader = StagedLoader(StagedDataset(f"wave-{kind}"), 8, cut=RandomCrop(5), seed=1)
    assert list(loader.loader.pools) == ["wave"]
    for epoch in range(2):
        found = torch.cat([waves for waves, _ in loader])
        assert found.shape == (COUNT, 5, 2)
        for number, wave in enumerate(found.numpy()):
            assert np.array_equal(wave, right("wave", number, number, RandomCrop(5), 1, epoch))


def bytes_read() -> int:
    """That this process has read from files, by the kernel's count."""
    (count,) = re.findall(r"rchar: (\d+)", Path("/proc/self/io").read_text())
    return int(count)


@pytest.mark.parametrize("way", ["native", "python"])
@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("name", ["clips", "maps"])
def test_only_the_bytes_of_a_piece_are_read_once_a_row_was_checked(
    place: Place, kind: str, way: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a clip, the segment; of a map, what lies between the first and the last pixel."""
    if way == "python":
        monkeypatch.setattr(native, "library", None)
    else:
        compiled_or_skip()
    cut = RandomCrop(1000) if name == "clips" else RandomCrop((50, 30))
    span = 2 * 1000 if name == "clips" else 49 * 400 + 30
    columns = ["clip" if name == "clips" else "map"]
    loader = StagedArrays(f"{name}-{kind}", 10, cut=cut, threads=1, columns=columns)
    sizes = []
    for _ in range(3):
        before = bytes_read()
        assert len([0 for _ in loader]) == 3
        sizes.append(bytes_read() - before)
    whole = sum(array.nbytes for sample in LARGE[name] for array in sample.values())
    assert sizes[0] > whole
    assert len(LARGE[name]) * span <= min(sizes[1:]) <= max(sizes[1:]) < len(LARGE[name]) * span + 5000
    always = StagedArrays(f"{name}-{kind}", 10, cut=cut, threads=1, columns=columns, check="always")
    for _ in range(2):
        before = bytes_read()
        list(always)
        assert bytes_read() - before > whole


@pytest.mark.parametrize("kind", FORMATS)
def test_a_bit_that_has_flipped_outside_of_the_window_is_found_at_the_first_touch(
    place: Place, kind: str
) -> None:
    name = f"flipped-{kind}"
    rows = [{"row": np.full(4000, number + 1, np.uint8)} for number in range(4)]
    stage_by_hand(place, name, [Field("row", "uint8", (4000,))], rows, {}, kind)
    (path,) = (place.cache / "datasets" / name / "shards").iterdir()
    data = bytearray(path.read_bytes())
    data[data.find(bytes([3] * 3000)) + 2999] ^= 1
    path.write_bytes(data)
    reader = StagedDataset(name).samples.reader
    draws = Draws.of(0, 0, np.arange(4), np.arange(4))
    cut, out = RandomCrop(9), {"row": np.zeros((4, 9), np.uint8)}
    for _ in range(2):
        assert reader.cut(np.arange(4), cut, draws, cut.rows(draws), out) == ([], [2])
    assert out["row"][[0, 1, 3]].tolist() == [[1] * 9, [2] * 9, [4] * 9]


def test_an_encoded_field_is_cut_once_it_is_decoded(place: Place) -> None:
    whole = StagedDataset("jpeg")
    cut = RandomCrop((20, 16))
    loader = StagedLoader(whole, 4, cut=cut)
    for epoch in range(2):
        photos = torch.cat([photos for photos, _ in loader])
        assert photos.shape == (len(whole), 3, 20, 16)
        for at, photo in enumerate(photos):
            own = whole[at][0]
            high, wide = window(cut.size, own.shape[1:], at, 0, epoch)
            assert torch.equal(photo, own[:, high, wide])


def test_what_is_cut_is_augmented_after_it(place: Place) -> None:
    options: dict[str, Any] = {"columns": ["photo"], "cut": RandomCrop((6, 8)), "seed": 2}
    plain, _ = next(iter(StagedArrays("arrow", 5, **options)))
    cropped, _ = next(iter(StagedArrays("arrow", 5, augment=[CentreCrop(4)], **options)))
    assert np.array_equal(cropped["photo"], plain["photo"][:, 1:5, 2:6])


def test_sizes_that_do_not_fit_are_refused_by_field_and_by_sample(place: Place) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"cut": RandomCrop((13, 3)), "columns": ["photo"]}, r"larger than photo, which is \[12, 10, 3\]"),
        ({"cut": RandomCrop((1, 1, 1, 1))}, "no field has 4 sides"),
        ({"cut": RandomCrop(1, fields=["foto"])}, "no field 'foto'"),
        ({"cut": RandomCrop(3)}, r"larger than note, which is \[2\]"),
    ]
    for options, told in wrong:
        with pytest.raises(UsageError, match=told):
            StagedArrays("arrow", 4, **options)
    for kind in FORMATS:
        arrays = StagedArrays(f"wave-{kind}", 4, cut=RandomCrop(6))
        for _ in range(2):
            with pytest.raises(UsageError, match=r"a/000 of wave-.*: a cut of \[6\] is larger than wave"):
                list(arrays)


@pytest.mark.parametrize("other", [None, RandomCrop(4), RandomCrop(5, fields=["wave"])])
def test_a_run_is_not_resumed_with_another_cut(place: Place, other: Cut | None) -> None:
    first = StagedArrays("wave-arrow", 4, cut=RandomCrop(5))
    with pytest.raises(UsageError, match="another cut"):
        StagedArrays("wave-arrow", 4, cut=other).load_state_dict(first.state_dict())
    StagedArrays("wave-arrow", 4, cut=RandomCrop([5])).load_state_dict(first.state_dict())


# The same on any number of ranks, before and after a resume

Parts = dict[int, bytes]  # by draw


def parts_of(batches: Iterator[Any], draws: Iterator[int], found: Parts, stop: int) -> None:
    for _ in range(stop):
        batch = next(batches, None)
        if batch is None:
            return
        values = batch[0]
        rows = values["mask"] if isinstance(values["mask"], np.ndarray) else values["mask"].numpy()
        for row in rows:
            draw = next(draws)
            assert found.setdefault(draw, row.tobytes()) == row.tobytes()


def draws_of(start: int, rank: int, world_size: int) -> Iterator[int]:
    """By hand: every rank takes every n-th of what is left; what does not divide comes from the beginning."""
    left = list(range(start, COUNT))
    return iter((left + list(range(world_size)))[rank::world_size])


MAKERS: dict[str, Callable[..., Any]] = {
    "torch": lambda batch, **options: StagedLoader(StagedDataset("arrow"), batch, **options),
    "numpy": lambda batch, **options: StagedArrays("lmdb", batch, **options),
}


@settings(max_examples=40, deadline=None)
@given(
    runs=st.lists(
        st.tuples(st.sampled_from(list(MAKERS)), st.sampled_from([1, 2, 3, 4]), st.integers(1, 3)), max_size=3
    ),
    batch=st.integers(1, 9),
    seed=st.integers(0, 3),
    epoch=st.integers(0, 3),
)
def test_samples_cuts_and_order_are_the_same_in_all_clients_on_any_world_size_and_after_a_resume(
    place: Place, runs: list[tuple[str, int, int]], batch: int, seed: int, epoch: int
) -> None:
    options: dict[str, Any] = {
        "shuffle": True, "seed": seed, "cut": RandomCrop(SIZE), "columns": ["photo", "mask"], "batch": batch
    }  # fmt: skip
    position, found = 0, Parts()
    digest = ""
    for name, world_size, steps in [*runs, ("numpy", 2, COUNT)]:
        for rank in range(world_size):
            loader = MAKERS[name](rank=rank, world_size=world_size, **options)
            loader.set_epoch(epoch)
            if position:
                state = {"seed": seed, "epoch": epoch, "position": position}
                loader.load_state_dict({**state, "digest": loader.state_dict()["digest"]})
            run = iter(loader)
            parts_of(run, draws_of(position, rank, world_size), found, steps)
            run.close()
            assert digest in ("", loader.state_dict()["digest"].split("-", 1)[1])
            digest = loader.state_dict()["digest"].split("-", 1)[1]  # of the cut; the data sets are two
        position += steps * batch * world_size
        if position >= COUNT:
            break
    order = epoch_order(COUNT, seed, epoch)
    cut = RandomCrop(SIZE)
    assert found == {
        draw: right("mask", int(order[draw]), draw, cut, seed, epoch).tobytes() for draw in range(COUNT)
    }


# The service


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    place = Place(tmp_path_factory.mktemp("served"))
    image_folder(place.root / "source", 4, 3)
    with place.configure(table("pets", place.root / "source")).service():
        yield place


@pytest.mark.parametrize("cut", [RandomCrop((20, 9)), None])
def test_the_service_is_told_the_cut_if_there_is_one(
    served: Place, monkeypatch: pytest.MonkeyPatch, cut: Cut | None
) -> None:
    monkeypatch.setenv("STAGER_CONFIG", str(served.config))
    told: list[tuple[dict[str, Any], Any]] = []
    post = Service.post

    def noted(self: Service, path: str, body: dict[str, Any], *rest: Any) -> Any:
        answer = post(self, path, body, *rest)
        if path.endswith("pets/sessions"):
            told.append((body, answer))
        return answer

    monkeypatch.setattr(Service, "post", noted)
    data = StagedDataset("pets")
    assert len([labels for _, labels in StagedLoader(data, 4, cut=cut)]) == 3
    data.samples.session.wait_until_told(30)
    ((body, answer),) = told
    assert ("cut" in body, body.get("cut")) == (cut is not None, cut and cut.to_json())
    assert answer["samples"] == 12


@pytest.mark.parametrize("wrong", [{}, {"kind": "none"}, {"kind": "random_crop", "size": [0]}])
def test_a_wrong_cut_is_refused_by_the_service(served: Place, wrong: dict[str, Any]) -> None:
    Service(served.socket).post("/jobs", {"dataset": "pets", "stop_after": "scan"})
    wait_for(lambda: Service(served.socket).get("/datasets/pets")["manifest"])
    body = {**opened(Service(served.socket), ORDER), "cut": wrong}
    status, answer = ask(served.socket, "POST", "/v1/datasets/pets/sessions", json.dumps(body).encode())
    assert (status, answer["error"]) == (400, "UsageError"), answer
    assert "cut" in answer["message"]
