"""stager diff, refresh and ls --versions: real commands, with a service and without."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from making import image_folder, jpeg
from running import Place
from sets import origin_reads, staged, table
from stager.reader.samples.subset import Subset
from stager_client.samples import StagedSamples

IMAGES = 40  # two of them gone are a twentieth, three are more


@pytest.fixture
def place(tmp_path: Path) -> Place:
    image_folder(tmp_path / "pets", 4, IMAGES // 4)
    return Place(tmp_path).configure(table("pets", tmp_path / "pets"))


@pytest.fixture(params=["service", "alone"])
def prefetched(place: Place, request: pytest.FixtureRequest) -> Iterator[Place]:
    """All is staged; then one image is changed, one is added, one is removed."""
    if request.param == "alone":
        yield _prefetched(place)
        return
    with place.service():
        yield _prefetched(place)


def _prefetched(place: Place) -> Place:
    assert place.json("prefetch")["staged"] == IMAGES
    return _changed(place)


def _changed(place: Place) -> Place:
    pets = place.root / "pets"
    (pets / "class000" / "000.jpg").write_bytes(jpeg(7777, 80, 80))
    (pets / "class001" / "new.jpg").write_bytes(jpeg(8888))
    (pets / "class002" / "003.jpg").unlink()
    return place


KEYS = {"added": ["class001/new.jpg"], "changed": ["class000/000.jpg"], "removed": ["class002/003.jpg"]}


def test_a_diff_says_what_changed_and_a_refresh_takes_that_and_fetches_nothing_else(
    prefetched: Place,
) -> None:
    place, before = prefetched, staged(prefetched, "pets")
    diff = place.run("diff")
    assert diff.returncode == 0
    assert diff.stdout.splitlines() == [
        "+ class001/new.jpg",
        "~ class000/000.jpg",
        "- class002/003.jpg",
        "pets: 1 added, 1 changed, 1 removed; 38 are the same",
    ]
    looked = place.json("refresh", "--dry-run")
    assert looked["keys"] == KEYS
    assert len(place.json("ls", "--versions")) == 1  # nobody has taken it
    reads = origin_reads(place)
    taken = place.json("refresh", "pets")
    assert (taken["staged"], taken["failed"], taken["diff"]["keys"]) == (1, 0, KEYS)
    assert origin_reads(place) == reads + 1
    after = staged(place, "pets")
    assert after.keys() == before.keys() - {"class002/003.jpg"}
    assert not np.array_equal(after.pop("class000/000.jpg"), before.pop("class000/000.jpg"))
    assert all(np.array_equal(after[key], before[key]) for key in after)
    assert "nothing has changed; 40 are the same" in place.run("refresh").stdout
    assert place.json("verify")["problems"] == []


def test_what_may_be_a_lost_mount_changes_nothing_until_a_person_says_so(prefetched: Place) -> None:
    place, before = prefetched, staged(prefetched, "pets")
    for number in (4, 5):
        (place.root / "pets" / "class002" / f"{number:03d}.jpg").unlink()
    refused = place.run("refresh")
    assert refused.returncode == 2
    assert "pets: 3 of 40 samples are gone from the source (8 %)" in refused.stderr
    assert "stager refresh pets --accept-removals" in refused.stderr
    assert staged(place, "pets").keys() == before.keys()
    assert place.json("diff")["removed"] == 3
    assert place.json("refresh", "--accept-removals")["diff"]["removed"] == 3
    assert len(staged(place, "pets")) == IMAGES - 3


def test_a_reader_keeps_its_version_which_ls_and_diff_know(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAGER_CONFIG", str(place.config))
    with place.service():
        assert place.run("prefetch").returncode == 0
        reader = StagedSamples("pets", Subset(), None, 30.0, skip_failed=False)
        first = reader.read(range(IMAGES))
        _changed(place)
        assert place.run("refresh").returncode == 0
        old, new = place.json("ls", "--versions")
        assert [(row["samples"], row["resident"], row["readers"]) for row in (old, new)] == [
            (40, 40, 1),
            (40, 39, 0),
        ]
        assert [row["is_newest"] for row in (old, new)] == [False, True]
        diff = place.json("diff", "pets", old["version"][:12], new["version"][:12])
        assert diff["keys"] == KEYS
        again = reader.read(range(IMAGES))
        assert all(
            np.array_equal(one["image"], same["image"]) for one, same in zip(first, again, strict=True)
        )
        assert old["version"][:12] in place.run("ls", "--versions").stdout
        wrong = place.run("diff", "pets", "zz", new["version"])
        assert wrong.returncode == 2
        assert f"pets has no version 'zz'\n  try: kept are {old['version'][:12]}" in wrong.stderr


def test_a_label_that_moves_is_told_and_nothing_is_fetched_for_it(tmp_path: Path) -> None:
    image_folder(tmp_path / "pets", 1, 4)
    rows = [f"class000/{number:03d}.jpg,{'ab'[number % 2]}" for number in range(4)]
    (tmp_path / "rows.csv").write_text("\n".join(["file,kind", *rows]))
    config = table("pets", tmp_path / "pets", 'crop = 32\npath = "{file}"')
    config = config.replace(
        "[datasets.pets]\n", '[datasets.pets]\nlayout = "table"\ntable = "rows.csv"\nlabel = "kind"\n'
    )
    place = Place(tmp_path).configure(config)
    assert place.json("prefetch")["staged"] == 4
    reads = origin_reads(place)
    (tmp_path / "rows.csv").write_text("\n".join(["file,kind", *rows[:3], rows[3].replace(",b", ",c")]))
    told = place.json("refresh")
    assert (told["diff"]["moved"], told["diff"]["same"], told["staged"]) == (1, 3, 0)
    assert origin_reads(place) == reads
    assert {row["class"] for row in place.json("ls", "--classes")} == {"a", "b", "c"}


def test_one_version_is_not_enough(place: Place) -> None:
    done = place.run("diff", "pets", "1f0c")
    assert (done.returncode, "one version is not enough" in done.stderr) == (2, True)
    unknown = place.run("refresh", "--json")
    assert unknown.returncode == 2
    assert "which data set?" in json.dumps(unknown.stderr)
