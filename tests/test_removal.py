"""stager rm: a data set is forgotten, whoever has it open sees no wrong byte, and a kill leaves no half."""

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from making import image_folder
from running import Place
from sets import ask_catalog, complaint, ended, staged, table, wait_for
from stager.cli.upkeep.rm import complete_staged
from stager.errors import StagerError
from stager.reader.service import Service
from stager_client.numpy import StagedArrays

READER = """
import time
from stager_client.numpy import StagedArrays
arrays = StagedArrays("pets", 4)
next(iter(arrays))
print("open", flush=True)
time.sleep(600)
"""
CLASSES, EACH = 4, 6
COUNT = CLASSES * EACH
MANY = 400  # of a class, where a job must be under way for a while


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    image_folder(tmp_path / "pets", CLASSES, EACH)
    image_folder(tmp_path / "cars", 2, 3)
    place = Place(tmp_path).configure(tables(tmp_path))
    monkeypatch.setenv("STAGER_CONFIG", str(place.config))
    return place


def tables(root: Path, crop: int = 32, **keys: str) -> str:
    return table("pets", root / "pets", f"crop = {crop}", **keys) + table("cars", root / "cars")


def many_pets(place: Place) -> None:
    """So many, and read so slowly, that a job for them is under way for a while."""
    image_folder(place.root / "pets", CLASSES, MANY)
    place.configure(tables(place.root, limit="200KB/s"))


def names(place: Place) -> set[str]:
    return {row["name"] for row in place.json("ls")}


def nothing_is_left(place: Place, name: str = "pets") -> None:
    """No file, no row, no byte, and no disagreement."""
    assert not (place.cache / "datasets" / name).exists()
    assert name not in names(place)
    assert name not in place.json("stats")["datasets"]
    known = ask_catalog(place, "SELECT name FROM lists UNION SELECT name FROM datasets")
    assert (name,) not in known
    others = sum(row["bytes"] for row in place.json("ls"))
    status = json.loads(place.run("status", "--json").stdout)
    assert status["budget"]["used_bytes"] == others
    assert place.json("verify")["problems"] == []


def read_all(arrays: StagedArrays) -> int:
    return sum(len(labels) for _, labels in arrays)


def test_a_data_set_goes_with_all_that_is_known_of_it_and_comes_back_when_asked_for(place: Place) -> None:
    for name in ("pets", "cars"):
        place.json("prefetch", name)
    place.configure(tables(place.root, 24))
    place.json("prefetch", "pets")  # by another recipe, too
    place.run("pin", "pets")
    (new, old) = sorted(
        (row for row in place.json("ls") if row["name"] == "pets"), key=lambda r: not r["is_current"]
    )
    told = place.json("rm", "pets", "--yes")
    assert told == {
        "dataset": "pets",
        "resident": 2 * COUNT,
        "shards": new["shards"] + old["shards"],
        "pinned": 2 * COUNT,
        "bytes": new["bytes"] + old["bytes"],
        "is_in_config": True,
    }
    nothing_is_left(place)
    assert place.json("prefetch", "pets")["staged"] == COUNT
    assert len(staged(place, "cars")) == 6


def test_a_service_does_the_same_and_goes_on(place: Place) -> None:
    with place.service() as process:
        for name in ("pets", "cars"):
            place.json("prefetch", name)
        assert read_all(StagedArrays("pets", 4)) == COUNT
        wait_for(lambda: not Service(place.socket).get("/status")["sessions"])
        place.json("rm", "pets", "--yes")
        nothing_is_left(place)
        assert place.json("prefetch", "pets")["staged"] == COUNT
        assert read_all(StagedArrays("pets", 4)) == COUNT
        assert Service(place.socket).get("/status")["service"]["pid"] == process.pid
    place.configure("")
    place.json("rm", "cars", "--yes")  # in no config any more
    nothing_is_left(place, "cars")


def test_it_says_what_goes_and_asks_and_only_a_yes_is_one(place: Place) -> None:
    place.json("prefetch", "pets")
    assert "--yes" in complaint(place.run("rm", "pets"), 2)  # nobody is there
    code, said = at_a_terminal(place, b"n\n", "rm", "pets")
    assert (code, "pets" in names(place)) == (3, True)
    (row,) = place.json("ls")
    assert f"{COUNT} samples in {row['shards']} shard" in said
    assert "its next prefetch stages it anew" in said
    code, said = at_a_terminal(place, b"y\n", "rm", "pets")
    assert (code, "are free again" in said) == (0, True)
    nothing_is_left(place)


def at_a_terminal(place: Place, answer: bytes, *arguments: str) -> tuple[int, str]:
    """The exit code, and all that the terminal shows."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "stager", *arguments],
        env={**place.env(), "TERM": "dumb"}, stdin=theirs, stdout=theirs, stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    said = b""
    try:
        while part := os.read(ours, 4096):
            said += part
            if b"[y/N]" in said and answer:
                os.write(ours, answer)
                answer = b""
    except OSError:  # they have closed their end
        pass
    os.close(ours)
    return process.wait(60), said.decode()


def test_what_is_not_there_is_an_error_with_a_way_out(place: Place) -> None:
    place.json("prefetch", "pets")
    assert "did you mean 'pets'" in complaint(place.run("rm", "pest", "--yes"), 2)
    assert "stager prefetch cars" in complaint(place.run("rm", "cars", "--yes"), 2)
    assert complete_staged("p") == ["pets"]
    assert complete_staged("c") == []


def test_a_data_set_that_is_read_stays_until_its_readers_are_gone(place: Place) -> None:
    with place.service():
        place.json("prefetch", "pets")
        reader = subprocess.Popen(
            [sys.executable, "-c", READER], env=place.env(), stdout=subprocess.PIPE, text=True
        )
        assert reader.stdout is not None
        assert reader.stdout.readline() == "open\n"
        refused = complaint(place.run("rm", "pets", "--yes"), 2)
        assert "pets is in use: 1 session reads it" in refused
        assert "--force" in refused
        assert len(staged(place, "pets")) == COUNT
        reader.kill()
        reader.communicate()
        place.json("rm", "pets", "--yes")
        nothing_is_left(place)


def test_with_force_an_open_reader_gets_no_wrong_byte_but_a_clear_error(place: Place) -> None:
    with place.service():
        place.json("prefetch", "pets")
        right = staged(place, "pets")
        arrays = StagedArrays("pets", 4, timeout_s=30)
        batches = iter(arrays)
        keys = [arrays.loader.samples.key(at) for at in range(COUNT)]
        got = [next(batches)]
        place.json("rm", "pets", "--yes", "--force")
        with pytest.raises(StagerError, match=r"not kept any more|was removed|nothing of 'pets'") as caught:
            got.extend(batches)  # those that were read ahead are kept, though the rest fails
        assert caught.value.hint
        images = np.concatenate([images for images, _ in got])
        for key, image in zip(keys, images, strict=False):
            assert np.array_equal(image, right[key])
        nothing_is_left(place)
        place.json("prefetch", "pets")
        with pytest.raises(StagerError, match="not kept any more"):
            read_all(arrays)  # what has the name now is another one
        assert read_all(StagedArrays("pets", 4)) == COUNT


def test_with_force_a_job_under_way_ends_and_leaves_nothing(place: Place) -> None:
    many_pets(place)
    with place.service():
        job = Service(place.socket).post("/jobs", {"dataset": "pets"})["id"]
        wait_for(lambda: any(row["resident"] for row in place.json("ls")))
        refused = complaint(place.run("rm", "pets", "--yes"), 2)
        assert f"pets is in use: job {job} stages it" in refused
        place.json("rm", "pets", "--yes", "--force")
        assert ended(Service(place.socket), job)["state"] == "cancelled"
        nothing_is_left(place)
        assert "Traceback" not in place.log()


def test_a_job_that_a_service_has_left_behind_counts_too(place: Place) -> None:
    many_pets(place)
    process = place.start_service()
    job = Service(place.socket).post("/jobs", {"dataset": "pets"})["id"]
    wait_for(lambda: any(row["resident"] for row in place.json("ls")))
    process.kill()
    process.wait()
    assert f"job {job} stages it" in complaint(place.run("rm", "pets", "--yes"), 2)
    place.json("rm", "pets", "--yes", "--force")
    nothing_is_left(place)
    with place.service():
        assert ended(Service(place.socket), job)["state"] == "cancelled"
        assert names(place) == set()


DIES = """
import os, signal, sys, types
from stager.cache.gone import departures
from stager.catalog.catalog import Catalog

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

where = sys.argv.pop(1)
if where == "before the catalog":
    Catalog.forget_dataset = die
elif where == "in the catalog":
    Catalog.remove_shards = die
elif where == "at an index":
    departures.retire = die
else:
    departures.shutil = types.SimpleNamespace(rmtree=die)
from stager.__main__ import main
main()
"""


@pytest.mark.parametrize("where", ["in the catalog", "at an index", "before the catalog", "before its files"])
def test_a_kill_on_the_way_leaves_a_data_set_that_can_be_removed_or_staged_again(
    where: str, place: Place
) -> None:
    for name in ("pets", "cars"):
        place.json("prefetch", name)
    done = place.python(DIES, where, "rm", "pets", "--yes")
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert place.json("verify")["problems"] == []
    if "pets" in names(place):
        assert len(staged(place, "pets")) in (0, COUNT)  # as if it had not begun, or without a row
        place.json("rm", "pets", "--yes")
    nothing_is_left(place)
    assert place.json("prefetch", "pets")["staged"] == COUNT
    assert len(staged(place, "cars")) == 6


def test_what_is_leaving_takes_no_job_and_no_reader(place: Place) -> None:
    """While workers still have some of it, nobody may begin anything with it."""
    many_pets(place)
    with place.service():
        service = Service(place.socket)
        job = service.post("/jobs", {"dataset": "pets"})["id"]
        wait_for(lambda: any(row["resident"] for row in service.get("/datasets")))
        told: dict[str, Any] = service.post("/datasets/pets/remove", {"force": True})
        assert not told["is_gone"], "nothing was under way: this test would show nothing"
        with pytest.raises(StagerError, match="pets is being removed"):
            service.post("/jobs", {"dataset": "pets"})
        place.json("rm", "pets", "--yes")
        assert ended(service, job)["state"] == "cancelled"
        nothing_is_left(place)
        assert place.json("prefetch", "pets", "--classes", "1")["staged"] == MANY
