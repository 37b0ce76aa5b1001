"""A cache that cannot be used, is full, or is another's: one line, the right exit code, nothing lost."""

import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from making import image_folder
from mounts import remount, small_disk
from running import Place
from sets import complaint, origin_reads, shard_files, staged, table, wait_for
from stager.cache.budget import FILES_FLOOR
from stager.reader.service import Service


def test_what_cannot_fit_is_refused_before_anything_is_fetched(tmp_path: Path) -> None:
    image_folder(tmp_path / "source", 4, 4)
    tables = table("pets", tmp_path / "source", "crop = 64") + table("fits", tmp_path / "source")
    place = Place(tmp_path).configure(tables, capacity="2MB")
    assert place.json("prefetch", "fits")["staged"] == 16
    config = place.config.read_text()
    place.config.write_text(config.replace('"2MB"', '"100KB"'))
    told = complaint(place.run("prefetch", "pets"), 1)
    assert "196.6 kB needed" in told
    assert "of a capacity of 100.0 kB" in told
    assert "try: stager evict DATASET, fewer classes, or a larger [cache] capacity" in told
    assert origin_reads(place) == 16
    assert shard_files(place, "pets") == []
    assert len(staged(place, "fits")) == 16


def test_a_cache_path_that_is_a_file_or_somebody_elses_directory(tmp_path: Path) -> None:
    image_folder(tmp_path / "source", 1, 1)
    place = Place(tmp_path).configure(table("pets", tmp_path / "source"))
    place.cache.write_text("my thesis")
    assert f"{place.cache} cannot be used as a cache" in complaint(place.run("prefetch"), 1)
    assert place.cache.read_text() == "my thesis"
    place.cache.unlink()
    place.cache.mkdir()
    (place.cache / "thesis.tex").write_text("my thesis")
    assert "is not empty and not a stager cache (it has 'thesis.tex')" in complaint(place.run("prefetch"), 1)
    assert [path.name for path in place.cache.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_a_manifest_that_cannot_be_read_costs_its_data_set_and_no_other(damage: str, tmp_path: Path) -> None:
    image_folder(tmp_path / "source", 2, 2)
    tables = table("hurt", tmp_path / "source") + table("good", tmp_path / "source", "crop = 33")
    place = Place(tmp_path).configure(tables)
    with place.service():
        for name in ("hurt", "good"):
            Service(place.socket).post("/jobs", {"dataset": name})
        wait_for(lambda: len(staged(place, "hurt")) == len(staged(place, "good")) == 4)
    (manifest,) = (place.cache / "datasets/hurt").glob("manifest-*")
    manifest.write_bytes(manifest.read_bytes()[:500]) if damage == "cut" else manifest.unlink()
    again = place.json("prefetch", "hurt")
    assert (again["staged"], again["already"]) == (4, 0)
    assert len(staged(place, "hurt")) == len(staged(place, "good")) == 4
    assert place.json("verify")["problems"] == []


def test_a_cache_on_a_read_only_disk(tmp_path: Path) -> None:
    image_folder(tmp_path / "source", 2, 2)
    with small_disk(tmp_path / "disk", "size=16m") as disk:
        place = Place(tmp_path).configure(table("pets", tmp_path / "source"))
        place.config.write_text(place.config.read_text().replace(str(place.cache), str(disk / "cache")))
        assert place.json("prefetch", "--classes", "1")["staged"] == 2
        remount(disk, "ro")
        assert f"{disk / 'cache'} cannot be used as a cache: Read-only" in complaint(place.run("prefetch"), 1)
        remount(disk, "rw")
        again = place.json("prefetch")
        assert (again["already"], again["staged"]) == (2, 2)


def test_a_disk_that_is_full_refuses_what_is_new_and_keeps_what_is_there(tmp_path: Path) -> None:
    image_folder(tmp_path / "source", 4, 4)
    (tmp_path / "cache").mkdir()
    with small_disk(tmp_path / "cache", "size=8m") as disk:
        place = Place(tmp_path).configure(table("pets", tmp_path / "source"), reserve="0")
        with place.service():
            first = place.json("prefetch", "--classes", "2")
            before = staged(place, "pets")
            assert len(before) == first["staged"] == 8
            fill(disk)
            told = complaint(place.run("prefetch"), 1)
            assert str(disk) in told
            assert "\n  try: " in told
            assert staged(place, "pets").keys() == before.keys()
            (disk / "filler").unlink()
            again = place.json("prefetch")
            assert (again["already"], again["staged"]) == (8, 8)
            assert Service(place.socket).get("/problems") == []
        assert place.leftovers() == []


def fill(disk: Path) -> None:
    """Leave no byte free."""
    assert os.path.ismount(disk)
    with (disk / "filler").open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue


@pytest.mark.parametrize("owner", ["alone", "service"])
def test_a_disk_without_room_for_more_files_refuses_a_job_and_pauses_one(owner: str, tmp_path: Path) -> None:
    """Files cannot be reserved, as bytes can: some are left, and no more are made."""
    image_folder(tmp_path / "source", 3, 400)
    with small_disk(tmp_path / "disk", "size=64m,nr_inodes=200") as disk:
        pets = table("pets", tmp_path / "source", limit="400KB/s")  # there is time to use up files
        place = Place(tmp_path).configure(pets, reserve="0")
        place.config.write_text(place.config.read_text().replace(str(place.cache), str(disk / "cache")))
        place.json("prefetch", "--classes", "1", "--per-class", "1")
        shards = disk / "cache/datasets/pets/shards"
        before = set(shards.iterdir())
        few = f"{disk}/cache: the disk has room for fewer than {FILES_FLOOR} files more"
        process = place.start_service() if owner == "service" else None
        try:
            if process is not None:  # a command that starts needs files of its own
                with files_used_up(disk, FILES_FLOOR - 2):
                    assert few in complaint(place.run("prefetch"), 1)
            command = place.start("prefetch")
            assert command.stderr is not None
            told = command.stderr.readline()
            assert "1,199 samples to stage" in told  # it was not refused
            with files_used_up(disk, FILES_FLOOR - 2):
                while "paused" not in told:
                    line = command.stderr.readline()
                    assert line, told
                    told += line
                assert few in told
                if process is not None:
                    assert Service(place.socket).get("/status")["service"]["pid"] == process.pid
                assert before <= set(shards.iterdir())
            _, more = command.communicate(timeout=60)
            assert command.returncode == 0, told + more
            assert place.json("ls")[0]["resident"] == 1200
        finally:
            if process is not None:
                process.terminate()
                assert process.wait(30) == 0


@contextmanager
def files_used_up(disk: Path, left: int) -> Iterator[None]:
    """Somebody makes files until no more than so many can be made, and again as soon as there are more."""
    assert os.path.ismount(disk)
    (disk / "others").mkdir()
    may_stop = threading.Event()

    def use_up() -> None:
        number = 0
        while not may_stop.wait(0.002):
            while os.statvfs(disk).f_ffree > left:
                (disk / f"others/{number}").touch()
                number += 1

    thread = threading.Thread(target=use_up)
    thread.start()
    try:
        yield
    finally:
        may_stop.set()
        thread.join()
        shutil.rmtree(disk / "others")


def test_a_second_service_is_told_who_the_first_is(tmp_path: Path) -> None:
    image_folder(tmp_path / "source", 1, 2)
    place = Place(tmp_path).configure(table("pets", tmp_path / "source"))
    (tmp_path / "other").mkdir()
    other = Place(tmp_path / "other").configure(table("pets", tmp_path / "source"))
    with place.service() as first:
        service = Service(place.socket)
        service.post("/jobs", {"dataset": "pets"})
        wait_for(lambda: len(staged(place, "pets")) == 2)
        told = complaint(last_lines(place.run("serve")), 1)
        assert f"{place.cache} is in use by process {first.pid}" in told
        config = other.config.read_text()
        other.config.write_text(config.replace(str(other.socket), str(place.socket)))
        told = complaint(last_lines(other.run("serve")), 1)
        assert f"{place.socket} is in use by another service (process {first.pid})" in told
        told = complaint(other.run("prefetch"), 1)
        assert f"the service at {place.socket} keeps {place.cache}, the config says {other.cache}" in told
        other.config.write_text(config.replace(str(other.cache), str(place.cache)))
        told = complaint(other.run("prefetch"), 1)  # it asks where no service listens, and finds an owner
        assert f"{place.cache} is in use by process {first.pid}" in told
        assert service.get("/status")["service"]["pid"] == first.pid
        assert len(staged(place, "pets")) == 2


def last_lines(done: "subprocess.CompletedProcess[str]") -> Any:
    """A service logs; its last two lines are the error."""
    done.stderr = "\n".join(done.stderr.splitlines()[-2:])
    return done
