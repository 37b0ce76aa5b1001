"""Patches that are chosen by a mask, by a table or by what can be had; turned, and as floats."""

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from running import Place
from stager.errors import SampleError, UsageError
from stager.reader.cuts import open_cut
from stager.reader.cuts.cut import Draws
from stager.reader.cuts.patches.centred_patch import CentredPatch
from stager.reader.cuts.patches.floats import Floats
from stager.reader.cuts.patches.grid_patch import GridPatch
from stager.reader.cuts.patches.patch import Patches
from stager.reader.cuts.patches.random_patch import RandomPatch
from stager.reader.cuts.patches.turns import ways_of
from stager.reader.samples.computed.grid import Grid
from stager.reader.samples.manifest import Counts
from stager_client.numpy import StagedArrays
from stager_client.torch import StagedDataset, StagedLoader
from volumes import Volume, voxels, write_zarr

ROOT = Path(__file__).parent.parent
SIZE = (6, 8, 8)
SHAPE = (40, 24, 20)
BRICK = (4, 4, 4)
DAMAGED = "image1.zarr/c/0/0/0"


def at_all(cut: Patches, count: int, seed: int = 0) -> npt.NDArray[np.int64]:
    every = np.arange(count)
    return cut.corners_in(Draws.of(seed, 0, every, every))


def cut_out(array: Volume, corner: Any, size: Any = SIZE) -> Volume:
    return array[tuple(slice(at, at + side) for at, side in zip(corner, size, strict=True))]


# Without a service


@settings(deadline=None, max_examples=60)
@given(st.data(), st.integers(0, 5))
def test_patches_have_as_much_foreground_as_is_estimated_by_brick(data: st.DataObject, seed: int) -> None:
    shapes = data.draw(st.lists(st.tuples(st.integers(6, 20), st.integers(6, 20)), min_size=1, max_size=2))
    random = np.random.default_rng(seed)
    masks = [random.random(shape) * (random.random(shape) < 0.3) > 0.2 for shape in shapes]
    brick, size = (4, 3), (5, 6)
    grids, first, counts = [], 0, []
    for shape, mask in zip(shapes, masks, strict=True):
        grid = Grid(shape, brick, (8, 6))
        grids.append([grid.shape, grid.brick, grid.cell, first])
        first += len(grid)
        for place in grid.places(np.arange(len(grid))):
            counts.append(int(cut_out(mask, place * brick, brick).sum()))
    least = data.draw(st.sampled_from([0.0, 0.05, 0.2]))
    weights = data.draw(st.sampled_from([None, (1.0, 3.0)[: len(shapes)]]))
    about: dict[str, Any] = {"foreground": "mask", "least": least, "volumes": weights, "grids": grids}
    cut = RandomPatch(size, length=40, borders=data.draw(st.sampled_from(["inside", "pad"])), **about)
    known = Counts(np.asarray(counts, np.uint32), "of these")
    try:
        cut = cut.knowing(known)
    except UsageError as error:
        assert "no patch" in error.message or "0 everywhere" in error.message  # noqa: PT017
        return
    assert open_cut(cut.to_json()).knowing(known) == cut  # type: ignore[attr-defined]
    for number, *corner in at_all(cut, 40, seed).tolist():
        mask, estimate = masks[number], 0.0
        density = np.zeros(mask.shape)
        for z in range(0, mask.shape[0], brick[0]):
            for y in range(0, mask.shape[1], brick[1]):
                here = (slice(z, z + brick[0]), slice(y, y + brick[1]))
                density[here] = mask[here].mean()
        padded = np.pad(density, 8)
        estimate = padded[
            tuple(slice(at + 8, at + 8 + side) for at, side in zip(corner, size, strict=True))
        ].sum()
        assert estimate >= max(least * np.prod(size), 1) - 1e-6


def test_where_foreground_is_rare_nearly_every_patch_would_miss_it_and_none_does() -> None:
    grid = Grid((512, 512), (8, 8), (32, 32))
    counts = np.zeros(len(grid), np.uint32)
    counts[grid.rows(np.array([[11, 50], [40, 3]]))] = 64
    cut = RandomPatch((16, 16), length=1000, foreground="m", least=0.1, grids=[[*grid_of(grid), 0]])  # type: ignore[arg-type]
    where = at_all(cut.knowing(Counts(counts, "")), 1000)
    starts = np.array([[88, 400], [320, 24]])  # of the two bricks that have any
    shared = np.minimum(where[:, None, 1:] + 16, starts + 8) - np.maximum(where[:, None, 1:], starts)
    has = np.maximum(shared, 0).prod(axis=2)
    assert (has.sum(axis=1) >= 26).all()
    assert 350 < (has[:, 0] > 0).sum() < 650
    assert len(np.unique(where, axis=0)) > 150, "all around them"


def grid_of(grid: Grid) -> list[Any]:
    return [grid.shape, grid.brick, grid.cell]


def test_volumes_are_drawn_by_their_weights() -> None:
    grids = [[(9, 9), (3, 3), (3, 3), 0], [(90, 90), (3, 3), (3, 3), 9]]
    cut = RandomPatch((4, 4), volumes=(3, 1), length=4000, grids=grids)  # type: ignore[arg-type]
    counts = Counter(at_all(cut, 4000)[:, 0].tolist())
    assert 2800 < counts[0] < 3200
    never = RandomPatch((4, 4), volumes=(0, 1), length=400, grids=grids)  # type: ignore[arg-type]
    assert set(at_all(never, 400)[:, 0].tolist()) == {1}


def test_all_ways_to_turn_a_patch_are_drawn_as_often() -> None:
    cut = RandomPatch((4, 4, 2), flips=True, turns=True, grids=[[(9, 9, 9), (3, 3, 3), (3, 3, 3), 0]])  # type: ignore[arg-type]
    every = np.arange(16_000)
    ways = cut._way(Draws.of(0, 0, every, every))
    assert cut.turns == ((0, 1),)
    counts = np.bincount(ways)
    assert len(counts) == 16
    assert counts.min() > 850
    assert len(ways_of(3, (), ((0, 1),)).sides) == 4
    assert len(ways_of(3, (), ((0, 1), (0, 2), (1, 2))).sides) == 24, "without flips, nothing is mirrored"
    other = cut._way(Draws.of(0, 1, every, every))
    assert (other != ways).mean() > 0.8


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16", "int32", "float32"])
@pytest.mark.parametrize("made", ["float16", "float32"])
def test_voxels_become_floats_as_numpy_makes_them(dtype: str, made: str) -> None:
    array = voxels((5, 6, 7), dtype)
    out = np.empty(array.shape, made)
    Floats(mean=11.5, std=3.25, dtype=made).convert(array, out)
    expected = (array.astype(np.float32) - np.float32(11.5)) / np.float32(3.25)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(out, expected.astype(made))


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_centres_come_from_a_table(tmp_path: Path, ending: str) -> None:
    table = pa.table({"z": [9, 8.7], "y": [4, 5], "volume": [0, 1]})
    path = tmp_path / f"centres{ending}"
    pa.csv.write_csv(table, path) if ending == ".csv" else pa.parquet.write_table(table, path)
    assert CentredPatch((4, 2), str(path)) == CentredPatch((4, 2), [[0, 9, 4], [1, 8, 5]])
    assert CentredPatch((4, 2), [[9, 4]]) == CentredPatch((4, 2), np.array([[0, 9, 4]]))


def test_a_grid_is_walked_so_that_few_chunks_are_needed_at_a_time() -> None:
    """With room for two layers of chunks an LRU reads each once; with less, less often than line by line."""
    grid = Grid((640, 256, 256), (16, 16, 16), (64, 64, 64))
    cut = GridPatch((40, 40, 40), overlap=8, grids=[[*grid_of(grid), 0]])  # type: ignore[arg-type]
    every = np.arange(cut.count())

    def reads(order: npt.NDArray[np.int64], room: int) -> int:
        kept: dict[int, None] = {}
        count = 0
        rows = cut.rows(Draws.of(0, 0, every, order))
        for chunk in ((grid.places(rows.positions) // 4) @ [100, 10, 1]).tolist():
            count += chunk not in kept
            kept.pop(chunk, None)
            kept[chunk] = None
            if len(kept) > room:
                kept.pop(next(iter(kept)))
        return count

    assert reads(every, 2 * 4 * 4 + 4) == 10 * 4 * 4, "each chunk once"
    line_by_line = np.argsort(cut._orders[0])
    assert reads(every, 12) < 0.75 * reads(line_by_line, 12)


# With a service


@pytest.fixture(scope="module")
def arrays() -> list[dict[str, Volume]]:
    made = []
    for number in range(2):
        mask = np.zeros(SHAPE, np.uint8)
        mask[20:26, 10:20, 5:9] = number + 1
        made.append({"image": voxels(SHAPE, "int16", number), "mask": mask})
    return made


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, arrays: list[dict[str, Volume]]) -> Iterator[Place]:
    root = tmp_path_factory.mktemp("chosen")
    for number, fields in enumerate(arrays):
        for name, array in fields.items():
            write_zarr(root / f"source/{name}{number}.zarr", array, (8, 8, 8))
    write_zarr(root / "source/coarse.zarr", arrays[0]["mask"][::2, ::2, ::2], (8, 8, 8))
    (root / "source" / DAMAGED).write_bytes(b"no chunk")
    recipe = 'kind = "volume"\nfields = { image = "int16", mask = "uint8" }\nbrick = [4, 4, 4]\n'
    both = ", ".join(f'{{ image = "image{n}.zarr", mask = "mask{n}.zarr" }}' for n in range(2))
    told = f'source = "{root}/source"\nlayout = "volume"\nforeground = "mask"\n'
    place = Place(root).configure(
        f'[datasets.good]\n{told}volumes = {{ image = "image0.zarr", mask = "mask0.zarr" }}\n'
        f"[datasets.good.recipe]\n{recipe}[datasets.damaged]\n{told}volumes = [{both}]\n"
        f"[datasets.damaged.recipe]\n{recipe}"
        f'[datasets.coarse]\n{told}volumes = {{ image = "image0.zarr", mask = "coarse.zarr" }}\n'
        f"[datasets.coarse.recipe]\n{recipe}scale = {{ mask = [2, 2, 2] }}\n"
    )
    with pytest.MonkeyPatch.context() as patch, place.service():
        for name, value in place.env().items():
            patch.setenv(name, value)
        yield place


def test_a_loader_gives_patches_with_foreground_and_the_service_knows_them_ahead(
    place: Place, arrays: list[dict[str, Volume]]
) -> None:
    cut = RandomPatch(SIZE, foreground="mask", least=0.1)
    loader = StagedArrays("good", 4, seed=3, cut=cut, length=16)
    seen = []
    for batch, where in loader:
        for patch, mask, at in zip(batch["image"], batch["mask"], where.tolist(), strict=True):
            assert (mask > 0).sum() > 0
            np.testing.assert_array_equal(patch[0], cut_out(arrays[0]["image"], at[1:]))
            seen.append(at)
    assert len(np.unique(seen, axis=0)) > 10
    ranked = [
        list(StagedArrays("good", 4, seed=3, cut=cut, length=16, rank=rank, world_size=2)) for rank in (0, 1)
    ]
    assert sorted(at for of in ranked for _, where in of for at in where.tolist()) == sorted(seen)
    with pytest.raises(UsageError, match="no patch of"):
        StagedArrays("good", 4, cut=RandomPatch((20, 20, 20), foreground="mask", least=0.9))


def test_a_mask_of_half_the_resolution_is_cut_at_the_same_place_and_chosen_by(
    place: Place, arrays: list[dict[str, Volume]]
) -> None:
    cut = RandomPatch((6, 8, 8), foreground="mask", least=0.1, flips=True, turns=True)
    ways = ways_of(3, cut.flips, cut.turns)
    for number, (batch, where) in enumerate(StagedArrays("coarse", 4, cut=cut, length=12)):
        assert batch["mask"].shape == (4, 1, 3, 4, 4)
        assert (where[:, 1:] % 2 == 0).all()
        draws = np.arange(number * 4, number * 4 + 4)
        for at, way in enumerate(cut._way(Draws.of(0, 0, draws, draws)).tolist()):
            corner = where[at, 1:]
            for name, array, by in (
                ("image", arrays[0]["image"], 1),
                ("mask", arrays[0]["mask"][::2, ::2, ::2], 2),
            ):
                plain = cut_out(array, corner // by, np.asarray(cut.size) // by)
                expected = np.flip(plain.transpose(ways.sides[way]), np.flatnonzero(ways.is_flipped[way]))
                np.testing.assert_array_equal(batch[name][at, 0], expected)
    with pytest.raises(UsageError, match="whole number of voxels"):
        StagedArrays("coarse", 4, cut=RandomPatch((5, 8, 8)))


def test_a_mask_is_counted_once_and_later_scans_have_it(place: Place) -> None:
    before = place.json("prefetch", "good", "--plan")
    mask = place.root / "source/mask0.zarr/c/2/1/0"  # read again, it would be missed
    kept = mask.read_bytes()
    mask.write_bytes(b"no chunk")
    try:
        assert place.json("prefetch", "good", "--plan")["samples"] == before["samples"]
        StagedArrays("good", 4, cut=RandomPatch(SIZE, foreground="mask"))
    finally:
        mask.write_bytes(kept)


def test_turned_patches_and_floats_are_the_same_in_torch_and_numpy(
    place: Place, arrays: list[dict[str, Volume]]
) -> None:
    floats = {"image": Floats(mean=100.0, std=50.0, dtype="float16")}
    cut = RandomPatch(SIZE, flips=(0, 2), turns=[(1, 2)], floats=floats, borders="pad")
    ways = ways_of(3, cut.flips, cut.turns)
    ours = list(StagedArrays("good", 4, seed=1, cut=cut, length=12))
    theirs = list(StagedLoader(StagedDataset("good"), 4, seed=1, cut=cut, length=12))
    turned = 0
    for number, ((batch, where), (tensors, places)) in enumerate(zip(ours, theirs, strict=True)):
        assert batch["image"].dtype == np.float16
        assert batch["image"].shape == (4, 1, *SIZE)
        for name in ("image", "mask"):
            np.testing.assert_array_equal(batch[name], tensors[name].numpy())
        np.testing.assert_array_equal(where, places.numpy())
        draws = np.arange(number * 4, number * 4 + 4)
        for at, way in enumerate(cut._way(Draws.of(1, 0, draws, draws)).tolist()):
            plain = cut_out(np.pad(arrays[0]["image"], 10), where[at, 1:] + 10)
            patch = np.flip(plain.transpose(ways.sides[way]), np.flatnonzero(ways.is_flipped[way]))
            out = np.empty(SIZE, np.float16)
            floats["image"].convert(patch, out)
            np.testing.assert_array_equal(batch["image"][at, 0], out)
            turned += way > 0
    assert turned > 4


def test_patches_around_centres_are_read_once_an_epoch_in_an_order_of_its_own(
    place: Place, arrays: list[dict[str, Volume]]
) -> None:
    centres = np.random.default_rng(0).integers([3, 4, 4], [30, 20, 16], (20, 3))
    cut = CentredPatch(SIZE, [*centres.tolist(), [0, 0, 0]], jitter=(0, 1, 1))
    loader = StagedArrays("good", 4, shuffle=True, seed=1, cut=cut)
    assert len(loader) == 5, "the last centre is at a border"
    epochs: list[list[list[int]]] = []
    for _ in range(2):
        places = []
        for batch, where in loader:
            for patch, (_, *corner) in zip(batch["image"], where.tolist(), strict=True):
                np.testing.assert_array_equal(patch[0], cut_out(arrays[0]["image"], corner))
                places.append(corner)
        off = np.abs(np.asarray(places)[:, None] + [3, 4, 4] - centres[None])
        assert (off <= [0, 1, 1]).all(axis=2).any(axis=0).all(), "each centre has its patch"
        epochs.append(places)
    assert epochs[0] != epochs[1]


def test_a_patch_of_a_damaged_chunk_names_it_and_is_skipped_if_asked(
    place: Place, arrays: list[dict[str, Volume]]
) -> None:
    cut = GridPatch((8, 8, 8))
    for _ in range(2):  # while it is found out, and when that is known
        with pytest.raises(SampleError, match=r"image1\.zarr/c/0/0/0") as raised:
            list(StagedArrays("damaged", 1, cut=cut))
        assert "image1.zarr#0,0,0" in raised.value.message
    place.json("prefetch", "damaged", code=3)
    assert len(StagedArrays("damaged", 1, cut=cut)) == 2 * 5 * 3 * 3
    loader = StagedArrays("damaged", 1, cut=cut, skip_failed=True)
    assert len(loader) == 2 * 5 * 3 * 3 - 1
    where = []
    for batch, (at,) in loader:
        np.testing.assert_array_equal(
            batch["image"][0, 0], np.pad(cut_out(arrays[at[0]]["image"], at[1:], cut.size),
                                         [(0, max(0, a + 8 - s)) for a, s in zip(at[1:], SHAPE, strict=True)])
        )  # fmt: skip
        where.append(at.tolist())
    assert [1, 0, 0, 0] not in where
    random = {"cut": RandomPatch((8, 8, 8)), "seed": 5, "length": 30, "skip_failed": True}
    one = StagedArrays("damaged", 3, **random)  # type: ignore[arg-type]
    whole = [at for _, where in one for at in where.tolist()]
    assert len(whole) == 30
    assert not [at for at in whole if at[0] == 1 and max(at[1:]) < 8]
    again = StagedArrays("damaged", 3, **random)  # type: ignore[arg-type]
    state = {**again.state_dict(), "position": 12}
    again.load_state_dict(state)
    assert [at for _, where in again for at in where.tolist()] == whole[12:]


def test_the_example_predicts_a_whole_volume_and_blends_what_overlaps(
    place: Place, arrays: list[dict[str, Volume]], tmp_path: Path
) -> None:
    out = tmp_path / "predicted.zarr"
    subprocess.run(
        [sys.executable, str(ROOT / "examples/predict_volumes.py"), "good", str(out),
         "--field", "image", "--size", "12", "16", "16", "--overlap", "6"],
        env=place.env(), capture_output=True, text=True, timeout=150, check=True,
    )  # fmt: skip
    (found,) = (zarr.open_array(str(out))[...],)
    image = np.pad(arrays[0]["image"].astype(np.float64) / 255, 1, mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(image, (3, 3, 3))
    inside = tuple(slice(3, side - 3) for side in SHAPE)
    mean = windows.mean(axis=(3, 4, 5))
    assert found.shape == SHAPE
    assert np.abs(found - mean)[inside].max() < 0.35 * np.ptp(mean)
    assert np.abs(found - mean)[inside].mean() < 0.03 * np.ptp(mean), "but for the sides of patches"
