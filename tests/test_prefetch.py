"""`stager prefetch` and the verbs around it, as real commands on real sources, with and without a service."""

import io
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image, ImageOps

from countingproxy import CountingProxy, counting_proxy
from images import good_images, natural, oriented_jpeg, resize_as_pillow_13
from making import image_folder, jpeg
from running import Place
from s3server import S3Server
from sets import classes_of, complaint, flip_a_bit, shard_files, staged, table, wait_for
from stager.reader.service import Service

CLASSES, PER_CLASS = 8, 4
NAMES = [*(f"set{number}" for number in range(5)), "shapes"]  # a data set for each test that stages


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, bytes]]:
    root = tmp_path_factory.mktemp("folder")
    return root, image_folder(root, CLASSES, PER_CLASS)


@pytest.fixture(scope="module")
def served(
    tmp_path_factory: pytest.TempPathFactory, folder: tuple[Path, dict[str, bytes]]
) -> Iterator[Place]:
    """A place with a service; many data sets have the same source."""
    place = Place(tmp_path_factory.mktemp("served"))
    place.configure("".join(table(name, folder[0]) for name in NAMES))
    with place.service():
        yield place


@pytest.fixture(scope="module")
def bucket(s3: S3Server, folder: tuple[Path, dict[str, bytes]]) -> str:
    for key, data in folder[1].items():
        s3.client().put_object(Bucket=s3.bucket, Key=f"pets/{key}", Body=data)
    return f"s3://{s3.bucket}/pets"


@pytest.fixture
def proxy(s3: S3Server) -> Iterator[CountingProxy]:
    """Stands before the S3 server, and counts."""
    address = urlsplit(s3.endpoint_url)
    with counting_proxy((str(address.hostname), int(address.port or 0))) as running:
        yield running


def keys_of(objects: dict[str, bytes], classes: list[str]) -> set[str]:
    return {key for key in objects if key.split("/")[0] in classes}


def origin_reads(place: Place, name: str) -> int:
    stats = Service(place.socket).get("/stats") if place.socket.exists() else place.json("stats")
    return int(stats["datasets"][name]["origin_reads"])


# What is staged


@pytest.mark.parametrize(("source", "owner"), [("s3", "service"), ("s3", "alone"), ("directory", "alone")])
def test_the_drawn_classes_are_staged_once_and_more_classes_fetch_only_what_is_new(
    source: str,
    owner: str,
    tmp_path: Path,
    folder: tuple[Path, dict[str, bytes]],
    bucket: str,
    proxy: CountingProxy,
) -> None:
    root, objects = folder
    access = {"endpoint_url": proxy.endpoint_url} if source == "s3" else {}
    place = Place(tmp_path).configure(table("pets", bucket if source == "s3" else root, **access))
    with ExitStack() as stack:
        if owner == "service":
            stack.enter_context(place.service())
        first = place.json("prefetch", "--classes", "3", "--seed", "42")
        assert first == {
            "dataset": "pets", "classes": sorted(first["classes"]), "wanted": 12, "staged": 12, "already": 0,
            "failed": 0, "bytes": first["bytes"], "seconds": first["seconds"], "format": "arrow",
            "left_out": "",
            "evicted": [],
        }  # fmt: skip
        assert len(first["classes"]) == 3
        assert first["bytes"] >= 12 * 32 * 32 * 3
        assert set(staged(place, "pets")) == keys_of(objects, first["classes"])
        asked = {path.removeprefix("/data/pets/") for path in proxy.objects()}
        assert asked == (keys_of(objects, first["classes"]) if source == "s3" else set())

        proxy.requests.clear()
        again = place.json("prefetch", "--classes", "3", "--seed", "42")
        assert (again["classes"], again["wanted"]) == (first["classes"], 12)
        assert (again["staged"], again["already"], again["failed"], again["bytes"]) == (0, 12, 0, 0)
        assert proxy.objects() == []

        more = place.json("prefetch", "--classes", "6", "--seed", "42")
        assert (more["wanted"], more["staged"], more["already"]) == (24, 12, 12)
        assert set(first["classes"]) < set(more["classes"])
        assert set(staged(place, "pets")) == keys_of(objects, more["classes"])
        asked = {path.removeprefix("/data/pets/") for path in proxy.objects()}
        new = keys_of(objects, more["classes"]) - keys_of(objects, first["classes"])
        assert asked == (new if source == "s3" else set())
        assert len(proxy.objects()) == len(asked)
        assert origin_reads(place, "pets") == 24
    assert place.leftovers() == []


def test_a_plan_tells_the_price_and_stages_nothing(served: Place) -> None:
    plan = served.json("prefetch", "set0", "--classes", "5", "--plan")
    assert set(plan) == {"samples", "requests", "source_bytes", "staged_bytes", "seconds", "fits", "evicts"}
    assert (plan["samples"], plan["requests"], plan["fits"]) == (20, 20, True)
    assert plan["source_bytes"] > 0
    size = 20 * 32 * 32 * 3
    assert plan["staged_bytes"] == {"estimate": size, "low": size, "high": size}
    assert plan["seconds"]["low"] <= plan["seconds"]["estimate"] <= plan["seconds"]["high"]
    assert staged(served, "set0") == {}
    assert shard_files(served, "set0") == []


def test_the_reading_verbs_have_the_documented_json(served: Place) -> None:
    served.json("prefetch", "shapes")
    status = served.json("status")
    assert set(status) == {
        *("service", "budget", "limits", "hot", "hung"),
        *("datasets", "sessions", "jobs"),
    }
    assert {"up", "pid", "version", "uptime_s"} <= set(status["service"])
    assert status["service"]["up"] is True
    assert set(status["budget"]) == {"capacity_bytes", "used_bytes", "reserve_bytes", "free_bytes"}
    assert (status["budget"]["capacity_bytes"], status["budget"]["reserve_bytes"]) == (2 * 10**9, 10**6)
    (shapes,) = [row for row in status["datasets"] if row["name"] == "shapes"]
    count = CLASSES * PER_CLASS
    assert shapes == {
        "name": "shapes", "samples": count, "resident": count, "failed": 0, "format": "arrow",
        "bytes": shapes["bytes"], "watch": None,
    }  # fmt: skip
    assert shapes["bytes"] == sum(path.stat().st_size for path in shard_files(served, "shapes"))
    (job,) = [row for row in status["jobs"] if row["dataset"] == "shapes"]
    assert {"id", "dataset", "state", "done", "wanted", "rate", "eta_s"} <= set(job)
    assert (job["state"], job["done"], job["wanted"], job["eta_s"]) == ("done", count, count, None)

    stats = served.json("stats")
    assert set(stats) == {"datasets", "sessions"}
    assert stats["datasets"]["shapes"] == {
        "requests": 0, "hits": 0, "misses": 0, "hit_rate": 0.0, "wait_s": 0.0, "computed_s": 0.0,
        "reasons": {}, "origin_reads": count, "origin_bytes": stats["datasets"]["shapes"]["origin_bytes"],
    }  # fmt: skip
    (row,) = served.json("ls", "shapes")
    assert {"name", "samples", "resident", "bytes", "format", "failed", "pinned", "source"} <= set(row)
    assert served.json("ls", "shapes", "--failed") == []
    classes = served.json("ls", "shapes", "--classes")
    assert classes[0] == {"dataset": "shapes", "class": "class000", "samples": 4, "resident": 4}
    verified = served.json("verify")
    assert set(verified) == {"shards", "samples", "bytes", "bad", "problems", "repaired"}
    assert verified["samples"] >= count
    assert (verified["bad"], verified["problems"], verified["repaired"]) == ([], [], [])


def test_classes_can_be_named_and_a_saved_list_used_again(served: Place) -> None:
    named = served.json("prefetch", "set1", "--classes", "class005,class002")
    assert named["classes"] == ["class002", "class005"]
    assert classes_of(staged(served, "set1")) == {"class002", "class005"}
    told = served.run("prefetch", "set1", "--classes", "4", "--seed", "7").stdout
    saved = re.search(r"listed in (\S+)", told)
    assert saved is not None, told
    drawn = set(re.findall(r"class\d{3}", Path(saved[1]).read_text()))
    assert len(drawn) == 4
    again = served.json("prefetch", "set1", "--classes", f"@{saved[1]}")
    assert (set(again["classes"]), again["already"], again["staged"]) == (drawn, 16, 0)


def test_where_per_class_fraction_and_split_choose_samples(tmp_path: Path, served: Place) -> None:
    source = tmp_path / "splits"
    image_folder(source / "train", 2, 4)
    image_folder(source / "val", 2, 2)
    for key in ("train/class000/000.jpg", "train/class001/003.jpg"):
        (source / key).write_bytes(jpeg(1, 400, 300))
    large = ["--where", "size > 4KB and not key like '%/003.jpg'", "--split", "train"]
    crop = ["--crop", "32"]
    first = served.json("prefetch", str(source), *crop, *large)
    name = first["dataset"]
    assert set(staged(served, name)) == {"train/class000/000.jpg"}
    two = served.json("prefetch", str(source), *crop, "--split", "val", "--per-class", "1")
    assert two["wanted"] == 2
    half = served.json("prefetch", str(source), *crop, "--split", "train", "--fraction", "0.5")
    assert half["wanted"] == 4
    here = list(staged(served, name))
    assert sum(key.startswith("val/class000/") for key in here) == 1
    assert sum(key.startswith("val/class001/") for key in here) == 1
    assert half["staged"] + two["staged"] + 1 == len(here)


# On the way


def test_a_detached_job_goes_on_in_the_service_and_status_shows_it(served: Place) -> None:
    job = served.json("prefetch", "set2", "--detach")["job"]
    service = Service(served.socket)
    wait_for(lambda: service.get(f"/jobs/{job}")["state"] == "done")
    (row,) = [row for row in served.json("status")["jobs"] if row["id"] == job]
    assert (row["dataset"], row["state"], row["done"]) == ("set2", "done", CLASSES * PER_CLASS)
    assert len(staged(served, "set2")) == CLASSES * PER_CLASS


def test_to_detach_needs_a_service(tmp_path: Path, folder: tuple[Path, dict[str, bytes]]) -> None:
    place = Place(tmp_path).configure(table("pets", folder[0]))
    assert "--detach needs the service" in complaint(place.run("prefetch", "--detach"), 4)


@pytest.mark.parametrize("owner", ["service", "alone"])
def test_ctrl_c_keeps_what_is_staged_and_the_next_run_fetches_only_the_rest(
    owner: str, tmp_path: Path, s3: S3Server, proxy: CountingProxy
) -> None:
    prefix, count = f"large-{owner}", 150
    for number in range(count):
        s3.client().put_object(
            Bucket=s3.bucket, Key=f"{prefix}/c{number % 3}/{number}.jpg", Body=jpeg(number)
        )
    source = f"s3://{s3.bucket}/{prefix}"
    place = Place(tmp_path).configure(table("large", source, endpoint_url=proxy.endpoint_url))
    proxy.allow(50)  # the plan's 32 samples become the first shard; the next one is not complete
    with ExitStack() as stack:
        if owner == "service":
            stack.enter_context(place.service())
        command = place.start("prefetch")
        wait_for(lambda: len(proxy.objects()) > 50 and len(staged(place, "large")) == 32)
        command.send_signal(signal.SIGINT)
        _, told = command.communicate(timeout=60)
        assert command.returncode == 3, told
        assert "stopped: 32 samples were staged and stay" in told
        assert "Traceback" not in told
        if owner == "alone":
            assert place.leftovers() == []
        assert len(staged(place, "large")) == 32

        before = {f"/{s3.bucket}/{prefix}/{key}" for key in staged(place, "large")}
        proxy.requests.clear()
        proxy.allow(None)
        rest = place.json("prefetch")
        assert rest["wanted"] == rest["already"] + rest["staged"] == count
        assert rest["already"] >= 32
        assert before.isdisjoint(proxy.objects())
        assert len(staged(place, "large")) == count
    assert place.leftovers() == []


# What it becomes


def plain_pillow(data: bytes, resize: int, crop: int) -> Any:
    """The same recipe in a few lines that everyone knows."""
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
    width, height = image.size
    scale = (
        (resize, int(resize * height / width)) if width <= height else (int(resize * width / height), resize)
    )
    resized = resize_as_pillow_13(np.asarray(image), scale[1], scale[0])  # of another Pillow, pixels differ
    left, top = round((scale[0] - crop) / 2), round((scale[1] - crop) / 2)
    return resized[top : top + crop, left : left + crop].astype(int)


def test_both_formats_have_the_pixels_of_plain_pillow(tmp_path: Path) -> None:
    kinds = ("jpeg", "jpeg 4:4:4", "jpeg grey", "jpeg progressive", "png", "png grey", "gif", "bmp")
    known = good_images()
    objects = {f"kinds/{number}.jpg": known[kind] for number, kind in enumerate(kinds)}
    objects["turned/6.jpg"] = oriented_jpeg(6)
    for number in range(6):
        file = io.BytesIO()
        Image.fromarray(natural(90 + 37 * number, 310 - 41 * number, number)).save(file, "JPEG", quality=92)
        objects[f"photos/{number}.jpg"] = file.getvalue()
    for key, data in objects.items():
        path = tmp_path / "source" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    recipe = "resize = 56\ncrop = 48"
    tables = [table(name, tmp_path / "source", recipe) for name in ("arrow", "lmdb")]
    place = Place(tmp_path).configure("".join(tables))
    with place.service():
        for name in ("arrow", "lmdb"):
            done = place.json("prefetch", name, "--format", name)
            assert (done["staged"], done["failed"], done["format"]) == (len(objects), 0, name)
            assert [path.suffix for path in shard_files(place, name)] == [f".{name}"]
    for name in ("arrow", "lmdb"):
        found = staged(place, name)
        for key, data in objects.items():
            difference = np.abs(found[key].astype(int) - plain_pillow(data, 56, 48)).mean()
            assert difference < 0.05, (name, key, difference)


def test_only_what_changed_at_the_source_is_staged_anew(tmp_path: Path, served: Place) -> None:
    source = tmp_path / "changing"
    image_folder(source, 3, 4)
    first = served.json("prefetch", str(source), "--crop", "32")
    name = first["dataset"]
    before = staged(served, name)
    (source / "class001/002.jpg").write_bytes(jpeg(999))
    (source / "class000/001.jpg").unlink()
    (source / "class002/new.jpg").write_bytes(jpeg(998))
    second = served.json("prefetch", str(source), "--crop", "32")
    assert (second["wanted"], second["staged"], second["already"]) == (12, 2, 10)
    assert origin_reads(served, name) == 14
    after = staged(served, name)
    changed = {key for key in after if key not in before or not np.array_equal(before[key], after[key])}
    assert changed == {"class001/002.jpg", "class002/new.jpg"}
    assert set(before) - set(after) == {"class000/001.jpg"}
    assert Service(served.socket).get("/problems") == []


def test_the_same_url_with_another_recipe_is_a_data_set_apart(tmp_path: Path, served: Place) -> None:
    source = tmp_path / "photos"
    image_folder(source, 2, 2)
    name = served.json("prefetch", str(source))["dataset"]
    before = staged(served, name)
    other = served.json("prefetch", str(source), "--crop", "32")
    assert (other["staged"], other["dataset"] != name) == (4, True)
    after = staged(served, name)
    assert set(after) == set(before)
    assert all(np.array_equal(after[key], before[key]) for key in before)
    assert {pixels.shape for pixels in staged(served, other["dataset"]).values()} == {(32, 32, 3)}
    assert served.json("prefetch", str(source), "--crop", "32")["staged"] == 0


# What may go, and what is broken


def test_what_is_pinned_survives_an_eviction(served: Place) -> None:
    service = Service(served.socket)
    stage(service, {"dataset": "set3", "subset": {"classes": 2}})
    pinned = set(staged(served, "set3"))
    assert served.json("pin", "set3")["samples"] == len(pinned) == 8
    stage(service, {"dataset": "set3"})
    gone = served.json("evict", "set3")
    assert (gone["samples"], gone["pinned"]) == (24, 1)
    assert set(staged(served, "set3")) == pinned
    assert served.json("unpin", "set3")["samples"] == 8
    assert served.json("evict", "set3")["samples"] == 8
    assert staged(served, "set3") == {}
    assert shard_files(served, "set3") == []


def stage(service: Service, request: dict[str, Any]) -> None:
    job = service.post("/jobs", request)["id"]
    wait_for(lambda: service.get(f"/jobs/{job}")["state"] == "done")


@pytest.mark.parametrize(("shard_format", "owner"), [("arrow", "service"), ("lmdb", "alone")])
def test_verify_finds_a_flipped_bit_and_repair_heals_it(
    shard_format: str, owner: str, tmp_path: Path, folder: tuple[Path, dict[str, bytes]]
) -> None:
    place = Place(tmp_path).configure(table("pets", folder[0]))
    with ExitStack() as stack:
        if owner == "service":
            stack.enter_context(place.service())
        place.json("prefetch", "--classes", "2", "--format", shard_format)
        good = staged(place, "pets")
        place.json("pin", "pets")
        (path,) = shard_files(place, "pets")
        flip_a_bit(path)
        found = place.json("verify", code=1)
        assert [row["path"] for row in found["bad"]] == [str(path)]
        assert "checksum" in found["bad"][0]["problem"]
        repaired = place.json("verify", "--repair")
        assert [job["staged"] for job in repaired["repaired"]] == [8]
        assert [row["pinned"] for row in place.json("ls")] == [8]  # what was pinned is pinned again
        healed = staged(place, "pets")
        assert healed.keys() == good.keys()
        assert all(np.array_equal(healed[key], good[key]) for key in good)
    assert place.leftovers() == []


def test_people_get_the_classes_and_a_summary(served: Place) -> None:
    done = served.run("prefetch", "set4", "--classes", "7")
    assert done.returncode == 0
    assert "set4: 7 classes (class000" in done.stdout
    assert "28 staged, 0 already there, 0 failed, of 28" in done.stdout
    shown = served.run("ls").stdout
    assert re.search(r"set4 +32 +28 +0 ", shown), shown
