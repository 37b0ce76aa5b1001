"""A name that changes in stager.toml: what is staged goes on under the new one, and nothing is read again."""

import gc
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from making import image_folder
from running import Place
from sets import ask_catalog, complaint, ended, origin_reads, staged, table, wait_for
from stager.config import load_config
from stager.owner.upkeep.renames import find_renames
from stager.reader.record import DatasetSpec
from stager.reader.service import Service
from stager.reader.values import SourceSpec
from stager.recipes import check_recipe
from stager_client.numpy import StagedArrays

CLASSES, EACH = 3, 5
COUNT = CLASSES * EACH


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    image_folder(tmp_path / "source", CLASSES, EACH)
    place = Place(tmp_path)
    monkeypatch.setenv("STAGER_CONFIG", str(place.config))
    return named(place, "cats")


def named(place: Place, *names: str, recipe: str = "crop = 32") -> Place:
    return place.configure("".join(table(name, place.root / "source", recipe) for name in names))


def reload(place: Place, process: "subprocess.Popen[str]") -> None:
    before = place.log().count("config reloaded")
    process.send_signal(signal.SIGHUP)
    wait_for(lambda: place.log().count("config reloaded") > before)


def resident(place: Place) -> dict[str, int]:
    return {row["name"]: row["resident"] for row in place.json("ls")}


def is_taken_over(place: Place, before: dict[str, Any], reads: int, name: str = "pets") -> None:
    """All rows are there by the new name alone, by the same bytes, and a prefetch has nothing to do."""
    assert resident(place) == {name: COUNT}
    assert {path.name for path in (place.cache / "datasets").iterdir()} == {name}
    now = staged(place, name)
    assert now.keys() == before.keys()
    assert all(np.array_equal(now[key], before[key]) for key in now)
    job = place.json("prefetch", name)
    assert (job["staged"], job["already"]) == (0, COUNT)
    assert origin_reads(place) == reads
    assert place.json("verify")["problems"] == []
    arrays = StagedArrays(name, 4)
    keys = [arrays.loader.samples.key(at) for at in range(COUNT)]
    images = np.concatenate([images for images, _ in arrays])
    assert all(np.array_equal(image, before[key]) for key, image in zip(keys, images, strict=True))


def test_a_reload_takes_over_what_is_staged_under_the_old_name_with_its_counts(place: Place) -> None:
    with place.service() as process:
        place.json("prefetch", "cats")
        before, reads = staged(place, "cats"), origin_reads(place)
        arrays = StagedArrays("cats", 4)
        assert sum(len(labels) for _, labels in arrays) == COUNT
        del arrays
        gc.collect()  # it is not read any more
        wait_for(lambda: place.json("ls", "--versions")[0]["readers"] == 0)
        reload(named(place, "pets"), process)
        assert "data set renamed name=pets before=cats" in place.log()
        assert place.json("stats")["datasets"]["pets"]["requests"] == COUNT
        is_taken_over(place, before, reads)
        assert "did you mean" in complaint(place.run("rm", "pests", "--yes"), 2)
        assert Service(place.socket).get("/status")["service"]["pid"] == process.pid
    with place.service():
        assert resident(place) == {"pets": COUNT}


def test_a_start_takes_it_over_and_a_job_that_was_cut_off_goes_on_by_the_new_name(place: Place) -> None:
    image_folder(place.root / "source", CLASSES, 300)
    process = place.start_service()
    service = Service(place.socket)
    job = service.post("/jobs", {"dataset": "cats"})["id"]
    wait_for(lambda: service.get(f"/jobs/{job}")["staged"])
    process.kill()
    process.wait()
    had = next(iter(resident(place).values()))
    named(place, "pets")
    with place.service():
        done = ended(Service(place.socket), job)
        assert (done["dataset"], done["state"]) == ("pets", "done")
        assert done["already"] >= had > 0
        assert resident(place) == {"pets": CLASSES * 300}
        assert place.json("verify")["problems"] == []


def test_a_prefetch_without_a_service_takes_it_over(place: Place) -> None:
    place.json("prefetch", "cats")
    before, reads = staged(place, "cats"), origin_reads(place)
    named(place, "pets")
    assert resident(place) == {"cats": COUNT}  # who only looks changes nothing
    job = place.json("prefetch", "pets")
    assert (job["staged"], job["already"]) == (0, COUNT)
    is_taken_over(place, before, reads)


def test_with_both_names_in_the_config_they_are_two_data_sets(place: Place) -> None:
    place.json("prefetch", "cats")
    named(place, "cats", "pets")
    assert place.json("prefetch", "pets")["staged"] == COUNT
    assert resident(place) == {"cats": COUNT, "pets": COUNT}


@pytest.mark.parametrize("recipe", ["crop = 24", "crop = 32\nresize = 40"])
def test_what_is_not_the_same_is_staged_anew_and_the_old_one_stays(place: Place, recipe: str) -> None:
    place.json("prefetch", "cats")
    named(place, "pets", recipe=recipe)
    assert place.json("prefetch", "pets")["staged"] == COUNT
    assert resident(place) == {"cats": COUNT, "pets": COUNT}


def test_all_recipes_of_a_data_set_move_with_it(place: Place) -> None:
    place.json("prefetch", "cats")
    place.json("prefetch", "cats", "--config", str(named(place, "cats", recipe="crop = 24").config))
    named(place, "pets", recipe="crop = 24")
    assert place.json("prefetch", "pets")["already"] == COUNT
    assert sorted(row["is_current"] for row in place.json("ls")) == [False, True]
    assert {row["name"] for row in place.json("ls")} == {"pets"}
    named(place, "pets")
    assert place.json("prefetch", "pets")["already"] == COUNT  # the first recipe's rows are there, too


def test_a_data_set_that_is_read_keeps_its_name_until_nobody_reads_it(place: Place) -> None:
    with place.service() as process:
        place.json("prefetch", "cats")
        before, reads = staged(place, "cats"), origin_reads(place)
        arrays = StagedArrays("cats", 4)
        assert sum(len(labels) for _, labels in arrays) == COUNT
        reload(named(place, "pets"), process)
        assert "data set not renamed yet name=pets before=cats because='1 session reads it'" in place.log()
        told = complaint(place.run("prefetch", "pets"), 2)
        assert "pets is staged as cats, its name before, and is in use: 1 session reads it" in told
        assert sum(len(labels) for _, labels in arrays) == COUNT  # and it goes on
        del arrays
        gc.collect()  # it is not read any more
        wait_for(lambda: place.json("ls", "--versions")[0]["readers"] == 0)
        place.json("prefetch", "pets")
        is_taken_over(place, before, reads)


DIES = """
import os, signal
from stager.cache import cache

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

first = cache.finish_renames
calls = []
def finish(*told):
    calls.append(told)
    first(*told) if len(calls) == 1 else die()  # the first is of the start
cache.finish_renames = finish
from stager.__main__ import main
main()
"""


def test_a_kill_between_the_catalog_and_the_directory_loses_nothing(place: Place) -> None:
    place.json("prefetch", "cats")
    before, reads = staged(place, "cats"), origin_reads(place)
    named(place, "pets")
    assert place.python(DIES, "prefetch", "pets").returncode == -signal.SIGKILL
    assert [row[0] for row in ask_catalog(place, "SELECT name FROM lists")] == ["pets"]
    assert (place.cache / "datasets/cats").is_dir(), "it was not killed in between"
    is_taken_over(place, before, reads)


# Which name is of which


def spec(name: str, url: str = "/data/pets", crop: int = 32, **more: Any) -> DatasetSpec:
    return DatasetSpec(name, SourceSpec(url), "folder", check_recipe({"crop": crop}), **more)


def found(wanted: list[DatasetSpec], have: list[DatasetSpec]) -> dict[str, str]:
    return find_renames({one.name: one for one in wanted}, {one.name: one for one in have})


def test_one_old_name_goes_to_one_new_name_and_the_first_of_the_config_has_it() -> None:
    assert found([spec("a")], [spec("b")]) == {"b": "a"}
    assert found([spec("a"), spec("c")], [spec("b")]) == {"b": "a"}
    assert found([spec("a")], [spec("b"), spec("c")]) == {"b": "a"}
    assert found([spec("a"), spec("c")], [spec("b"), spec("d")]) == {"b": "a", "d": "c"}
    assert found([spec("a"), spec("b")], [spec("b")]) == {}  # both are wanted
    assert found([spec("a")], [spec("a"), spec("b")]) == {}  # something is staged by the new one


def test_only_the_same_source_layout_and_recipe_is_the_same() -> None:
    other = [
        spec("b", url="/data/cats"),
        spec("b", crop=24),
        replace(spec("b"), layout="table"),
        replace(spec("b"), options={"label": "x"}),
        replace(spec("b"), source=SourceSpec("/data/pets", region="eu-central-1")),
    ]
    assert all(found([spec("a")], [one]) == {} for one in other)


def test_a_name_that_was_made_up_from_a_url_is_nobodys_old_name(place: Place) -> None:
    made = load_config(place.config).dataset_of_url(str(place.root / "source"), {}, {})
    assert made is not None
    assert found([replace(made, name="pets")], [made]) == {}


def test_the_code_of_a_function_is_left_to_the_scan() -> None:
    recipe = {"kind": "python", "prepare": "a:b", "code": {}}
    old = replace(spec("b"), recipe={**recipe, "code": {"digest": "1"}})
    assert found([replace(spec("a"), recipe=recipe)], [old]) == {"b": "a"}
    fields = {"x": recipe, "y": {"kind": "array"}}
    old = replace(spec("b"), recipe={**fields, "x": {**recipe, "code": {"digest": "1"}}})
    assert found([replace(spec("a"), recipe=fields)], [old]) == {"b": "a"}
