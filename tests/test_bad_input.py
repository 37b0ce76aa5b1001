"""Whatever is wrong, a command says so in one line and a hint, has the right exit code, and loses nothing."""

import json
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from images import bad_images
from making import image_folder, jpeg
from mounts import remount, small_disk
from running import Place
from s3server import S3Server
from sets import complaint, shard_files, staged, table, wait_for
from stager.control import Service

GOOD = 6  # samples of the data set that is staged before anything goes wrong


@pytest.fixture(scope="module")
def credentials(s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with two profiles, one of them right."""
    path = tmp_path_factory.mktemp("aws") / "credentials"
    keys = {"right": (s3.access_key, s3.secret_key), "stranger": ("nobody", "knows")}
    path.write_text(
        "".join(
            f"[{name}]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n"
            for name, (key, secret) in keys.items()
        )
    )
    return path


def aws(credentials: Path) -> dict[str, str]:
    """The environment of someone who has only that file."""
    return {
        "AWS_SHARED_CREDENTIALS_FILE": str(credentials),
        "AWS_ACCESS_KEY_ID": "",
        "AWS_SECRET_ACCESS_KEY": "",
    }


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A place with a data set that is staged, and no service."""
    root = tmp_path_factory.mktemp("home")
    image_folder(root / "good", 3, GOOD // 3)
    place = Place(root).configure(table("good", root / "good"))
    assert place.json("prefetch")["staged"] == GOOD
    return place


@pytest.fixture
def keeps(home: Place) -> Iterator[Place]:
    """The same place; what was staged in it must be there when the test is over."""
    before = staged(home, "good")
    assert len(before) == GOOD
    config = home.config.read_text()
    yield home
    home.config.write_text(config)
    after = staged(home, "good")
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[key], after[key]) for key in before)
    assert home.leftovers() == []


def ask_catalog(place: Place, query: str) -> list[Any]:
    """What the catalog has on record; a command would take a second to tell."""
    with closing(sqlite3.connect(place.cache / "catalog.db")) as catalog:
        return catalog.execute(query).fetchall()


def more(place: Place, tables: str) -> Place:
    """The same place with further tables in its config."""
    place.config.write_text(place.config.read_text() + tables)
    return place


# Sources

S3_TROUBLE: dict[str, tuple[str, dict[str, str | bool], str]] = {  # source, how to get in, what is said
    "wrong-bucket": ("s3://no-such-bucket/x", {"profile": "right"}, "no such bucket"),
    "no-credentials": ("s3://data/x", {}, "no credentials found"),
    "unknown-key": ("s3://data/x", {"profile": "stranger"}, "does not know this access key"),
    "no-permission": ("s3://data/x", {"anonymous": True}, "access denied"),
    "unreachable": ("s3://data/x", {"anonymous": True}, "cannot be reached"),
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, s3: S3Server, credentials: Path) -> Iterator[Place]:
    """A service whose config has a good data set, which is staged, and many that are not there."""
    place = Place(tmp_path_factory.mktemp("served"), aws(credentials))
    sources = place.root / "sources"
    image_folder(sources / "good", 3, GOOD // 3)
    image_folder(sources / "mount", 2, 2)
    (sources / "empty/class000").mkdir(parents=True)
    (sources / "empty/at-the-top.jpg").write_bytes(jpeg(1))
    names = ("good", "mount", "missing", "empty")
    tables = [table(name, sources / name) for name in names]
    with socket.socket() as taken:  # bound, but it does not listen
        taken.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{taken.getsockname()[1]}"
        for name, (source, access, _) in S3_TROUBLE.items():
            endpoint_url = nobody if name == "unreachable" else s3.endpoint_url
            tables.append(table(name, source, endpoint_url=endpoint_url, **access))
        nothing = f"s3://{s3.public_bucket}/nothing"
        tables.append(table("nothing", nothing, endpoint_url=s3.endpoint_url, anonymous=True))
        with place.configure("".join(tables)).service():
            for name in ("good", "mount"):
                Service(place.socket).post("/jobs", {"dataset": name})
            wait_for(lambda: len(staged(place, "good")) == GOOD and len(staged(place, "mount")) == 4)
            yield place
    assert len(staged(place, "good")) == GOOD
    assert place.leftovers() == []


@pytest.mark.parametrize("name", S3_TROUBLE)
def test_a_bucket_that_cannot_be_read(name: str, served: Place, s3: S3Server) -> None:
    source, _, said = S3_TROUBLE[name]
    told = complaint(served.run("prefetch", name), 1)
    assert told.startswith(f"stager: {source}")
    assert said in told
    assert "\n  try: " in told
    assert s3.secret_key not in told
    assert len(staged(served, "good")) == GOOD


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("missing", 1, "no such directory"),
        ("empty", 2, "no images there"),
        ("nothing", 2, "no images there"),
    ],
)
def test_a_source_that_is_no_data_set(name: str, code: int, said: str, served: Place) -> None:
    told = complaint(served.run("prefetch", name), code)
    assert f"/{name}: {said}\n  try: " in told
    assert len(staged(served, "good")) == GOOD


def test_a_source_that_turned_empty_loses_nothing_that_is_staged(served: Place) -> None:
    mount = served.root / "sources/mount"
    mount.rename(served.root / "away")
    mount.mkdir()  # what a directory looks like whose file system is not mounted
    assert "no images there" in complaint(served.run("prefetch", "mount"), 2)
    assert len(staged(served, "mount")) == 4
    mount.rmdir()
    (served.root / "away").rename(mount)
    assert served.json("prefetch", "mount")["already"] == 4


def run_without_the_rights_of_root(place: Place, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run `stager` so that permissions count, also for root: another user could not run our Python."""
    prefix = []
    if os.geteuid() == 0:
        if not shutil.which("setpriv"):
            pytest.skip("setpriv is not installed, and root may read everything")
        prefix = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
    return subprocess.run(
        [*prefix, sys.executable, "-m", "stager", *arguments],
        env=place.env(), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_a_folder_and_a_file_that_may_not_be_read(tmp_path: Path, keeps: Place) -> None:
    source = tmp_path / "source"
    image_folder(source, 2, 2)
    more(keeps, table("partly", source))
    (source / "class001").chmod(0)
    told = complaint(run_without_the_rights_of_root(keeps, "prefetch", "partly"), 1)
    assert told.startswith(f"stager: {source}/class001/: Permission denied\n  try: let user id")

    (source / "class001").chmod(0o700)
    (source / "class001/000.jpg").chmod(0)  # this one fails alone, and is tried again
    done = run_without_the_rights_of_root(keeps, "prefetch", "partly", "--json")
    assert done.returncode == 3
    assert (json.loads(done.stdout)["failed"], json.loads(done.stdout)["staged"]) == (1, 3)
    assert ask_catalog(keeps, "SELECT key, reason FROM failures") == [(b"class001/000.jpg", "forbidden")]
    (source / "class001/000.jpg").chmod(0o600)
    assert keeps.json("prefetch", "partly")["staged"] == 1
    assert ask_catalog(keeps, "SELECT key, reason FROM failures") == []


# Samples


@pytest.mark.parametrize("owner", ["service", "alone"])
def test_bad_images_fail_alone_are_listed_and_are_not_fetched_again(owner: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    good = image_folder(source, 2, 3)
    bad = {f"class001/{name.replace(' ', '_')}.jpg": found for name, found in bad_images().items()}
    bad["class000/two\nlines.jpg"] = (b"text", "not_an_image")
    bad["class000/caf\udce9 [1].jpg"] = (b"", "truncated")  # a name in Latin-1, as an old disk has them
    for key, (data, _) in bad.items():
        (source / key).write_bytes(data)
    place = Place(tmp_path).configure(table("mixed", source))
    process = place.start_service() if owner == "service" else None
    try:
        first = place.run("prefetch", "--json")
        assert first.returncode == 3, first.stderr
        assert "Traceback" not in first.stderr
        counts = json.loads(first.stdout)
        assert (counts["staged"], counts["failed"], counts["wanted"]) == (6, len(bad), 6 + len(bad))
        assert set(staged(place, "mixed")) == set(good)
        rows = place.json("ls", "mixed", "--failed")
        assert {row["key"]: row["reason"] for row in rows} == {key: why for key, (_, why) in bad.items()}
        assert all(row["detail"] for row in rows)

        reads = origin_reads(place)
        again = place.run("prefetch")
        assert again.returncode == 3
        assert "cannot be had: stager ls --failed mixed" in again.stderr
        assert "0 staged, 6 already there" in again.stdout
        assert origin_reads(place) == reads

        if owner == "service":
            shown = place.run("ls", "--failed")
            assert shown.returncode == 0, shown.stderr
            assert "class001/png_bomb.jpg" in shown.stdout
            for key in bad:
                (source / key).unlink()
            (source / "class001/text.jpg").write_bytes(jpeg(5))
            assert place.json("prefetch")["staged"] == 1  # a new version is a new chance
    finally:
        if process is not None:
            process.terminate()
            assert process.wait(30) == 0


def origin_reads(place: Place) -> int:
    """How often a source was read."""
    return int(ask_catalog(place, "SELECT sum(origin_reads) FROM datasets")[0][0])


def test_names_that_are_no_utf8_are_staged_listed_and_drawn(tmp_path: Path) -> None:
    source = tmp_path / "source"
    keys = ["caf\udce9/1.jpg", "caf\udce9/na\udcefve.jpg", "plain/1.jpg"]
    for at, key in enumerate(keys):
        (source / key).parent.mkdir(parents=True, exist_ok=True)
        (source / key).write_bytes(jpeg(at))
    place = Place(tmp_path).configure(table("odd", source))
    with place.service():
        done = place.run("prefetch")
        assert done.returncode == 0, done.stderr
        assert set(staged(place, "odd")) == set(keys)
        path = done.stdout.split("listed in ")[1].splitlines()[0]
        again = place.json("prefetch", "--classes", f"@{path}")
        assert (again["already"], again["classes"]) == (3, ["caf\udce9", "plain"])
        classes = Service(place.socket).get("/datasets/odd/classes")
        assert [row["class"] for row in classes] == ["caf\udce9", "plain"]


# What is asked for


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["prefech"], "No such command 'prefech'"),
        (["prefetch", "--clases", "3"], "No such option: --clases"),
        (["prefetch", "--format", "nonsense"], "--format 'nonsense'"),
        (["prefetch", "--fraction", "2"], "a fraction of 2.0 makes no sense"),
        (["prefetch", "goood"], "no data set 'goood'"),
        (["prefetch", "ftp://host/x"], "stager does not read ftp:// sources"),
        (["evict", "goood"], "nothing of 'goood' is staged here"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_command_that_makes_no_sense(arguments: list[str], said: str, keeps: Place) -> None:
    assert said in complaint(keeps.run(*arguments), 2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--classes", "clas001"], "no class 'clas001' in the source\n  try: did you mean 'class001'?"),
        (["--classes", "4"], "4 classes are wanted, there are 3\n  try: use --classes 3"),
        (["--where", "colour = red"], "'colour' is no column"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_subset_that_is_not_there(arguments: list[str], said: str, keeps: Place) -> None:
    assert said in complaint(keeps.run("prefetch", "good", *arguments), 2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[cache]\ncapcity = '1GB'\n", "unknown key cache.capcity\n  try: did you mean 'capacity'?"),
        ("[cache\n", "stager.toml"),
        (None, "there is no such file"),
    ],
    ids=range(3),
)  # fmt: skip
def test_a_config_that_cannot_be_used(text: str | None, said: str, tmp_path: Path) -> None:
    place = Place(tmp_path)
    if text is not None:
        place.config.write_bytes(text.encode(errors="surrogateescape"))
    told = complaint(place.run("status"), 2)
    assert str(place.config) in told
    assert said in told


# The cache


def test_what_cannot_fit_is_refused_before_anything_is_fetched(tmp_path: Path) -> None:
    image_folder(tmp_path / "source", 4, 4)
    tables = table("pets", tmp_path / "source", "crop = 64") + table("fits", tmp_path / "source")
    place = Place(tmp_path).configure(tables, capacity="2MB")
    assert place.json("prefetch", "fits")["staged"] == 16
    config = place.config.read_text()
    place.config.write_text(config.replace('"2MB"', '"100KB"'))
    told = complaint(place.run("prefetch", "pets"), 1)
    assert "196.6 kB are needed" in told
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


@pytest.mark.parametrize(("left", "owner"), [(1, "alone"), (4, "service")])
def test_a_disk_that_fills_up_on_the_way_stops_the_job_and_nothing_else(
    left: int, owner: str, tmp_path: Path
) -> None:
    """Files cannot be reserved, as bytes can: so many more are possible, then the kernel says no."""
    image_folder(tmp_path / "source", 3, 40)
    with small_disk(tmp_path / "disk", "size=64m,nr_inodes=200") as disk:
        place = Place(tmp_path).configure(table("pets", tmp_path / "source"), reserve="0")
        place.config.write_text(place.config.read_text().replace(str(place.cache), str(disk / "cache")))
        place.json("prefetch", "--classes", "1", "--per-class", "1")
        shards = disk / "cache/datasets/pets/shards"
        before = set(shards.iterdir())
        process = place.start_service() if owner == "service" else None
        try:
            files = use_up_files(disk, left)
            done = place.run("prefetch")
            told = complaint(done, done.returncode)
            assert done.returncode in (1, 3)
            assert str(disk) in told
            if process is not None:
                assert Service(place.socket).get("/status")["service"]["pid"] == process.pid
                assert Service(place.socket).get("/problems") == []
            assert before <= set(shards.iterdir())
            for path in files:
                path.unlink()
            again = place.json("prefetch")
            assert (again["wanted"], again["failed"]) == (120, 0)
        finally:
            if process is not None:
                process.terminate()
                assert process.wait(30) == 0


def use_up_files(disk: Path, left: int) -> list[Path]:
    """Make files until only so many more can be made."""
    assert os.path.ismount(disk)
    (disk / "others").mkdir()
    free = os.statvfs(disk).f_ffree
    files = [disk / f"others/{number}" for number in range(free - left)]
    for path in files:
        path.touch()
    assert os.statvfs(disk).f_ffree == left
    return files


# Services


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


def test_without_a_service_status_says_so_by_its_exit_code(keeps: Place) -> None:
    shown = keeps.run("status")
    assert (shown.returncode, shown.stderr) == (4, "")
    assert shown.stdout.startswith("service: not running")
