"""Tars end to end: a real service, a real S3 server, and what a training reads."""

import io
import json
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from running import Place
from s3server import S3Server
from sets import staged
from stager_client.torch import StagedDataset, StagedLoader
from tars import sample, shard, tar_of

ROOT = Path(__file__).resolve().parent.parent
TARS, EACH = 6, 40
CONFIG = """
[datasets.photos]
source = "{source}"
layout = "tar"
{access}
[datasets.photos.recipe]
crop = 32

[datasets.both]
source = "{source}"
layout = "tar"
label = "fold"
{access}
[datasets.both.recipe.photo]
kind = "image"
path = "jpg"
crop = 32
[datasets.both.recipe.told]
kind = "json"
path = "json"
"""


def pixels(number: int) -> np.ndarray:
    """The centre of a photo, by Pillow."""
    image = np.asarray(Image.open(io.BytesIO(sample(number)[0][1])))
    top, left = (image.shape[0] - 32) // 2, (image.shape[1] - 32) // 2
    return image[top : top + 32, left : left + 32]


def check(place: Place, numbers: list[int]) -> None:
    """All are staged, with the pixels of their tars."""
    found = {int(key[-6:]): array for key, array in staged(place, "photos").items()}
    assert sorted(found) == sorted(numbers)
    for number, array in found.items():
        np.testing.assert_array_equal(array, pixels(number))


def test_tars_on_s3_are_staged_in_few_reads_and_read_globally_shuffled(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for at in range(TARS):
        s3.client().put_object(Bucket=s3.bucket, Key=f"tars/{at:03}.tar", Body=shard(at * EACH, EACH))
    access = f'endpoint_url = "{s3.endpoint_url}"'
    place = Place(tmp_path).configure(CONFIG.format(source=f"s3://{s3.bucket}/tars", access=access))
    monkeypatch.setenv("STAGER_CONFIG", str(place.config))
    with place.service():
        done = place.json("prefetch", "photos")
        assert (done["staged"], done["failed"], done["classes"]) == (TARS * EACH, 0, ["0", "1", "2"])
        check(place, list(range(TARS * EACH)))
        reads = place.json("stats")["datasets"]["photos"]["origin_reads"]
        assert reads < TARS * EACH / 4, "members that lie together come in one read"

        data = StagedDataset("photos", where="fold != 1")
        seen = []
        columns = ["image", "number", "cls"]
        for fields, labels in StagedLoader(data, 16, shuffle=True, seed=1, columns=columns):
            for at, number in enumerate(fields["number"].tolist()):
                np.testing.assert_array_equal(fields["image"][at].permute(1, 2, 0), pixels(number))
                assert labels[at] == fields["cls"][at] == number % 3
                seen.append(number)
        assert sorted(seen) == [number for number in range(TARS * EACH) if number % 4 != 1]
        tars = np.asarray(seen) // EACH
        assert abs(np.corrcoef(np.arange(len(tars)), tars)[0, 1]) < 0.25, "tars come all mixed"
        assert all(len(set(tars[at : at + 20])) >= TARS - 2 for at in range(0, len(tars) - 20, 20))

        again = [*sample(7, extra=1), *sample(1000)]
        s3.client().put_object(Bucket=s3.bucket, Key="tars/000.tar", Body=tar_of(again))
        more = place.json("prefetch", "photos")
        assert (more["wanted"], more["staged"]) == ((TARS - 1) * EACH + 2, 2), "only of the tar that changed"


def test_fields_of_several_members_come_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = folder_of_tars(tmp_path)
    monkeypatch.setenv("STAGER_CONFIG", str(place.config))
    assert place.json("prefetch", "both")["staged"] == TARS * EACH
    data = StagedDataset("both")
    assert data.classes == ["0", "1", "2", "3"]
    for fields, labels in StagedLoader(data, 8, shuffle=True, seed=2):
        for at, told in enumerate(fields["told"]):
            said = json.loads(bytes(told.numpy()))
            assert said == {"fold": int(labels[at]), "number": int(fields["number"][at])}
            np.testing.assert_array_equal(fields["photo"][at].permute(1, 2, 0), pixels(said["number"]))


def test_a_cut_tar_fails_its_last_sample_alone_with_one_line(tmp_path: Path) -> None:
    place = folder_of_tars(tmp_path)
    whole = (tmp_path / "tars/002.tar").read_bytes()
    last = max(match.start() for match in re.finditer(rb"\d{6}\.jpg", whole))
    (tmp_path / "tars/002.tar").write_bytes(whole[: last + 800])
    done = place.run("prefetch", "photos")
    assert done.returncode == 3, done.stderr
    assert f"002.tar: byte {last + 800}: it ends within 000119.jpg" in done.stderr
    check(place, [number for number in range(TARS * EACH) if number != 119])
    (row,) = place.json("ls", "photos", "--failed")
    assert (row["key"], row["reason"]) == ("002.tar/000119", "truncated")


def test_links_and_names_that_lead_out_are_one_line_and_nothing_is_written_for_them(tmp_path: Path) -> None:
    place = folder_of_tars(tmp_path)
    links = {"000901.jpg": "/etc/passwd", "000902.jpg": "../000.tar"}
    strange = [("../../up.jpg", b"1"), (f"{tmp_path}/root.jpg", b"2"), *sample(900)]
    (tmp_path / "tars/006.tar").write_bytes(tar_of(strange, links))
    before = set(tmp_path.iterdir())
    done = place.run("prefetch", "photos")
    assert done.returncode == 0, done.stderr
    said = "left out: 4 members of tars that are no files, or whose names lead out of them"
    assert done.stderr.count(said) == 1
    check(place, [*range(TARS * EACH), 900])
    assert {path.name for path in set(tmp_path.iterdir()) - before} == {"cache"}
    assert not (tmp_path.parent / "up.jpg").exists()


def test_the_example_makes_tars_trains_on_them_and_learns(tmp_path: Path) -> None:
    def run(*arguments: str) -> str:
        return subprocess.run(
            [sys.executable, str(ROOT / "examples/train_tars.py"), *arguments],
            env=Place(tmp_path).env(), capture_output=True, text=True, timeout=120, check=True,
        ).stdout  # fmt: skip

    place = Place(tmp_path).configure(run("--make", str(tmp_path / "shapes")))
    with tarfile.open(tmp_path / "shapes/train-000.tar") as tar:
        assert len(tar.getnames()) == 750
    assert place.json("prefetch", "shapes", "--where", "fold != 3")["staged"] == 1504
    told = run("shapes", "--where", "fold != 3", "--epochs", "4").splitlines()
    assert float(told[-1].split()[2].rstrip("%")) > 80, told


def folder_of_tars(tmp_path: Path) -> Place:
    (tmp_path / "tars").mkdir()
    for at in range(TARS):
        (tmp_path / f"tars/{at:03}.tar").write_bytes(shard(at * EACH, EACH))
    return Place(tmp_path).configure(CONFIG.format(source=tmp_path / "tars", access=""))
