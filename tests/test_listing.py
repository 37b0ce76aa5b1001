"""Volumes whose chunks are listed: each brick is of the versions of its chunks, and of no others."""

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from countingproxy import counting_proxy
from making import Listed as Listing
from running import Place
from s3server import S3Server
from sets import ask_catalog, manifest_at, staged
from stager.errors import SampleError, StagerError, UsageError
from stager.layouts import check_layout
from stager.layouts.volume.chunks import list_chunks
from stager.reader.samples.changes import compare
from stager.reader.samples.computed.bricks import Bricks
from stager.reader.samples.computed.chunked import Chunked, Objects
from stager.reader.samples.manifest import ComputedManifest
from stager.reader.samples.runs import Runs
from stager.reader.samples.sample_list import SampleList
from stager.reader.samples.subset import Subset
from stager.reader.values import Absent, Enclosed, Inner, ObjectInfo, Part
from stager.scan.numbering import number_rules
from stager.scan.scan import Known, Scan, write_computed
from stager.sources.chunks import ChunkSource
from stager_client.numpy import StagedArrays
from stager_client.samples import StagedSamples
from test_computed import NOTHING, RUNS
from volumes import Volume, joined, voxels, write_zarr

# Runs as sets


@settings(deadline=None)
@given(RUNS, RUNS)
def test_runs_are_joined_as_the_sets_of_their_numbers(
    one: list[tuple[int, int]], other: list[tuple[int, int]]
) -> None:
    mine, theirs = Runs(one[::-1]), Runs(other)
    a, b = set(mine[:].tolist()), set(theirs[:].tolist())
    for found, expected in (
        (mine.both(theirs), a & b),
        (mine.less(theirs), a - b),
        (mine.either(theirs), a | b),
        (mine.rising(), a),
    ):
        assert found[:].tolist() == sorted(expected)
        assert (np.diff(found.firsts) > 1).all(), "runs that touch are one"
    assert Runs.of_rising(np.asarray(sorted(a), np.int64)).runs == mine.rising().runs


# Numbers


def array_of(
    field: str, shape: tuple[int, ...], chunk: tuple[int, ...], shard: tuple[int, ...] = (), scale: int = 1
) -> Chunked:
    lies = Objects(f"{field}/zarr.json", "0" * 32, f"{field}/c/", "/", shard, True, True)
    if scale == 1:
        return Chunked(field, chunk, 1, "{}", lies)
    coarse = tuple(-(-side // scale) for side in shape)
    return Chunked(field, chunk, 1, "{}", lies, coarse, (scale,) * len(shape))


@st.composite
def volumes(draw: st.DrawFn) -> Bricks:
    """An image in chunks, which may lie in shards, and a mask at a grid of its own, which may be coarser."""
    dimensions = draw(st.integers(1, 3))
    shape = tuple(draw(st.integers(1, 12)) for _ in range(dimensions))
    brick = tuple(draw(st.sampled_from([2, 4])) for _ in range(dimensions))
    arrays = []
    for field in ("image", "mask"):
        scale = 2 if field == "mask" and draw(st.booleans()) else 1
        chunk = tuple(draw(st.sampled_from([b // scale, 2 * b, 4 * b])) for b in brick)
        shard = draw(st.sampled_from([(), (2,) * dimensions]))
        arrays.append(array_of(field, shape, chunk, shard, scale))
    return Bricks("v", shape, brick, tuple(arrays))


def keys_of(rule: Bricks) -> list[str]:
    """The keys of all objects that there can be."""
    keys = []
    for number, array in enumerate(rule.arrays):
        assert isinstance(array.lies, Objects)
        for place in np.ndindex(rule.objects(number)):
            keys.append(array.lies.keys + array.lies.separator.join(map(str, place)))
    return keys


def listed(rule: Bricks, versions: dict[str, str]) -> Bricks:
    others = ["image/zarr.json", "image/c/0/x", "image/c/007", "image/c/", "mask/c/99/99/99", "z"]
    infos = [ObjectInfo(key, 5, version) for key, version in versions.items()]
    infos += [ObjectInfo(key, 5, "other") for key in others if key not in versions]
    (found,) = list_chunks([rule], Listing(sorted(infos, key=lambda info: info.key)))
    return found


def scanned(path: Path, rule: Bricks, records: SampleList, newest: Any = None) -> ComputedManifest:
    known = Known(records, newest)
    write_computed(Scan(path), [rule], number_rules([rule], records), known)
    manifest = Scan(path).open(records)
    assert isinstance(manifest, ComputedManifest)
    return manifest


@settings(deadline=None, max_examples=60)
@given(volumes(), st.data())
def test_only_bricks_of_chunks_that_changed_came_or_went_have_new_numbers(
    tmp_path_factory: pytest.TempPathFactory, rule: Bricks, data: st.DataObject
) -> None:
    root, keys = tmp_path_factory.mktemp("listed"), keys_of(rule)
    records, newest = NOTHING, None
    number_of: dict[tuple[int, str], int] = {}  # of a row and what its chunks are
    told = data.draw(st.fixed_dictionaries({key: st.sampled_from(["", "a"]) for key in keys}))
    for step in range(4):
        changes = data.draw(
            st.dictionaries(st.sampled_from(keys), st.sampled_from(["", "a", "b"]), max_size=3)
        )
        before_told, told = told, {**told, **changes}
        found = listed(rule, {key: version for key, version in told.items() if version})
        manifest = scanned(root / str(step), found, records, newest)
        rows = np.arange(rule.count)
        for row, number, info, plain in zip(
            rows.tolist(),
            manifest.numbers[:].tolist(),
            manifest.records.infos(manifest.numbers[:]),
            rule.infos(rows),
            strict=True,
        ):
            versions = [told[part.info.key] for part in plain.parts]
            assert [part.info.version for part in info.parts] == versions
            assert [isinstance(part.info, Absent) for part in info.parts] == [not of for of in versions]
            assert (info.key, info.at, info.inputs) == (plain.key, plain.at, plain.inputs)
            assert number_of.setdefault((row, "/".join(versions)), number) == number
            assert manifest.find(info.key) == row
        if newest is not None:
            joins = Scan(root / str(step)).read_joins()
            before, now, many = joins.replaced
            was, is_now = newest.numbers[:], manifest.numbers[:]
            np.testing.assert_array_equal(np.sort(Runs.of(before, many)[:]), np.sort(was[was != is_now]))
            pairs = dict(zip(Runs.of(before, many)[:].tolist(), Runs.of(now, many)[:].tolist(), strict=True))
            assert pairs == dict(
                zip(was[was != is_now].tolist(), is_now[was != is_now].tolist(), strict=True)
            )
            changed = int((was != is_now).sum())
            diff = compare(newest, manifest)
            lost = sum(
                any(before_told[part.info.key] and not told[part.info.key] for part in info.parts)
                for info in rule.infos(rows)
            )
            assert (diff.changed, diff.removed, diff.same, diff.added) == (
                *(changed - lost, lost),
                *(rule.count - changed, 0),
            )
            assert len(diff.keys.get("changed", ())) == changed - lost
            assert len(diff.keys.get("removed", ())) == lost
        assert len(set(number_of.values())) == len(number_of)
        mates = manifest.records.mates(manifest.numbers[:1])
        alive = manifest.places_of(mates)
        np.testing.assert_array_equal(np.sort(alive[alive >= 0]), rule.mates(np.asarray([0])))
        records, newest = manifest.records, manifest
    again = scanned(root / "again", listed(rule, {k: v for k, v in told.items() if v}), records)
    assert newest is not None
    assert (again.digest, again.numbers.runs) == (newest.digest, newest.numbers.runs)
    assert not Scan(root / "again").segments


def test_what_is_kept_of_a_few_chunks_that_change_is_of_these_chunks(tmp_path: Path) -> None:
    shape = (2048,) * 3
    rule = Bricks(
        "v", shape, (32,) * 3, (array_of("image", shape, (128,) * 3),)
    )  # 4,096 chunks, 262,144 bricks
    told = {key: f"etag-{key}" for key in keys_of(rule)}
    first = scanned(tmp_path / "1", listed(rule, told), NOTHING)
    told["image/c/3/4/5"] = told["image/c/3/4/7"] = "changed"
    second = scanned(tmp_path / "2", listed(rule, told), first.records, first)
    assert len(second.numbers.runs) == 5
    assert len(second.records) - len(first.records) == 2 * 64
    sizes = [Scan(tmp_path / name).segments[0].stat().st_size for name in ("1", "2")]
    assert sizes[0] < 4096 * 64 + 4000
    assert sizes[1] < 4000


# What is read


class Kept:
    """A source of some objects, which counts what is asked for."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        self.objects, self.asked = objects, Counter[str]()

    def scan(self, scanning: Any = None) -> Iterator[ObjectInfo]:
        raise AssertionError("nothing is listed here")

    def start(self, part: Part, done: Any) -> None:
        self.asked[part.info.key] += 1
        if part.info.version != f"v{len(self.objects[part.info.key])}":
            done(SampleError("changed", part.info.key))
        else:
            done(memoryview(self.objects[part.info.key])[part.start : part.stop])


def test_a_chunk_of_a_listed_shard_is_read_from_that_version_of_it() -> None:
    index = np.asarray([[0, 3], [2**64 - 1, 2**64 - 1], [3, 0]], "<u8").tobytes()
    for at_end in (True, False):
        start = 0 if at_end else len(index)
        moved = np.frombuffer(index, "<u8").copy()
        moved[[0, 4]] += start
        whole = b"abc" + moved.tobytes() if at_end else moved.tobytes() + b"abc"
        inner = Kept({"s": whole})
        source = ChunkSource(inner)  # type: ignore[arg-type]
        came: list[Any] = []
        for version in (f"v{len(whole)}", "v1"):
            shard = ObjectInfo("s", len(whole), version)
            for number in range(3):
                source.start(
                    Part(Enclosed("s", 9, version, shard, Inner(number, 3, at_end, False))), came.append
                )
        assert [bytes(of) for of in came[:2]] == [b"abc", b""]
        assert [of.reason for of in came[2:]] == ["truncated", *["changed"] * 3]


def test_a_chunk_that_was_not_listed_is_asked_of_nobody_and_one_without_bytes_is_damaged() -> None:
    inner, came = Kept({"empty": b""}), list[Any]()
    source = ChunkSource(inner)  # type: ignore[arg-type]
    source.start(Part(Absent("gone", 0, "")), came.append)
    source.start(Part(ObjectInfo("empty", 0, "v0")), came.append)
    assert bytes(came[0]) == b""
    assert came[1].reason == "truncated"
    assert inner.asked == {"empty": 1}


# With real processes

SHAPE = (40, 24, 20)
RECIPE = 'kind = "volume"\nfields = { image = "uint16", mask = "uint8" }\nbrick = [4, 4, 4]\n'
OPTIONS = (
    'layout = "volume"\nlisting = true\nforeground = "mask"\n'
    'volumes = { image = "scan.zarr/0", mask = "mask.zarr" }\n'
)
BRICKS = 10 * 6 * 5


class Scroll:
    """An image in chunks, a mask in shards, and the folder that they are in."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.arrays: dict[str, Volume] = {"image": voxels(SHAPE, "uint16"), "mask": voxels(SHAPE, "uint8", 1)}
        self.arrays["image"][16:24] = 0
        self.arrays["mask"][16:] = 0
        self.write()

    def write(self) -> None:
        write_zarr(self.root / "scan.zarr/0", self.arrays["image"], (8, 8, 8), zarr_format=2, overwrite=True)
        write_zarr(self.root / "mask.zarr", self.arrays["mask"], (4, 4, 4), shards=(8, 8, 8), overwrite=True)

    def change(self, field: str, box: tuple[slice, ...], seed: int) -> set[str]:
        """Give a part of an array other values, in place. Return the keys of the bricks in its 8^3 chunks."""
        path = self.root / {"image": "scan.zarr/0", "mask": "mask.zarr"}[field]
        array = self.arrays[field] = self.arrays[field].copy()
        array[box] = voxels(array[box].shape, str(array.dtype), seed) if seed else 0
        opened = zarr.open_array(str(path), mode="r+", config={"write_empty_chunks": False})
        opened[box] = array[box]
        starts = [(part.start // 8 * 8, -(-part.stop // 8) * 8) for part in box]
        places = np.stack(np.meshgrid(*(np.arange(*of, 4) for of in starts)), -1).reshape(-1, 3)
        return {
            "scan.zarr/0#" + ",".join(map(str, at))
            for at in places.tolist()
            if (at < np.asarray(SHAPE)).all()
        }


@pytest.fixture
def scroll(tmp_path: Path) -> Scroll:
    return Scroll(tmp_path / "source")


def check(place: Place, name: str, arrays: dict[str, Volume]) -> None:
    """That a reader that opens now gets the volume as it is."""
    bricks = []
    for batch, _ in StagedArrays(name, 50, timeout_s=60):
        bricks += [{field: batch[field][at] for field in arrays} for at in range(len(batch["image"]))]
    manifest = manifest_at(place, name)
    (rule,) = manifest.records.rules(manifest.numbers)
    assert isinstance(rule, Bricks)
    for field, array in arrays.items():
        np.testing.assert_array_equal(joined(rule, bricks, field), array)
    counts = manifest.foreground("mask")
    assert counts is not None
    expected = [int(np.count_nonzero(brick["mask"])) for brick in bricks]
    assert counts.voxels.tolist() == expected, "what was counted is of this version, too"


def box(*starts: int, side: int = 8) -> tuple[slice, ...]:
    return tuple(slice(start, start + side) for start in starts)


CHANGES = {
    "a chunk is written anew": ("image", box(0, 8, 8), 5),
    "a chunk appears where there was none": ("image", box(16, 0, 0), 6),
    "a chunk goes": ("image", box(24, 16, 0), 0),
    "a shard has another inner chunk": ("mask", box(8, 8, 12, side=4), 7),
    "a shard appears": ("mask", box(32, 0, 8, side=4), 8),
    "the last shard of a line goes": ("mask", box(0, 0, 16), 0),
}


@pytest.mark.parametrize("has_service", [True, False])
def test_after_each_change_only_the_bricks_of_that_chunk_are_staged_anew(
    scroll: Scroll, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_service: bool
) -> None:
    place = Place(tmp_path).configure(
        f'[datasets.scroll]\nsource = "{scroll.root}"\n{OPTIONS}[datasets.scroll.recipe]\n{RECIPE}'
    )
    monkeypatch.setenv("STAGER_CONFIG", str(place.config))
    process = place.start_service() if has_service else None
    try:
        assert place.json("prefetch", "scroll")["staged"] == BRICKS
        if has_service:
            check(place, "scroll", scroll.arrays)
        before = staged(place, "scroll")
        assert len(before) == BRICKS
        for number, (told, change) in enumerate(CHANGES.items()):
            keys = scroll.change(*change)
            said = place.json("refresh", "scroll") if number % 2 else place.json("prefetch", "scroll")
            assert said["staged"] == len(keys), told
            if number % 2:
                kind = "removed" if " goes" in told else "changed"
                assert (said["diff"][kind], said["diff"]["same"]) == (len(keys), BRICKS - len(keys)), told
                assert set(said["diff"]["keys"][kind]) == keys
            after = staged(place, "scroll")
            assert after.keys() == before.keys()
            assert {key for key in after if not np.array_equal(after[key], before[key])} <= keys, told
            if has_service:
                check(place, "scroll", scroll.arrays)
            before = after
        assert place.json("prefetch", "scroll")["staged"] == 0
        shutil.rmtree(scroll.root / "mask.zarr/c")  # a mount that is half there looks like this
        refused = place.run("refresh", "scroll")
        assert refused.returncode == 2
        assert "are gone from the source" in refused.stderr
        assert staged(place, "scroll").keys() == before.keys()
        assert place.json("verify")["problems"] == []
    finally:
        if process is not None:
            process.terminate()
            process.wait(30)


def test_a_reader_that_is_open_stays_on_its_version_and_what_is_not_staged_of_it_fails_as_changed(
    scroll: Scroll, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path).configure(
        f'[datasets.scroll]\nsource = "{scroll.root}"\n{OPTIONS}[datasets.scroll.recipe]\n{RECIPE}'
    )
    monkeypatch.setenv("STAGER_CONFIG", str(place.config))
    with place.service():
        assert place.json("prefetch", "scroll", "--fraction", "0.4")["staged"] == BRICKS * 4 // 10
        was = {field: array.copy() for field, array in scroll.arrays.items()}
        reader = StagedSamples("scroll", Subset(), None, 30.0, skip_failed=False)
        resident = set(staged(place, "scroll"))
        changed = scroll.change("image", box(0, 8, 8), 5) | scroll.change("mask", box(8, 0, 0), 6)
        appeared = scroll.change(
            "image", box(16, 0, 0), 7
        )  # it was not there, so it is empty in the old version
        place.json("prefetch", "scroll")
        refused: dict[str, str] = {}
        for at in range(BRICKS):
            key = reader.key(at)
            origin = [int(text) for text in key.partition("#")[2].split(",")]
            try:
                (brick,) = reader.read([at])
            except StagerError as error:
                refused[key] = str(error)
                continue
            for field, array in was.items():
                np.testing.assert_array_equal(brick[field], array[box(*origin, side=4)], key)
        assert set(refused) == changed - resident
        # The first of a chunk asks, and is told; of the others it is known then.
        told = set(refused.values())
        assert all("the listing said" in of or "could not be staged" in of for of in told), told
        assert any("the listing said" in of for of in told)
        reasons = {row[0] for row in ask_catalog(place, "select reason from failures")}
        assert reasons == {"changed"}
        assert not (set(refused) & appeared) - changed
        check(place, "scroll", scroll.arrays)


def test_of_a_bucket_a_change_costs_a_listing_and_the_chunks_that_changed(
    scroll: Scroll, tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def upload() -> None:
        kept = {
            path.relative_to(scroll.root).as_posix(): path
            for path in scroll.root.rglob("*")
            if path.is_file()
        }
        client = s3.client()
        there = client.list_objects_v2(Bucket=s3.bucket, Prefix="listed/").get("Contents", [])
        for item in there:
            if item["Key"].removeprefix("listed/") not in kept:
                client.delete_object(Bucket=s3.bucket, Key=item["Key"])
        for key, path in kept.items():
            client.put_object(Bucket=s3.bucket, Key=f"listed/{key}", Body=path.read_bytes())

    upload()
    with counting_proxy(("127.0.0.1", int(s3.endpoint_url.rpartition(":")[2]))) as proxy:
        place = Place(tmp_path).configure(
            f'[datasets.scroll]\nsource = "s3://{s3.bucket}/listed"\nendpoint_url = "{proxy.endpoint_url}"\n'
            f"{OPTIONS}[datasets.scroll.recipe]\n{RECIPE}".replace('foreground = "mask"\n', "")
        )
        for name, value in place.env().items():
            monkeypatch.setenv(name, value)
        with place.service():
            assert place.json("prefetch", "scroll")["staged"] == BRICKS
            asked = Counter(proxy.objects())
            there = [path for path in scroll.root.rglob("*") if path.is_file()]
            chunks = {f"/{s3.bucket}/listed/{path.relative_to(scroll.root)}" for path in there} & set(asked)
            is_chunk = {key for key in asked if not key.endswith(("zarr.json", ".zarray", ".zattrs"))}
            assert is_chunk <= chunks, "no request for a chunk that is not there"
            assert {asked[key] for key in is_chunk if "scan" in key} == {1}
            proxy.requests.clear()
            keys = scroll.change("image", box(0, 8, 8), 5) | scroll.change("image", box(24, 16, 0), 0)
            upload()  # all anew: etags of S3 say that the others are the same
            assert place.json("prefetch", "scroll")["staged"] == len(keys)
            asked = Counter(proxy.objects())
            images = {
                key.rpartition("/")[2]: number for key, number in asked.items() if "/scan.zarr/0/" in key
            }
            assert images.pop("zarr.json") == images.pop(".zarray") == 1, "what it is"
            assert images == {"0.1.1": 1}
            assert any("list-type=" in line for line in proxy.requests)


def test_listing_is_true_or_false() -> None:
    with pytest.raises(UsageError, match="listing is 1"):
        check_layout("volume", {"volumes": {"image": "a"}, "listing": 1})
    assert check_layout("volume", {"volumes": {"image": "a"}})["listing"] is False
