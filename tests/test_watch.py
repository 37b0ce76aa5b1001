"""A watched data set keeps itself fresh: a real service, real files, and what new sessions see."""

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from making import image_folder, jpeg
from running import Place
from s3server import S3Server
from sets import manifest_at, origin_reads, staged, table, wait_for
from stager.reader.samples.subset import Subset
from stager.reader.service import Service
from stager_client.samples import StagedSamples

CLASSES, PER_CLASS = 5, 20
IMAGES = CLASSES * PER_CLASS


def watched(name: str, source: Path | str, *keys: str, **access: str | bool) -> str:
    """A table with `watch = true`, and whatever else."""
    lines = "\n".join(("watch = true", *keys))
    return table(name, source, **access).replace(
        "[datasets." + name + ".recipe]", f"{lines}\n[datasets.{name}.recipe]"
    )


def watch_of(place: Place, name: str = "pets") -> dict[str, Any]:
    """What `status` says of a watch; {}: nothing yet."""
    rows = Service(place.socket).get("/status", 10)["datasets"]
    return next((row["watch"] or {} for row in rows if row["name"] == name), {})


def keys_of(place: Place, name: str = "pets") -> set[str]:
    """What a session that is opened now has."""
    manifest = manifest_at(place, name)
    return {manifest.key(at) for at in range(len(manifest))}


def looks(place: Place) -> int:
    """How many versions were taken so far."""
    return place.log().count("version taken")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    image_folder(tmp_path / "pets", CLASSES, PER_CLASS)
    return Place(tmp_path).configure(watched("pets", tmp_path / "pets"))


@pytest.fixture
def served(place: Place) -> Iterator[Place]:
    """All is staged, and watched."""
    with place.service():
        assert place.json("prefetch", "pets")["staged"] == IMAGES
        wait_for(lambda: watch_of(place).get("by") == "inotify" and watch_of(place)["state"] == "resting")
        yield place


def at_rest(place: Place, name: str = "pets") -> bool:
    """Whether nothing is under way: as the log would say if anything were."""
    return watch_of(place, name).get("state") == "resting"


def test_files_that_come_change_move_and_go_are_seen_soon_and_only_what_changed_is_fetched(
    served: Place,
) -> None:
    pets, before, reads = served.root / "pets", staged(served, "pets"), origin_reads(served)
    (pets / "class000" / "new.jpg").write_bytes(jpeg(9001))
    (pets / "class001" / "000.jpg").write_bytes(jpeg(9002, 80, 80))
    (pets / "class002" / "001.jpg").unlink()
    (pets / "class003" / "002.jpg").rename(pets / "class004" / "moved.jpg")
    now = {"class000/new.jpg", "class004/moved.jpg"} | before.keys() - {
        "class002/001.jpg",
        "class003/002.jpg",
    }
    wait_for(lambda: keys_of(served) == now, 30)
    wait_for(lambda: "class001/000.jpg" in staged(served, "pets"))
    after = staged(served, "pets")
    changed = after.pop("class001/000.jpg")
    assert not np.array_equal(changed, before["class001/000.jpg"])
    assert all(np.array_equal(after[key], before[key]) for key in after)
    assert after.keys() == before.keys() - {"class002/001.jpg", "class003/002.jpg", "class001/000.jpg"}
    assert origin_reads(served) == reads + 1  # what is new is staged when somebody asks for it
    assert watch_of(served)["last_change"] is not None
    assert served.json("verify")["problems"] == []


def test_folders_that_come_and_are_renamed_are_seen(served: Place) -> None:
    pets, before = served.root / "pets", keys_of(served)
    (pets / "class000").rename(pets / "renamed")
    image_folder(pets / "deep" / "er", 1, 2)
    moved = {key.replace("class000/", "renamed/") for key in before}
    # A fifth of all is under another name: that looks like a loss, until a person says that it is none.
    wait_for(lambda: watch_of(served)["state"] == "frozen", 30)
    assert keys_of(served) == before
    assert "20 of 100 samples are gone" in watch_of(served)["why"]
    assert served.json("refresh", "pets", "--accept-removals")["diff"]["removed"] == PER_CLASS
    assert keys_of(served) == moved | {"deep/er/class000/000.jpg", "deep/er/class000/001.jpg"}
    wait_for(lambda: at_rest(served))
    (pets / "deep" / "er" / "class000" / "002.jpg").write_bytes(jpeg(5))  # a folder that came is watched, too
    wait_for(lambda: "deep/er/class000/002.jpg" in keys_of(served), 30)


def test_a_burst_of_a_thousand_files_is_a_few_looks(served: Place) -> None:
    data, taken = jpeg(1), looks(served)
    for number in range(1000):
        (served.root / "pets" / f"class{number % CLASSES:03d}" / f"burst{number}.jpg").write_bytes(data)
    wait_for(lambda: len(keys_of(served)) == IMAGES + 1000, 30)
    wait_for(lambda: at_rest(served))
    assert 1 <= looks(served) - taken <= 4


def test_a_file_that_somebody_still_writes_is_left_until_it_rests_and_the_others_are_taken(
    served: Place,
) -> None:
    pets, data = served.root / "pets", jpeg(77, 400, 400)
    stop = threading.Event()
    half = pets / "class000" / "half.jpg"

    def write() -> None:
        with half.open("wb") as file:
            at = 0
            while not stop.wait(0.1):
                file.write(data[at : at + 10])
                file.flush()
                at = min(at + 10, len(data) - 10)
            file.write(data[at:])

    writer = threading.Thread(target=write)
    writer.start()
    try:
        (pets / "class000" / "whole.jpg").write_bytes(jpeg(78))
        wait_for(lambda: "class000/whole.jpg" in keys_of(served), 30)
        assert "class000/half.jpg" not in keys_of(served)
        time.sleep(4)
        assert "class000/half.jpg" not in keys_of(served)
    finally:
        stop.set()
        writer.join()
    wait_for(lambda: "class000/half.jpg" in keys_of(served), 30)
    manifest = manifest_at(served, "pets")
    (info,) = manifest.records.infos([int(manifest.numbers[manifest.find("class000/half.jpg") or 0])])
    assert info.size == half.stat().st_size


def test_an_open_reader_stays_on_its_version_and_a_new_session_has_the_next(
    served: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAGER_CONFIG", str(served.config))
    reader = StagedSamples("pets", Subset(), None, 30.0, skip_failed=False)
    first, taken = reader.read(range(IMAGES)), looks(served)
    (served.root / "pets" / "class001" / "000.jpg").write_bytes(jpeg(9002, 80, 80))
    wait_for(lambda: looks(served) > taken, 30)
    again = reader.read(range(IMAGES))
    assert all(np.array_equal(one["image"], same["image"]) for one, same in zip(first, again, strict=True))
    fresh = StagedSamples("pets", Subset(), None, 30.0, skip_failed=False)
    assert fresh.digest != reader.digest


def test_a_data_set_that_was_never_staged_is_known_as_soon_as_it_is_watched(place: Place) -> None:
    with place.service():
        wait_for(lambda: watch_of(place).get("state") == "resting" and len(keys_of(place)) == IMAGES, 60)
        assert place.json("status")["datasets"][0]["resident"] == 0


def test_what_changed_while_no_service_ran_is_taken_at_the_start(place: Place) -> None:
    assert place.json("prefetch", "pets")["staged"] == IMAGES
    (place.root / "pets" / "class001" / "000.jpg").write_bytes(jpeg(9002, 80, 80))
    reads = origin_reads(place)
    with place.service():
        wait_for(lambda: looks(place) and len(staged(place, "pets")) == IMAGES, 60)
        assert origin_reads(place) == reads + 1


def test_a_source_that_vanishes_freezes_and_thaws_when_it_is_back(served: Place) -> None:
    pets, before, reads = served.root / "pets", staged(served, "pets"), origin_reads(served)
    pets.rename(served.root / "away")
    wait_for(lambda: watch_of(served)["state"] == "frozen", 30)
    told = watch_of(served)
    assert "no such file or directory" in told["why"].lower()
    assert time.time() - 30 < told["since"] <= time.time()
    assert "pets is frozen since" in served.run("ls").stdout
    assert served.json("ls")[0]["frozen"]["why"] == told["why"]
    assert "frozen" in served.run("status").stdout
    assert served.log().count("frozen dataset=pets") == 1
    pets.mkdir()  # an empty mount point
    time.sleep(3)
    assert watch_of(served)["state"] == "frozen"
    assert staged(served, "pets").keys() == before.keys()
    pets.rmdir()
    (served.root / "away").rename(pets)
    wait_for(lambda: at_rest(served), 30)
    assert "thawed dataset=pets" in served.log()
    assert origin_reads(served) == reads
    assert served.json("ls")[0]["frozen"] is None
    (pets / "class000" / "new.jpg").write_bytes(jpeg(3))
    wait_for(lambda: "class000/new.jpg" in keys_of(served), 30)


def test_a_reload_starts_and_ends_watches_and_a_stop_ends_all_at_once(place: Place) -> None:
    plain = table("pets", place.root / "pets")
    place.configure(plain)
    with place.service() as process:
        assert place.json("prefetch", "pets")["staged"] == IMAGES
        assert place.json("status")["datasets"][0]["watch"] is None
        place.configure(watched("pets", place.root / "pets"))
        process.send_signal(signal.SIGHUP)
        wait_for(lambda: watch_of(place).get("by") == "inotify", 30)
        (helper,) = helpers(process.pid)
        place.configure(plain)
        process.send_signal(signal.SIGHUP)
        wait_for(lambda: not watch_of(place), 30)
        wait_for(lambda: not is_alive(helper), 30)
        place.configure(watched("pets", place.root / "pets"))
        process.send_signal(signal.SIGHUP)
        wait_for(lambda: watch_of(place).get("by") == "inotify", 30)
        (helper,) = helpers(process.pid)
    wait_for(lambda: not is_alive(helper), 5)


def test_a_watcher_that_is_killed_is_started_again_and_misses_nothing(place: Place) -> None:
    with place.service() as process:
        assert place.json("prefetch", "pets")["staged"] == IMAGES
        wait_for(lambda: watch_of(place).get("by") == "inotify")
        (helper,) = helpers(process.pid)
        os.kill(helper, signal.SIGKILL)
        wait_for(lambda: "watcher died" in place.log())
        (place.root / "pets" / "class000" / "new.jpg").write_bytes(jpeg(3))
        wait_for(lambda: "class000/new.jpg" in keys_of(place), 30)
        assert helpers(process.pid) != [helper]


def helpers(service: int) -> list[int]:
    """The watchers of a service."""
    told = subprocess.run(
        ["ps", "-o", "pid=,args=", "--ppid", str(service)], capture_output=True, text=True, check=True
    )
    return [int(line.split()[0]) for line in told.stdout.splitlines() if "stager.watch.helper" in line]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] != "Z"
    except FileNotFoundError:
        return False


def test_a_bucket_is_looked_at_at_its_interval(tmp_path: Path, s3: S3Server) -> None:
    prefix, client = f"watch-{os.getpid()}", s3.client()

    def put(name: str, seed: int) -> None:
        client.put_object(Bucket=s3.bucket, Key=f"{prefix}/cats/{name}.jpg", Body=jpeg(seed))

    for number in range(30):
        put(str(number), number)
    source = f"s3://{s3.bucket}/{prefix}"
    place = Place(tmp_path).configure(
        watched("pets", source, 'watch_every = "2s"', endpoint_url=s3.endpoint_url)
    )
    with place.service():
        assert place.json("prefetch", "pets")["staged"] == 30
        before, reads = staged(place, "pets"), origin_reads(place)
        assert (watch_of(place)["by"], watch_of(place)["every_s"]) == ("listing", 2.0)
        put("3", 333)
        put("new", 334)
        client.delete_object(Bucket=s3.bucket, Key=f"{prefix}/cats/5.jpg")
        now = {"cats/new.jpg"} | before.keys() - {"cats/5.jpg"}
        wait_for(lambda: keys_of(place) == now, 30)
        wait_for(lambda: origin_reads(place) == reads + 1, 30)
        wait_for(lambda: staged(place, "pets").keys() == before.keys() - {"cats/5.jpg"})


def test_a_table_that_is_watched_gets_its_new_rows(tmp_path: Path) -> None:
    image_folder(tmp_path / "pets", 1, 40)
    rows = [f"class000/{number:03d}.jpg,{'ab'[number % 2]}" for number in range(40)]
    csv = tmp_path / "pets" / "rows.csv"
    csv.write_text("\n".join(["file,kind", *rows[:39]]) + "\n")
    config = watched("pets", tmp_path / "pets").replace(CROP_LINE, CROP_LINE + '\npath = "{file}"')
    config = config.replace(
        "watch = true", 'watch = true\nlayout = "table"\ntable = "rows.csv"\nlabel = "kind"'
    )
    place = Place(tmp_path).configure(config)
    with place.service():
        assert place.json("prefetch", "pets")["staged"] == 39
        wait_for(lambda: watch_of(place).get("by") == "inotify" and at_rest(place))
        with csv.open("a") as file:
            file.write(rows[39] + "\n")
        wait_for(lambda: len(keys_of(place)) == 40, 30)


CROP_LINE = "crop = 32"


def test_nothing_is_left_of_looks_that_find_nothing(served: Place) -> None:
    taken = looks(served)
    (served.root / "pets" / "class000" / "note.txt").write_text("no sample")
    (served.root / "pets" / "class000" / ".hidden.jpg").write_bytes(jpeg(1))
    os.utime(served.root / "pets" / "class001")
    time.sleep(3)
    assert looks(served) == taken
    assert served.leftovers() == []
    assert [job["state"] for job in served.json("status")["jobs"]] == ["done"]  # the person's own
    shutil.rmtree(served.root / "pets" / "class000")
    wait_for(lambda: watch_of(served)["state"] == "frozen", 30)
