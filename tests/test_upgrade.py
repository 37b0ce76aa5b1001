"""A cache directory as version 1 left it: opened, with all that was staged, and nothing staged anew.

golden/cache-v1.tar.gz was made by the last commit that wrote version 1, from /tmp/stager-kept/pictures:
`crop = 64` as LMDB; `crop = 48` as Arrow; then one object removed, one changed, one added, and prefetched; a
class evicted and four of its samples staged again; a class pinned. One object is no image.
"""

import shutil
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from running import Place
from sets import staged, table
from stager.cache.cache import Cache
from stager.cache.verify import check_books
from stager.config import load_config
from stager.reader.index import is_failed
from stager.reader.shards import open_shard
from stager_client.numpy import StagedArrays

KEPT = Path(__file__).with_name("golden") / "cache-v1.tar.gz"
SOURCE = "/tmp/stager-kept/pictures"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    with tarfile.open(KEPT) as archive:
        archive.extractall(tmp_path, filter="data")
    return Place(tmp_path).configure(table("kept", SOURCE, "resize = 0\ncrop = 48"))


def rows_of(place: Place) -> dict[tuple[str, str, str], bytes]:
    """The pixels in every shard, by recipe, key and version, as the files have them."""
    found = {}
    for path in sorted((place.cache / "datasets/kept/shards").iterdir()):
        shard = open_shard(path)
        for row, identity in enumerate(shard.identities()):
            found[shard.header.recipe, *identity] = shard.row(row)["image"].tobytes()
    return found


def test_all_that_the_version_before_had_staged_is_resident_after_the_first_start(place: Place) -> None:
    before = rows_of(place)
    with closing(sqlite3.connect(place.cache / "catalog.db")) as old:
        jobs = old.execute("SELECT count(*) FROM jobs").fetchone()
    rows = {row["recipe_digest"][:4]: row for row in place.json("ls")}
    assert {name: row["resident"] for name, row in rows.items()} == {"837b": 18, "191d": 17}
    assert rows["837b"] | {"is_current": True, "samples": 20, "failed": 1, "pinned": 17} == rows["837b"]
    assert [row["reason"] for row in place.json("ls", "--failed", "kept")] == ["unknown_format"]
    assert place.json("verify")["problems"] == []
    now = staged(place, "kept")
    assert len(now) == 18
    recipe = rows["837b"]["recipe_digest"]
    pixels = {key: data for (made_by, key, _), data in before.items() if made_by == recipe}
    assert {key for key, image in now.items() if image.tobytes() != pixels[key]} == set()
    files = [path.name for path in (place.cache / "datasets/kept").iterdir()]
    assert not [name for name in files if name.startswith("index-") and name.endswith("2634c556cde602b7")]
    with closing(sqlite3.connect(place.cache / "catalog.db")) as new:
        assert new.execute("SELECT count(*) FROM jobs").fetchone() == jobs
        assert new.execute("PRAGMA user_version").fetchone() == (3,)


def test_a_client_reads_what_the_version_before_had_staged_with_no_source_at_all(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAGER_CONFIG", str(place.config))
    want = {key: image for key, image in staged_after_start(place).items() if key.startswith("class00")}
    data = StagedArrays("kept", 4, classes=["class000", "class001"], skip_failed=True)
    keys = [data.loader.samples.key(position) for position in range(len(data.loader.samples))]
    images = np.concatenate([batch[0].copy() for batch in data])
    assert len(keys) == 12
    assert [
        key for key, image in zip(keys, images, strict=True) if not np.array_equal(image, want[key])
    ] == []


def staged_after_start(place: Place) -> dict[str, "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]"]:
    place.json("ls")
    return staged(place, "kept")


def test_rows_of_the_recipe_before_and_of_objects_that_changed_since_keep_their_samples(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAGER_CONFIG", str(place.config))
    cache = Cache(load_config())
    old, new = sorted(cache.open.values(), key=lambda dataset: dataset is cache.datasets["kept"])
    assert new.record.recipe.startswith("837b")
    assert len(old.resident()) == 19  # two of them are in no manifest that counts any more
    keys = {old.records.key(int(number)) for number in old.resident()}
    assert {"class001/gone.jpg", "class002/000.jpg"} <= keys
    assert old.records is new.records
    assert np.count_nonzero(is_failed(new.index.words)) == 1
    assert check_books(cache, set()) == []
    cache.close()


def test_an_upgrade_that_was_cut_off_is_done_again(place: Place, tmp_path: Path) -> None:
    half = tmp_path / "half"
    shutil.copytree(place.cache, half)
    place.json("ls")
    for name in ("dataset.json", "catalog.db"):  # as if it had ended before the new catalog got its name
        source = next(half.rglob(name))
        shutil.copy(source, place.cache / source.relative_to(half))
    assert sum(row["resident"] for row in place.json("ls")) == 35
    assert place.json("verify")["problems"] == []


def test_a_manifest_of_the_version_before_that_is_damaged_costs_no_other_data(place: Place) -> None:
    manifest = place.cache / "datasets/kept/manifest-26e34279239f26a7204ef73f61a92e81.arrow"
    data = bytearray(manifest.read_bytes())
    data[data.index(b"class001/gone.jpg") + 9] ^= 1  # of the recipe that is not current
    manifest.write_bytes(data)
    assert [row["resident"] for row in place.json("ls")] == [18]
    assert place.json("verify")["problems"] == []
