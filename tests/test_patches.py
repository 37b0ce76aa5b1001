"""Patches of volumes: cut of bricks as NumPy slices the volume, seeded by draw, on any number of ranks."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from running import Place
from stager.errors import UsageError
from stager.reader.cuts import open_cut
from stager.reader.cuts.cut import Draws
from stager.reader.cuts.patches.centred_patch import CentredPatch
from stager.reader.cuts.patches.floats import Floats
from stager.reader.cuts.patches.grid_patch import GridPatch
from stager.reader.cuts.patches.patch import Patches
from stager.reader.cuts.patches.random_patch import RandomPatch
from stager.reader.cuts.patches.turns import ways_of
from stager.reader.samples.computed.grid import Grid
from stager.reader.values import Field, pack_numbers
from stager_client.numpy import StagedArrays
from stager_client.torch import StagedDataset, StagedLoader
from volumes import Volume, voxels, write_zarr

ROOT = Path(__file__).parent.parent
SIZE = (9, 11, 6)
SHAPES = ((40, 24, 20), (17, 30, 33))


@st.composite
def cuts(draw: st.DrawFn) -> tuple[Patches, list[dict[str, Volume]]]:
    """A cut of one or more volumes, and the arrays of these: a fine one, and one that may be coarser."""
    dimensions = draw(st.integers(1, 3))
    scale = tuple(draw(st.sampled_from([1, 1, 2, 3])) for _ in range(dimensions))
    sides = st.lists(st.integers(1, 12), min_size=dimensions, max_size=dimensions)
    brick = tuple(draw(st.integers(1, 4)) * by for by in scale)
    cell = tuple(side * draw(st.integers(1, 3)) for side in brick)
    shapes = draw(st.lists(sides.map(lambda told: list(np.maximum(told, scale))), min_size=1, max_size=3))
    shapes = [[int(side) for side in shape] for shape in shapes]
    borders = draw(st.sampled_from(["inside", "pad"]))
    most = [min(shape[side] for shape in shapes) if borders == "inside" else 15 for side in range(dimensions)]
    size = tuple(draw(st.integers(1, most[side] // by)) * by for side, by in enumerate(scale))
    if draw(st.booleans()):  # one that can be turned in all its sides
        scale, brick = (max(scale),) * dimensions, tuple(side * max(scale) for side in brick)
        cell, size = tuple(side * max(scale) for side in cell), (min(size) * max(scale),) * dimensions
        if borders == "inside" and max(size) > min(map(min, shapes)):
            borders = "pad"
    first, grids = 0, []
    for shape in shapes:
        grid = Grid(tuple(shape), brick, cell)
        grids.append([grid.shape, grid.brick, grid.cell, first])
        first += len(grid)
    turns = [(a, b) for a in range(dimensions) for b in range(a + 1, dimensions)
             if size[a] == size[b] and scale[a] == scale[b] and draw(st.booleans())]  # fmt: skip
    flips = [side for side in range(dimensions) if draw(st.booleans())]
    about: dict[str, Any] = {"size": size, "borders": borders, "grids": grids, "step": scale,
                             "flips": flips, "turns": turns}  # fmt: skip
    kind = draw(st.sampled_from(["random", "grid", "centred"]))
    if kind == "random":
        cut: Patches = RandomPatch(**about, length=draw(st.integers(1, 30)))
    elif kind == "grid":
        overlaps = (draw(st.integers(0, side // by - 1)) * by for side, by in zip(size, scale, strict=True))
        cut = GridPatch(**about, overlap=tuple(overlaps))
    else:
        middles = [[n, *(side // 2 for side in shape)] for n, shape in enumerate(shapes)]
        cut = CentredPatch(**about, centres=middles * 4, jitter=draw(st.integers(0, 5)))
    arrays = []
    for seed, shape in enumerate(shapes):
        coarse = [-(-side // by) for side, by in zip(shape, scale, strict=True)]
        arrays.append({"x": voxels(shape, "uint16", seed), "m": voxels(coarse, "uint8", seed + 9)})
    bricks = {"x": brick, "m": tuple(side // by for side, by in zip(brick, scale, strict=True))}
    return cut.for_fields({name: Field(name, "uint16", of) for name, of in bricks.items()}), arrays


def sliced(
    cut: Patches, arrays: list[Volume], where: npt.NDArray[np.int64], scale: Any = 1
) -> npt.NDArray[Any]:
    """The patches that begin at these places, as NumPy slices them."""
    found = []
    size = np.asarray(cut.size) // np.asarray(scale)
    for number, *corner in where.tolist():
        padded = np.pad(arrays[number], [(side, 2 * side) for side in size])
        starts = zip((np.asarray(corner) // scale).tolist(), size.tolist(), strict=True)
        found.append(padded[tuple(slice(at + side, at + 2 * side) for at, side in starts)])
    return np.stack(found)


def copied(cut: Patches, draws: Draws, arrays: list[dict[str, Volume]]) -> dict[str, npt.NDArray[Any]]:
    """What the cut takes of the bricks of these arrays."""
    rows = cut.rows(draws)
    assert rows.ends is not None
    assert rows.ends[-1] == len(rows.positions)
    per_draw = np.split(rows.positions, rows.ends[:-1])
    assert all(len(np.unique(of_one)) == len(of_one) > 0 for of_one in per_draw)
    found = {}
    for name, scale in cut.scales.items():
        side_of = [b // s for b, s in zip(cut.grids[0].grid.brick, scale, strict=True)]
        bricks: list[npt.NDArray[Any]] = []
        for (grid, _), of in zip(cut.grids, arrays, strict=True):
            want = np.asarray(grid.counts) * side_of
            padded = np.pad(
                of[name], [(0, int(n) - side) for n, side in zip(want, of[name].shape, strict=True)]
            )
            for place in grid.places(np.arange(len(grid))).tolist():
                at = zip(place, side_of, strict=True)
                bricks.append(padded[tuple(slice(n * side, (n + 1) * side) for n, side in at)].flatten())
        sides = np.broadcast_to(np.asarray(side_of), (len(rows.positions), len(cut.size)))
        shape = [n // by for n, by in zip(cut.size, scale, strict=True)]
        out = np.full((len(draws), *shape), 77, bricks[0].dtype)
        pieces = cut.pieces(draws, rows, {name: sides})[name]
        pieces.check(np.prod(sides, axis=1), out.size)
        pieces.copy(out, lambda row, start, items, of=bricks: of[rows.positions[row]][start : start + items])
        found[name] = out[draws.places]
    return found


def turned(cut: Patches, draws: Draws, patches: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Each as NumPy flips and turns it."""
    ways = ways_of(len(cut.size), cut.flips, cut.turns)
    found = [
        np.transpose(patch, ways.sides[way]) for patch, way in zip(patches, cut._way(draws), strict=True)
    ]
    flipped = [np.flatnonzero(ways.is_flipped[way]) for way in cut._way(draws)]
    return np.stack([np.flip(patch, sides) for patch, sides in zip(found, flipped, strict=True)])


@settings(deadline=None, max_examples=200)
@given(cuts(), st.integers(0, 9), st.integers(0, 2))
def test_a_patch_is_what_numpy_slices_flips_and_turns_in_every_field(
    given: tuple[Patches, list[dict[str, Volume]]], seed: int, epoch: int
) -> None:
    cut, arrays = given
    count = cut.count()
    places = np.random.default_rng(seed).permutation(count)
    draws = Draws(seed, epoch, np.arange(count), np.arange(count), places)
    found = copied(cut, draws, arrays)
    for name, scale in cut.scales.items():
        plain = sliced(cut, [of[name] for of in arrays], cut.corners_in(draws), scale)
        np.testing.assert_array_equal(found[name], turned(cut, draws, plain))
    again = open_cut(json.loads(json.dumps(cut.to_json())))
    assert again == cut
    np.testing.assert_array_equal(again.corners_in(draws), cut.corners_in(draws))  # type: ignore[attr-defined]


@settings(deadline=None, max_examples=100)
@given(cuts(), st.data())
def test_no_patch_touches_a_brick_that_is_lost_and_the_others_of_a_table_stay(
    given: tuple[Patches, list[dict[str, Volume]]], data: st.DataObject
) -> None:
    cut, _ = given
    lost = np.asarray(sorted(data.draw(st.sets(st.integers(0, cut.bricks - 1), min_size=1, max_size=2))))
    length = cut.length if isinstance(cut, RandomPatch) else 0
    with suppress(UsageError):  # none may be left
        _touches_none(cut, replace(cut, lost=pack_numbers(lost), length=length), lost)


def _touches_none(cut: Patches, less: Patches, lost: npt.NDArray[np.int64]) -> None:
    every = np.arange(less.count())
    rows = less.rows(Draws.of(1, 0, every, every))
    assert not np.isin(rows.positions, lost).any()
    if not isinstance(cut, RandomPatch) and getattr(cut, "jitter", (0,)) == (0,) * len(cut.size):
        all_of = np.arange(cut.count())
        before = cut.rows(Draws.of(1, 0, all_of, all_of))
        touched = np.unique(before.draw_of()[np.isin(before.positions, lost)])
        assert less.count() == cut.count() - len(touched)


@settings(deadline=None, max_examples=100)
@given(cuts())
def test_a_grid_covers_every_voxel_and_without_overlap_and_padded_once(
    given: tuple[Patches, list[dict[str, Volume]]],
) -> None:
    cut, arrays = given[0], [of["x"] for of in given[1]]
    if not isinstance(cut, GridPatch):
        return
    seen = [np.zeros(np.add(array.shape, np.add(cut.size, 3)), np.int64) for array in arrays]
    weight = [np.zeros(of.shape) for of in seen]
    every = np.arange(cut.count())
    for number, *corner in cut.corners_in(Draws.of(0, 0, every, every)).tolist():
        here = tuple(slice(at, at + side) for at, side in zip(corner, cut.size, strict=True))
        seen[number][here] += 1
        weight[number][here] += cut.weights
    assert all((of > 0).all() for of in (w[s > 0] for w, s in zip(weight, seen, strict=True)))
    for count, array in zip(seen, arrays, strict=True):
        inside = count[tuple(map(slice, array.shape))]
        assert inside.min() >= 1
        if cut.borders == "pad" and not any(cut.overlap):
            assert inside.max() == 1


def test_random_places_are_all_over_the_volume_and_each_as_likely() -> None:
    cut = RandomPatch((3, 2), grids=[[(5, 4), (2, 2), (4, 4), 0], [(4, 4), (2, 2), (4, 4), 6]])  # type: ignore[arg-type]
    every = np.arange(15_000)
    found, counts = np.unique(cut.corners_in(Draws.of(1, 0, every, every)), axis=0, return_counts=True)
    expected = [[0, z, y] for z in range(3) for y in range(3)] + [
        [1, z, y] for z in range(2) for y in range(3)
    ]
    assert found.tolist() == expected
    assert counts.min() > 850
    assert counts.max() < 1150


def told(kind: str, size: int, volumes: Any) -> Any:
    """A cut as a client tells it to the service."""
    return open_cut({"kind": kind, "size": [size], "grids": volumes})


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: RandomPatch((0, 3)), "a patch of"),
        (lambda: RandomPatch("72"), "a patch of"),  # type: ignore[arg-type]
        (lambda: RandomPatch((3,), borders="wrap"), "borders"),
        (lambda: RandomPatch((3,), length=-1), "an epoch of"),
        (lambda: GridPatch((3, 3), overlap=3), "an overlap of"),  # type: ignore[arg-type]
        (lambda: RandomPatch((3, 4), turns=[(0, 1)]), "another shape"),
        (lambda: RandomPatch((3, 4), turns=[(0, 2)]), "turns is"),
        (lambda: RandomPatch((3, 4), flips=(2,)), "flips is"),
        (lambda: RandomPatch((9,) * 6, flips=True, turns=True), "ways to turn"),
        (lambda: RandomPatch((3,), least=0.1), "goes with foreground"),
        (lambda: RandomPatch((3,), foreground="m", least=2), "least is"),
        (lambda: RandomPatch((3,), volumes=[0, 0]), "volumes is"),
        (lambda: RandomPatch((3,), floats={"x": Floats(std=0)}), "makes no sense"),
        (lambda: Floats(dtype="int8"), "cannot become"),
        (lambda: CentredPatch((3, 3), [[1]]), "have 2 numbers"),
        (lambda: CentredPatch((3, 3), [[-1, 1]]), "from 0 on"),
        (lambda: CentredPatch((3, 3), "no.csv"), "cannot be read"),
        (lambda: told("random_patch", 3, [[[4], [2], [3], 0]]), "the volumes"),
        (lambda: told("random_patch", 3, [[[4], [0], [3], 0]]), "the volumes"),
        (lambda: told("random_patch", 3, [[[4], [2], [2], 7]]), "the volumes"),
        (lambda: told("random_patch", 3, [[[10**30], [1], [1], 0]]), "the volumes"),
        (lambda: told("random_patch", 3, "no"), "the volumes"),
        (lambda: told("random_patch", 9, [[[4], [2], [2], 0]]), "larger than"),
        (lambda: told("grid_patch", 1, [[[10**9], [1], [1], 0]]), "too many"),
    ],
)  # fmt: skip
def test_patches_that_make_no_sense_are_refused(make: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said) as raised:
        make()
    assert raised.value.hint


# With a service


@pytest.fixture(scope="module")
def arrays() -> list[dict[str, Volume]]:
    return [{"image": voxels(shape, "uint16", at), "mask": voxels(shape, "uint8", at + 5)}
            for at, shape in enumerate(SHAPES)]  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, arrays: list[dict[str, Volume]]) -> Iterator[Place]:
    root = tmp_path_factory.mktemp("patches")
    for at, fields in enumerate(arrays):
        for name, array in fields.items():
            write_zarr(root / f"source/{name}{at}.zarr", array, (8, 8, 8))
    volumes = ", ".join(
        f'{{ image = "image{at}.zarr", mask = "mask{at}.zarr" }}' for at in range(len(arrays))
    )
    place = Place(root).configure(
        f'[datasets.scans]\nsource = "{root}/source"\nlayout = "volume"\nvolumes = [{volumes}]\n'
        '[datasets.scans.recipe]\nkind = "volume"\nfields = { image = "uint16", mask = "uint8" }\n'
        "brick = [4, 4, 4]\n"
    )
    with pytest.MonkeyPatch.context() as patch, place.service():
        for name, value in place.env().items():
            patch.setenv(name, value)
        yield place


def fields_of(cut: Patches, arrays: list[dict[str, Volume]], where: Any) -> dict[str, npt.NDArray[Any]]:
    """Of plain patches, with the channel that they have."""
    return {
        name: sliced(cut, [of[name] for of in arrays], np.asarray(where))[:, None]
        for name in ("image", "mask")
    }


def test_patches_are_staged_ahead_and_come_alike_in_every_client_and_on_any_ranks(
    place: Place, arrays: list[dict[str, Volume]]
) -> None:
    cut = RandomPatch(SIZE, borders="pad")
    loader = StagedLoader(StagedDataset("scans"), 3, seed=4, cut=cut, length=24)
    assert len(loader) == 8
    patches, places = [], []
    for batch, where in loader:
        np.testing.assert_array_equal(batch["image"], fields_of(cut, arrays, where)["image"])
        np.testing.assert_array_equal(batch["mask"], fields_of(cut, arrays, where)["mask"])
        patches += list(batch["image"].numpy())
        places += where.tolist()
    assert len(np.unique(places, axis=0)) > 20
    assert {number for number, *_ in places} == {0, 1}
    second = [at for _, where in loader for at in where.tolist()]
    assert second != places, "another epoch has other patches"
    ranked = [
        list(StagedArrays("scans", 3, seed=4, cut=cut, length=24, rank=rank, world_size=2))
        for rank in range(2)
    ]
    found = {tuple(at): image for of_one in ranked for batch, where in of_one
             for at, image in zip(where.tolist(), batch["image"], strict=True)}  # fmt: skip
    assert set(found) == {tuple(at) for at in places}
    for at, image in zip(places, patches, strict=True):
        np.testing.assert_array_equal(found[tuple(at)], image)


def test_a_loader_goes_on_in_the_middle_of_an_epoch(place: Place) -> None:
    def loader() -> StagedArrays:
        return StagedArrays("scans", 4, seed=2, cut=RandomPatch(SIZE), length=20, columns=["image"])

    whole = [where.tolist() for _, where in loader()]
    one = loader()
    before = [where.tolist() for _, (_, where) in zip(range(2), one, strict=False)]
    again = loader()
    again.load_state_dict(one.state_dict())
    assert before + [where.tolist() for _, where in again] == whole
    other = StagedArrays("scans", 4, seed=2, cut=RandomPatch((3, 3, 3)), length=20, columns=["image"])
    with pytest.raises(UsageError, match="another cut"):
        other.load_state_dict(one.state_dict())


def test_a_grid_gives_the_whole_volume_back(place: Place, arrays: list[dict[str, Volume]]) -> None:
    loader = StagedArrays("scans", 5, cut=GridPatch(SIZE, overlap=2), columns=["image"])
    made = [np.zeros_like(of["image"]) for of in arrays]
    for batch, where in loader:
        for patch, (number, *corner) in zip(batch["image"], where.tolist(), strict=True):
            made[number][tuple(slice(at, at + side) for at, side in zip(corner, SIZE, strict=True))] = patch[
                0
            ]
    for got, of in zip(made, arrays, strict=True):
        np.testing.assert_array_equal(got, of["image"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"cut": RandomPatch((3, 3))}, "2 sides"),
        ({"cut": RandomPatch((18, 3, 3))}, "larger than a volume"),
        ({"length": 5}, "length goes with"),
        ({"cut": RandomPatch((3, 3, 3)), "order": lambda epoch: [1]}, "order"),
        ({"cut": RandomPatch((3, 3, 3)), "fraction": 0.5}, "whole"),
        ({"cut": RandomPatch((3, 3, 3), foreground="mask")}, "was not counted"),
        ({"cut": RandomPatch((3, 3, 3), volumes=[1, 2, 3])}, "3 weights, and 2 volumes"),
        ({"cut": RandomPatch((3, 3, 3), floats={"no": Floats()})}, "no field 'no'"),
        ({"cut": CentredPatch((3, 3, 3), [[2, 1, 1, 1]])}, "where no volume is"),
        ({"cut": CentredPatch((9, 9, 9), [[1, 1, 1, 1]])}, "is whole"),
        ({"cut": GridPatch((3, 3, 3)), "length": 5}, "such patches"),
    ],
)
def test_what_does_not_go_with_patches_is_refused(place: Place, options: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said) as raised:
        StagedArrays("scans", 2, **options)
    assert raised.value.hint


def test_the_example_makes_a_volume_trains_on_it_and_learns(tmp_path: Path) -> None:
    def run(*arguments: str) -> str:
        return subprocess.run(
            [sys.executable, str(ROOT / "examples/train_volumes.py"), *arguments],
            env=Place(tmp_path).env(), capture_output=True, text=True, timeout=150, check=True,
        ).stdout  # fmt: skip

    place = Place(tmp_path).configure(run("--make", str(tmp_path / "balls")))
    with place.service():
        told = run("balls").splitlines()
    assert len(told) == 3
    assert float(told[-1].split()[3].rstrip(",")) > 0.5, told
