"""Every miss has its reason: of each kind, told to the reader, counted, and told to a person."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from making import image_folder, jpeg
from running import Place
from stager.reader.samples.subset import Subset
from stager.reader.service import Service
from stager_client.samples import StagedSamples


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    image_folder(tmp_path / "source", 2, 4)
    place = configure(Place(tmp_path), 16)
    monkeypatch.setenv("STAGER_CONFIG", str(place.config))
    with place.service():
        yield place


def configure(place: Place, crop: int) -> Place:
    return place.configure(f'[datasets.data]\nsource = "{place.root}/source"\nrecipe = {{crop = {crop}}}\n')


def prefetch(place: Place, **subset: object) -> None:
    service = Service(place.socket)
    job = service.post("/jobs", {"dataset": "data", "subset": subset})
    while job["state"] not in ("done", "failed", "cancelled"):
        time.sleep(0.05)
        job = service.get(f"/jobs/{job['id']}")
    assert job["state"] == "done", job


def why(place: Place, sample: str) -> dict[str, Any]:
    told: dict[str, Any] = Service(place.socket).post("/datasets/data/why", {"sample": sample})
    return told


def read(place: Place, count: int) -> dict[str, int]:
    """Read so many samples; the reasons of what had to be waited for, of all reads so far."""
    samples = StagedSamples("data", Subset(), None, 60.0, False)
    for position in range(count):
        samples.read([position])
    samples.session.flush()
    reasons: dict[str, int] = Service(place.socket).get("/stats")["datasets"]["data"]["reasons"]
    return reasons


def test_a_resident_sample_tells_its_shard_and_since_when(place: Place) -> None:
    prefetch(place)
    told = place.json("why", "data", "class000/001.jpg")
    assert (told["index"], told["label"], told["resident"]) == (1, "class000", True)
    assert told["why"].startswith(f"resident in shard {told['shard']} since ")
    assert told["why"] in place.run("why", "data", "1").stdout
    assert place.run("why", "data", "nothing.jpg").returncode == 2


def test_a_sample_nobody_asked_for_is_not_planned(place: Place) -> None:
    prefetch(place, classes=["class000"])
    assert why(place, "class001/000.jpg")["why"].startswith("not resident: not_planned")
    assert read(place, 6) == {"not_planned": 2}
    last = why(place, "class001/000.jpg")["last"]
    assert (last["outcome"], last["reason"]) == ("miss", "not_planned")


def test_an_evicted_sample_says_so_also_after_a_restart(place: Place) -> None:
    prefetch(place)
    service = Service(place.socket)
    service.post("/datasets/data/evict", {})
    told = why(place, "0")["why"]
    assert told.startswith("not resident: evicted at ")
    os.kill(service.get("/status")["service"]["pid"], signal.SIGKILL)
    again = place.start_service()
    try:
        assert why(place, "0")["why"] == told
        assert read(place, 3) == {"evicted": 3}
        assert why(place, "0")["resident"]
    finally:
        again.send_signal(signal.SIGTERM)
        again.wait(30)


def test_an_overwritten_object_is_a_changed_source(place: Place) -> None:
    prefetch(place)
    path = place.root / "source/class000/002.jpg"
    path.write_bytes(jpeg(99))
    os.utime(path, ns=(1, 1))
    prefetch(place, classes=["class001"])  # scans, and does not want it
    assert why(place, "class000/002.jpg")["why"].startswith("not resident: source_changed")
    assert why(place, "class000/001.jpg")["resident"]
    assert read(place, 4) == {"source_changed": 1}


def test_a_changed_recipe_names_the_key_that_changed(tmp_path: Path) -> None:
    image_folder(tmp_path / "source", 2, 4)
    place = Place(tmp_path)
    for crop, classes in ((16, 2), (12, 1)):
        configure(place, crop)
        with place.service():
            prefetch(place, classes=classes)
            told = [why(place, f"class00{label}/000.jpg")["why"] for label in (0, 1)]
    assert sum("recipe_changed" in text and "crop 16 -> 12" in text for text in told) == 1


def test_a_corrupt_shard_is_named_as_such_and_staged_again(place: Place) -> None:
    prefetch(place)
    damage_shards(place)
    assert set(read(place, 8)) == {"corrupt"}
    read(place, 8)  # also what was read before its neighbour was found corrupt
    assert all(why(place, str(number))["resident"] for number in range(8))


def damage_shards(place: Place) -> None:
    for shard in (place.cache / "datasets/data/shards").iterdir():
        data = bytearray(shard.read_bytes())
        data[len(data) // 3] ^= 0xFF
        shard.write_bytes(data)


def test_the_command_names_a_corrupt_shard_an_eviction_an_overwritten_object_and_a_changed_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image_folder(tmp_path / "source", 2, 4)
    place = configure(Place(tmp_path), 16)
    monkeypatch.setenv("STAGER_CONFIG", str(place.config))

    def told(sample: str) -> str:
        done = place.run("why", "data", sample)
        assert done.returncode == 0, done.stderr
        return done.stdout

    with place.service():
        prefetch(place)
        damage_shards(place)
        read(place, 8)
        assert any("last miss" in text and ": corrupt, waited" in text for text in map(told, "01234567"))
        prefetch(place)  # whatever row was damaged: all are there again
        place.json("evict", "data")
        assert "not resident: evicted at " in told("0")
        prefetch(place)
        path = place.root / "source/class000/002.jpg"
        path.write_bytes(jpeg(99))
        os.utime(path, ns=(1, 1))
        prefetch(place, classes=["class001"])  # scans, and does not want it
        assert "not resident: source_changed at " in told("class000/002.jpg")
        assert "resident in shard" in told("class000/001.jpg")
    configure(place, 12)
    with place.service():
        prefetch(place, classes=["class001"])
        assert "not resident: recipe_changed at " in told("class000/001.jpg")
        assert "crop 16 -> 12" in told("class000/001.jpg")
