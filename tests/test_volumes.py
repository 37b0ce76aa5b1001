"""Volumes: bricks of Zarr arrays, with the voxels of the source. No chunk is listed, and none read twice."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from numcodecs import Blosc, Delta

from recipe_contract import Given, RecipeContract
from stager.errors import SampleError, UsageError
from stager.reader.samples.computed.bricks import Bricks
from stager.reader.samples.computed.grid import Grid, scale_of
from stager.reader.samples.computed.rules import open_rule
from stager.recipes import check_recipe, open_recipe
from volumes import Staging, joined, voxels, write_zarr

ONE = {"image": "v.zarr"}
SIDE = st.tuples(st.integers(1, 30), st.integers(1, 4), st.integers(1, 3))  # of it, of a brick, bricks a cell


@settings(deadline=None, max_examples=60)
@given(st.lists(SIDE, min_size=1, max_size=4))
def test_every_brick_has_one_number_and_those_of_a_cell_are_neighbours(
    sides: list[tuple[int, int, int]],
) -> None:
    shape, brick, per_cell = zip(*sides, strict=True)
    grid = Grid(shape, brick, tuple(b * n for b, n in zip(brick, per_cell, strict=True)))
    rows = np.arange(len(grid))
    places = grid.places(rows)
    np.testing.assert_array_equal(grid.rows(places), rows)
    assert len(np.unique(places, axis=0)) == len(grid)
    assert (places >= 0).all()
    assert (places < np.asarray(grid.counts)).all()
    cells = places // np.asarray(grid.per_cell)
    for row in rows[:: max(1, len(rows) // 5)].tolist():
        mates = np.flatnonzero((cells == cells[row]).all(axis=1))
        np.testing.assert_array_equal(grid.mates(np.asarray([row])), mates)
        assert (np.diff(mates) == 1).all()


@st.composite
def arrays(draw: st.DrawFn) -> dict[str, Any]:
    """How an array lies in Zarr, and bricks that divide its chunks or are multiples of them."""
    dimensions = draw(st.integers(1, 3))
    sides = [draw(st.integers(1, 14)) for _ in range(dimensions)]
    brick = [draw(st.sampled_from([1, 2, 4])) for _ in range(dimensions)]
    chunk = [draw(st.sampled_from([n for n in (1, 2, 4, 8) if n % b == 0 or b % n == 0])) for b in brick]
    per_shard = draw(st.none() | st.lists(st.integers(1, 3), min_size=dimensions, max_size=dimensions))
    zarr_format = draw(st.sampled_from([2, 3])) if per_shard is None else 3
    return {
        "shape": sides,
        "brick": brick,
        "chunks": chunk,
        "shards": per_shard and [n * c for n, c in zip(per_shard, chunk, strict=True)],
        "zarr_format": zarr_format,
        "dtype": draw(st.sampled_from(["uint8", "<u2", ">i2", ">f4", "bool", "<i8"])),
        "fill_value": draw(st.sampled_from([0, 1])),
        "empty": draw(st.floats(0, 1)),
    }


@settings(deadline=None, max_examples=60)
@given(arrays())
def test_voxels_are_those_of_the_array(
    tmp_path_factory: pytest.TempPathFactory, about: dict[str, Any]
) -> None:
    root = tmp_path_factory.mktemp("v")
    shape, brick, dtype = about["shape"], about["brick"], np.dtype(about["dtype"])
    array = voxels(shape, dtype.name, seed=1).astype(dtype)
    array[: int(shape[0] * about["empty"])] = about["fill_value"]
    more = {name: about[name] for name in ("shards", "zarr_format", "fill_value")}
    write_zarr(root / "v.zarr", array, about["chunks"], **more)
    staging = Staging(root, ONE, {"image": dtype.name}, brick)
    (rule,) = staging.rules
    staging.files.reads.clear()
    bricks = staging.bricks(rule, range(rule.count))
    assert {of["image"].shape for of in bricks} == {tuple(brick)}
    assert bricks[0]["image"].dtype == dtype.newbyteorder("<")
    np.testing.assert_array_equal(joined(rule, bricks, "image"), array)
    chunks = [(key, size) for key, size in staging.files.reads if not key.endswith((".zarray", "zarr.json"))]
    there = {f"v.zarr/{path.relative_to(root / 'v.zarr').as_posix()}": path.stat().st_size
             for path in (root / "v.zarr").rglob("*")
             if path.is_file() and not path.name.startswith(".") and path.name != "zarr.json"}  # fmt: skip
    assert {key for key, _ in chunks} == set(there)
    assert sum(size for _, size in chunks) <= sum(there.values()), "no byte of a chunk is read twice"


CODECS: list[dict[str, Any]] = [
    {"zarr_format": 2, "compressors": Blosc("zstd", 3)},
    {"zarr_format": 2, "compressors": None},
    {"zarr_format": 2, "filters": [Delta("<u2")], "order": "F"},
    {"zarr_format": 2, "chunk_key_encoding": {"name": "v2", "separator": "/"}},
    {"compressors": zarr.codecs.BloscCodec(cname="lz4")},
    {"compressors": zarr.codecs.GzipCodec(), "chunk_key_encoding": {"name": "default", "separator": "."}},
    {"compressors": None, "chunk_key_encoding": {"name": "v2", "separator": "."}},
    {"compressors": [zarr.codecs.ZstdCodec(), zarr.codecs.Crc32cCodec()], "shards": (16, 16, 8)},
    {"filters": zarr.codecs.TransposeCodec(order=(2, 0, 1)), "shards": (8, 24, 24)},
]


@pytest.mark.parametrize("more", CODECS, ids=range(len(CODECS)))
def test_any_codec_of_zarr_is_read(tmp_path: Path, more: dict[str, Any]) -> None:
    array = voxels((20, 17, 24), "uint16")
    write_zarr(tmp_path / "v.zarr", array, (8, 8, 8), **more)
    staging = Staging(tmp_path, ONE, {"image": "uint16"}, (4, 4, 4))
    (rule,) = staging.rules
    np.testing.assert_array_equal(joined(rule, staging.bricks(rule, range(rule.count)), "image"), array)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_level_of_a_multiscale_image_is_read_by_its_number(tmp_path: Path, zarr_format: int) -> None:
    levels = [voxels((8 >> at, 8, 8), seed=at) for at in range(3)]
    for at, array in enumerate(levels):
        write_zarr(tmp_path / f"v.zarr/scale{at}", array, (4, 4, 4), zarr_format=zarr_format)
    scales = [{"datasets": [{"path": f"scale{at}"} for at in range(3)]}]
    group = {"multiscales": scales} if zarr_format == 2 else {"ome": {"multiscales": scales}}
    zarr.open_group(str(tmp_path / "v.zarr"), mode="a", zarr_format=zarr_format).attrs.update(group)
    for at, array in enumerate(levels):
        staging = Staging(tmp_path, ONE, {"image": "uint8"}, (2, 2, 2), level=at)
        (rule,) = staging.rules
        np.testing.assert_array_equal(joined(rule, staging.bricks(rule, range(rule.count)), "image"), array)
    with pytest.raises(UsageError, match="no level 3") as raised:
        Staging(tmp_path, ONE, {"image": "uint8"}, (2, 2, 2), level=3)
    assert "0 to 2" in raised.value.hint


def test_an_image_and_its_mask_are_one_sample_though_their_chunks_differ(tmp_path: Path) -> None:
    image, mask = voxels((20, 16, 12), "uint16"), voxels((20, 16, 12), "bool")
    write_zarr(tmp_path / "image.zarr/0", image, (8, 8, 4))
    write_zarr(tmp_path / "mask.zarr", mask, (2, 16, 12), zarr_format=2)
    volumes = {"image": "image.zarr/0", "mask": "mask.zarr"}
    staging = Staging(tmp_path, volumes, {"mask": "bool", "image": "uint16"}, (4, 4, 4))
    (rule,) = staging.rules
    bricks = staging.bricks(rule, range(rule.count))
    np.testing.assert_array_equal(joined(rule, bricks, "image"), image)
    np.testing.assert_array_equal(joined(rule, bricks, "mask"), mask)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.tuples(st.integers(1, 25), st.integers(1, 3), st.booleans()), min_size=1, max_size=3),
    st.data(),
)
def test_companions_at_a_coarser_grid_cover_the_same_of_space(
    tmp_path_factory: pytest.TempPathFactory, sides: list[tuple[int, int, bool]], data: st.DataObject
) -> None:
    root = tmp_path_factory.mktemp("v")
    shape, scale, is_up = zip(*sides, strict=True)
    own = [max(1, -(-n // s) if up else n // s) for n, s, up in zip(shape, scale, is_up, strict=True)]
    brick = [s * data.draw(st.sampled_from([1, 2, 4])) for s in scale]
    chunk = [b * data.draw(st.integers(1, 2)) for b in brick]
    coarse = [max(1, c // s) * data.draw(st.integers(1, 2)) for c, s in zip(chunk, scale, strict=True)]
    image, mask = voxels(shape, "uint16"), voxels(own, "uint8")
    write_zarr(root / "image.zarr", image, chunk)
    write_zarr(root / "mask.zarr", mask, coarse)
    volumes = {"image": "image.zarr", "mask": "mask.zarr"}
    staging = Staging(root, volumes, {"mask": "uint8", "image": "uint16"}, brick, scale={"mask": list(scale)})
    (rule,) = staging.rules
    assert open_rule(json.loads(json.dumps(rule.to_json()))) == rule
    bricks = staging.bricks(rule, range(rule.count))
    np.testing.assert_array_equal(joined(rule, bricks, "image"), image)
    np.testing.assert_array_equal(joined(rule, bricks, "mask"), mask)
    (field,) = [field for field in staging.recipe.fields if field.name == "mask"]
    assert scale_of(rule.brick, field.shape) == tuple(scale)
    reads = Counter(staging.files.reads)
    there = [key for key in reads if key[0].startswith("mask.zarr/c/")]
    assert max(reads[key] for key in there) == 1


def test_a_companion_that_covers_something_else_is_refused_with_the_scale_that_fits(tmp_path: Path) -> None:
    write_zarr(tmp_path / "image.zarr", voxels((41, 40, 40)), (20, 20, 20))
    write_zarr(tmp_path / "mask.zarr", voxels((20, 20, 40)), (10, 10, 20))
    volumes, fields = {"image": "image.zarr", "mask": "mask.zarr"}, {"image": "uint8", "mask": "uint8"}
    with pytest.raises(UsageError, match=r"mask\.zarr is") as raised:
        Staging(tmp_path, volumes, fields, (4, 4, 4))
    assert raised.value.hint == "write scale = { mask = [2, 2, 1] } in the recipe"
    with pytest.raises(UsageError, match="at a scale of") as raised:
        Staging(tmp_path, volumes, fields, (4, 4, 4), scale={"mask": 4})
    assert "[2, 2, 1]" in raised.value.hint
    Staging(tmp_path, volumes, fields, (4, 4, 4), scale={"mask": [2, 2, 1]})


@pytest.mark.parametrize(
    ("scale", "said"),
    [
        ({"lung": 2}, "no field 'lung'"),
        ({"mask": 0}, "is 0"),
        ({"mask": [2, 2]}, "a brick is"),
        ({"mask": 3}, "a brick is"),
        ({"mask": 2, "image": 2}, "all fields"),
        (2, "is 2"),
    ],
)
def test_scales_that_make_no_sense_are_told(scale: Any, said: str) -> None:
    spec = {
        "kind": "volume",
        "fields": {"image": "uint8", "mask": "uint8"},
        "brick": [4, 4, 4],
        "scale": scale,
    }
    with pytest.raises(UsageError, match=said):
        check_recipe(spec)


def rule_of(root: Path, shape: Sequence[int] = (20, 16, 12), **more: Any) -> Bricks:
    write_zarr(root / "v.zarr", voxels(shape), (8, 8, 8), **more)
    return Staging(root, ONE, {"image": "uint8"}, (4, 4, 4)).rules[0]


def test_a_brick_is_found_by_the_key_that_it_has(tmp_path: Path) -> None:
    rule = rule_of(tmp_path)
    keys = rule.keys(np.arange(rule.count))
    assert len(set(keys)) == rule.count
    assert keys[0] == "v.zarr#0,0,0"
    assert [rule.find(key) for key in keys] == list(range(rule.count))
    for other in ("v.zarr#0,0,1", "v.zarr#0,0", "v.zarr#0,0,99", "w.zarr#0,0,0", "v.zarr#0,0,-4", "", "#,,"):
        assert rule.find(other) is None
    assert open_rule(json.loads(json.dumps(rule.to_json()))) == rule


def test_a_volume_of_28_million_bricks_is_a_rule_of_two_thousand_bytes(tmp_path: Path) -> None:
    shape = (14_000, 8_000, 8_000)
    zarr.create_array(str(tmp_path / "v.zarr"), shape=shape, chunks=(128,) * 3, dtype="uint8")
    rule = Staging(tmp_path, ONE, {"image": "uint8"}, (32, 32, 32)).rules[0]
    assert rule.count == 438 * 250 * 250
    assert len(json.dumps(rule.to_json())) < 2_000
    assert rule.find(rule.keys(np.asarray([rule.count - 1]))[0]) == rule.count - 1
    assert len(rule.mates(np.asarray([rule.count // 2]))) == 64
    assert rule.cost(640) == (10, 10 << 21)


def test_other_metadata_make_other_versions_of_all_bricks(tmp_path: Path) -> None:
    one = rule_of(tmp_path / "1")
    two = rule_of(tmp_path / "2", fill_value=3)
    same = rule_of(tmp_path / "3")
    assert one == same
    assert one.identity != two.identity
    rows = np.arange(one.count)
    versions = [{info.version for info in of.infos(rows)} for of in (one, two)]
    assert [len(of) for of in versions] == [one.count, one.count]
    assert not versions[0] & versions[1]


def test_chunks_that_are_missing_are_empty_only_while_the_volume_is_there(tmp_path: Path) -> None:
    write_zarr(tmp_path / "v.zarr", np.zeros((16, 8, 8), "uint8"), (8, 8, 8), fill_value=0)
    staging = Staging(tmp_path, ONE, {"image": "uint8"}, (4, 4, 4))
    (rule,) = staging.rules
    assert not np.any([of["image"] for of in staging.bricks(rule, range(4))])
    (tmp_path / "v.zarr").rename(tmp_path / "gone")
    with pytest.raises(SampleError, match=r"zarr\.json") as raised:
        Staging.bricks(_again(staging), rule, range(4))
    assert raised.value.reason == "missing"


def _again(staging: Staging) -> Staging:
    """As much later: what was there a second ago is looked at again."""
    staging._source._seen.clear()
    return staging


@pytest.mark.parametrize("shards", [None, (16, 16, 16)])
def test_a_damaged_chunk_is_an_error_of_its_bricks_and_of_no_others(tmp_path: Path, shards: Any) -> None:
    array = voxels((16, 16, 16))
    checked = [zarr.codecs.ZstdCodec(checksum=True), zarr.codecs.Crc32cCodec()]
    write_zarr(tmp_path / "v.zarr", array, (8, 8, 8), shards=shards, compressors=checked)
    path = tmp_path / "v.zarr" / ("c/0/0/0" if shards else "c/0/0/1")
    data = bytearray(path.read_bytes())
    data[20] ^= 255  # of a shard: its first chunk
    path.write_bytes(data)
    staging = Staging(tmp_path, ONE, {"image": "uint8"}, (8, 8, 8))
    (rule,) = staging.rules
    (wrong,) = [
        row
        for row in range(rule.count)
        if rule.keys(np.asarray([row]))[0].endswith("#0,0,0" if shards else "#0,0,8")
    ]
    with pytest.raises(SampleError, match="cannot be decoded") as raised:
        staging.bricks(rule, [wrong])
    assert raised.value.reason == "corrupt"
    others = [row for row in range(rule.count) if row != wrong]
    assert len(staging.bricks(rule, others)) == 7


@pytest.mark.parametrize(("at", "reason"), [(-30, "corrupt"), (None, "truncated")])
def test_a_damaged_index_of_a_shard_is_told(tmp_path: Path, at: int | None, reason: str) -> None:
    write_zarr(tmp_path / "v.zarr", voxels((16, 16, 16)), (8, 8, 8), shards=(16, 16, 16))
    path = tmp_path / "v.zarr/c/0/0/0"
    data = bytearray(path.read_bytes())
    if at is None:
        del data[100:]
    else:
        data[at] ^= 1
    path.write_bytes(data)
    staging = Staging(tmp_path, ONE, {"image": "uint8"}, (8, 8, 8))
    with pytest.raises(SampleError, match="index") as raised:
        staging.bricks(staging.rules[0], [3])
    assert raised.value.reason == reason


@pytest.mark.parametrize(
    ("volumes", "fields", "brick", "said", "hint"),
    [
        ({"image": "nothing"}, {"image": "uint8"}, (4, 4, 4), "no volume at nothing", "zarr.json"),
        (ONE, {"image": "uint16"}, (4, 4, 4), "is uint8, the recipe says uint16", '"uint8"'),
        (ONE, {"image": "uint8"}, (4, 4), "3 sides, its bricks 2", "[20, 20, 20]"),
        (ONE, {"image": "uint8"}, (3, 4, 4), "do not divide", "brick = [20, 20, 20]"),
        (ONE, {"mask": "uint8"}, (4, 4, 4), "a volume has image, the recipe mask", "fields"),
        ({"image": "v.zarr", "mask": "w.zarr"}, {"image": "uint8", "mask": "uint8"}, (4, 4, 4), "one", "one"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_told_with_a_way_out(
    tmp_path: Path, volumes: Any, fields: dict[str, str], brick: Any, said: str, hint: str
) -> None:
    write_zarr(tmp_path / "v.zarr", voxels((40, 40, 40)), (20, 20, 20))
    write_zarr(tmp_path / "w.zarr", voxels((40, 40, 25)), (20, 20, 20))
    with pytest.raises(UsageError) as raised:
        Staging(tmp_path, volumes, fields, brick)
    assert said in raised.value.message or said == "one"
    assert hint in raised.value.hint


@pytest.mark.parametrize(
    "text", ["no json", "[]", "{}", '{"zarr_format": 2}', '{"zarr_format": 3, "shape": 4}']
)
def test_metadata_that_make_no_sense_are_told_by_name(tmp_path: Path, text: str) -> None:
    for name in ("zarr.json", ".zarray"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).write_text(text)
        with pytest.raises(UsageError) as raised:
            Staging(tmp_path, {"image": name}, {"image": "uint8"}, (4, 4, 4))
        assert name in raised.value.message


class TestVolumeRecipe(RecipeContract):
    spec = {"kind": "volume", "fields": {"image": "uint16"}, "brick": [2, 3, 4]}
    other = {**spec, "brick": [2, 3, 2]}

    def test_a_brick_that_its_array_has_nothing_of_is_zero(self) -> None:
        made = open_recipe(self.spec).prepare([], ((0, 1, 1),))
        np.testing.assert_array_equal(made["image"], np.zeros((2, 3, 4), np.uint16))

    def test_a_scale_is_part_of_its_name(self) -> None:
        spec = {"kind": "volume", "fields": {"image": "uint8", "mask": "uint8"}, "brick": [4, 4, 4]}
        one, two = (open_recipe({**spec, **more}) for more in ({}, {"scale": {"mask": 2}}))
        assert one.digest != two.digest
        assert [field.shape for field in two.fields] == [(4, 4, 4), (2, 2, 2)]

    def good(self) -> dict[str, Given]:
        box = np.arange(24, dtype=np.uint16).reshape(2, 3, 4)
        return {
            "of one chunk": ([box], ((1, 1, 1),)),
            "of two": ([box[:1], box[1:]], ((2, 1, 1),)),
            "of two, one larger": ([box[:, :1], box[:, 1:]], ((1, 2, 1),)),
            "at the far side": ([box[:, :, :2]], ((1, 1, 1),)),
        }

    def bad(self) -> dict[str, Given]:
        box = np.zeros((2, 3, 4), np.uint8)
        return {"another dtype": ([box], ((1, 1, 1),)), "bytes": ([memoryview(b"")], ((1, 1, 1),))}
