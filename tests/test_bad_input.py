"""Whatever is wrong, a command says so in one line and a hint, has the right exit code, and loses nothing."""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from images import bad_images
from making import image_folder, jpeg
from running import Place
from s3server import S3Server
from sets import ask_catalog, complaint, origin_reads, staged, table, wait_for
from stager.reader.service import Service

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
        ("empty", 2, "no images there (left out: 1 image in no folder)"),
        ("nothing", 2, "nothing is there"),
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
    told = complaint(served.run("prefetch", "mount"), 2)
    assert "nothing is there" in told
    assert "if it is a mount, is it mounted?" in told
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
    bad["class000/two\nlines.jpg"] = (b"text", "unknown_format")
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
        assert "failed; to see why: stager ls --failed mixed" in again.stderr
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
        (["--classes", "4"], "4 classes were asked for, and there are 3\n  try: ask for 3 at most"),
        (["--where", "colour = red"], "there is no column 'colour'"),
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


def test_without_a_service_status_says_so_by_its_exit_code(keeps: Place) -> None:
    shown = keeps.run("status")
    assert (shown.returncode, shown.stderr) == (4, "")
    assert shown.stdout.startswith("service: not running")
