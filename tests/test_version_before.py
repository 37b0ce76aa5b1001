"""A cache of the version before, states of its loaders, its clients: all go on, and nothing is staged anew.

golden/cache-v2.tar.gz was made by commit 1e95bbd (catalog 3, index and record 2), with its source beside it:
`crop = 64` as LMDB; `crop = 48`, class000 as Arrow, class001 as LMDB, and two of class002 for a reader that
waited for them; then, with that reader still open, one object removed, one changed, one added, and all
prefetched; class002 evicted and four of its samples staged again; class000 pinned; a second data set with
class000 and class001 as JPEG. One object is a text. told.json has what its commands told, the requests of its
clients with their answers, and states of its loaders with what came after them.
"""

import hashlib
import json
import os
import sqlite3
import tarfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image

from running import Place
from sets import ask_catalog, ended, manifest_at, origin_reads, shard_files, staged, table
from stager.cache.cache import Cache
from stager.config import load_config
from stager.errors import NoService, SampleError, StagerError
from stager.reader.encodings import decode
from stager.reader.record import DatasetRecord
from stager.reader.service import Service
from stager.reader.values import Field
from stager.recipes.image.recipe import centre, cut, encode_jpeg
from stager_client.augment import HorizontalFlip, RandomCrop
from stager_client.numpy import StagedArrays
from stager_client.torch import StagedDataset, StagedLoader

KEPT = Path(__file__).with_name("golden") / "cache-v2.tar.gz"
SOURCE = "/tmp/stager-kept-v2/pictures"  # where it was
WHOLE = ["class000", "class001"]  # all of these is resident, but the text
CROP, JPEG = "resize = 0\ncrop = 48", 'resize = 0\nencode = "jpeg"'
OPTIONS: dict[str, dict[str, Any]] = {  # of the loaders whose states were kept
    "plain": {"shuffle": True, "seed": 7},
    "in_order": {"shuffle": False},
    "augmented": {"shuffle": True, "seed": 3, "augment": [RandomCrop(40), HorizontalFlip()]},
    "seeded": {"shuffle": True, "seed": 5, "classes": ["class000"]},
    "own_order": {"order": lambda epoch: [3, 1, 4, 1, 5, 9, 2, 6]},
}
RECORDED = ("SELECT * FROM jobs", "SELECT * FROM losses", "SELECT * FROM counts")
Pixels = npt.NDArray[np.uint8]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    with tarfile.open(KEPT) as archive:
        archive.extractall(tmp_path, filter="data")
    place = configured(Place(tmp_path), tmp_path / "pictures")
    monkeypatch.setenv("STAGER_CONFIG", str(place.config))
    return place


def configured(place: Place, source: Path | str, more: str = "") -> Place:
    tables = [table("kept", source, f"{CROP}\n{more}"), table("photos", source, f"{JPEG}\n{more}")]
    return place.configure("".join(tables))


def told_by(place: Place) -> Any:
    return json.loads((place.root / "told.json").read_text())


def source_of(place: Place, key: str) -> Pixels:
    with Image.open(place.root / "pictures" / key) as image:
        return np.asarray(image)


def cropped(pixels: Pixels) -> Pixels:
    height, width, _ = pixels.shape
    return cut(pixels, centre(height, width, 48))


def as_jpeg(pixels: Pixels) -> Pixels:
    return decode(Field("image", "uint8", (None, None, 3), "jpeg"), encode_jpeg(pixels, 90))


def wrong_in(place: Place, data: StagedDataset, made: Any = cropped) -> list[str]:
    """The keys of samples that are not the source's, prepared, with channels first."""
    keys = [data.samples.key(position) for position in range(len(data))]
    images = [image for image, _ in data.__getitems__(range(len(data)))]
    right = [torch.from_numpy(made(source_of(place, key))).permute(2, 0, 1) for key in keys]
    return [key for key, image, want in zip(keys, images, right, strict=True) if not torch.equal(image, want)]


def test_a_client_reads_all_that_was_resident_with_no_service_at_all(place: Place) -> None:
    whole = StagedDataset("kept", classes=WHOLE, skip_failed=True)
    part = StagedDataset("kept", classes=["class002"], per_class=4)
    photos = StagedDataset("photos", classes=WHOLE, skip_failed=True)
    assert [len(whole), len(part), len(photos)] == [13, 4, 13]
    assert wrong_in(place, whole) + wrong_in(place, part) == []
    assert wrong_in(place, photos, as_jpeg) == []
    batches = [images for images, _ in StagedLoader(whole, 5, shuffle=False)]
    assert [tuple(images.shape) for images in batches] == [(5, 3, 48, 48), (5, 3, 48, 48), (3, 3, 48, 48)]
    assert all(images.is_contiguous(memory_format=torch.channels_last) for images in batches)
    assert torch.equal(torch.cat(batches)[7], whole[7][0])
    (photo, _), *_ = StagedArrays("photos", 1, classes=["class000"], shuffle=False)
    assert np.array_equal(photo[0], as_jpeg(source_of(place, "class000/000.png")))


def test_the_first_start_finds_all_as_it_was(place: Place) -> None:
    told = told_by(place)
    shards = {path: path.read_bytes() for name in ("kept", "photos") for path in shard_files(place, name)}
    before = [ask_catalog(place, query) for query in RECORDED]
    reads = origin_reads(place)
    rows = place.json("ls")
    assert [row | known for row, known in zip(rows, told["ls"], strict=True)] == rows
    assert [(row["resident"], row["pinned"]) for row in rows] == [(17, 0), (17, 7), (13, 0)]
    assert place.json("ls", "--failed", "kept") == [{**told["failures"][0], "reason": "unknown_format"}]
    verified = place.json("verify")
    assert (verified["shards"], verified["bad"], verified["problems"]) == (len(shards), [], [])
    assert {path: path.read_bytes() for path in shards} == shards
    after = [ask_catalog(place, query) for query in RECORDED]
    assert after == before
    assert origin_reads(place) == reads
    assert len(staged(place, "kept")) == 17


def test_a_service_says_why_a_sample_is_gone_that_was_evicted_before(place: Place) -> None:
    gone = {f"class002/{number:03d}.png" for number in range(6)} - set(staged(place, "kept"))
    with place.service():
        why = [place.json("why", "kept", key)["why"] for key in sorted(gone)]
        assert place.json("status")["datasets"][0]["resident"] == 17
    assert len(why) == 2
    assert ["evicted" in text for text in why] == [True, True], why


@pytest.mark.parametrize("more", ["", 'kind = "image"\nmax_pixels = 40_000_000', 'path = "{file_name}"'])
def test_a_prefetch_of_the_same_stages_nothing(place: Place, more: str) -> None:
    configured(place, place.root / "pictures", more)
    before = {name: DatasetRecord.read(place.cache / "datasets" / name) for name in ("kept", "photos")}
    for name, record in before.items():
        job = place.json("prefetch", name, "--classes", ",".join(WHOLE), code=3)
        assert (job["staged"], job["already"], job["failed"]) == (0, 13, 1)
        assert manifest_at(place, name).digest == record.manifest
    job = place.json("prefetch", "kept", "--classes", "class002,", "--per-class", "4")
    assert (job["staged"], job["already"]) == (0, 4)
    for name, record in before.items():
        after = DatasetRecord.read(place.cache / "datasets" / name)
        assert replace(after, spec=record.spec) == record


def test_what_a_config_asked_for_before_is_what_it_asks_for_now(place: Place) -> None:
    configured(place, SOURCE)
    config = load_config()
    cache = Cache(config)
    assert [cache.datasets[name].spec == config.dataset(name) for name in ("kept", "photos")] == [True, True]
    cache.close()


@pytest.mark.parametrize(
    ("url", "recipe", "name"),
    [
        (SOURCE, {}, "pictures-6680df"),
        (SOURCE, {"crop": 48}, "pictures-6680df-837bb0"),
        (SOURCE, {"resize": 64, "crop": 48, "encode": "jpeg"}, "pictures-6680df-23547f"),
        ("s3://bucket/a b/train/", {"crop": 48}, "train-57fdde-837bb0"),
    ],
)
def test_a_url_has_the_name_that_it_had(place: Place, url: str, recipe: dict[str, Any], name: str) -> None:
    spec = load_config().dataset_of_url(url, recipe, {})
    assert spec is not None
    assert spec.name == name


def test_a_reader_that_is_open_across_the_first_start_reads_on(place: Place) -> None:
    data = StagedDataset("kept", classes=WHOLE, skip_failed=True)
    batches = iter(StagedArrays("kept", 2, classes=WHOLE, skip_failed=True, shuffle=False))
    images = [next(batches)[0].copy()]
    with place.service():
        images += [batch.copy() for batch, _ in batches]
        assert wrong_in(place, data) == []
        place.json("prefetch", "kept", "--classes", ",".join(WHOLE), code=3)
        assert wrong_in(place, data) == []
    keys = [data.samples.key(position) for position in range(13)]
    right = np.stack([cropped(source_of(place, key)) for key in keys])
    assert np.array_equal(np.concatenate(images), right)


def test_a_catalog_that_is_lost_is_made_anew_from_the_shards_of_the_version_before(place: Place) -> None:
    (place.cache / "catalog.db").unlink()
    assert {row["name"]: row["resident"] for row in place.json("ls")} == {"kept": 17, "photos": 13}
    assert place.json("verify")["problems"] == []


@pytest.mark.parametrize("name", OPTIONS)
def test_a_state_of_a_loader_of_the_version_before_goes_on_where_it_was(place: Place, name: str) -> None:
    kept, options = told_by(place)["loaders"][name], {"classes": WHOLE, **OPTIONS[name]}
    data = StagedArrays("kept", 3, skip_failed=True, **options)
    data.load_state_dict(kept["state"])
    rest = [[hashlib.sha256(images.tobytes()).hexdigest()[:16], labels.tolist()] for images, labels in data]
    assert rest == kept["rest"]


def test_what_clients_of_the_version_before_ask_and_tell_is_answered_as_it_was(place: Place) -> None:
    requests = told_by(place)["requests"]
    kinds = {request["path"].rpartition("/")[2] for request in requests}
    assert kinds == {"hello", "want", "reports", "sessions"}
    with place.service():
        service = Service(place.socket)
        for request in requests:
            if not request["path"].endswith("/want"):
                assert service.post(request["path"], request["body"]) == request["answer"], request
        place.json("prefetch", "kept", "--classes", "class000,")  # from now on, the source is where it is
        (want,) = [request["body"] for request in requests if request["path"].endswith("/want")]
        answer = service.post("/datasets/kept/want", want)
    assert want["samples"] == [14, 17]
    assert answer["pending"] == []
    assert [(failed["sample"], failed["reason"]) for failed in answer["failed"]] == [(14, "changed")]


def test_a_command_of_the_version_before_has_its_own_source_staged(place: Place) -> None:
    (text,) = ask_catalog(place, "SELECT spec FROM datasets WHERE name = 'photos'")[0]
    spec = json.loads(text.replace(SOURCE, f"{place.root}/pictures"))
    assert spec.keys() == {"name", "source", "layout", "recipe"}
    body = {"spec": {**spec, "name": "other"}, "subset": {"classes": ["class000"]}, "format": "auto"}
    with place.service():
        service = Service(place.socket)
        assert ended(service, service.post("/jobs", body)["id"])["staged"] == 7


@pytest.mark.parametrize(
    ("told", "kind", "reason"),
    [("not_an_image", SampleError, "unknown_format"), ("of_tomorrow", StagerError, None)],
)
def test_a_client_takes_the_reasons_of_a_service_of_another_version(
    place: Place, monkeypatch: pytest.MonkeyPatch, told: str, kind: type[StagerError], reason: str | None
) -> None:
    data = StagedDataset("kept", classes=["class002"])

    def post(self: Service, path: str, body: Any, *rest: Any) -> Any:
        if not path.endswith("/want"):
            raise NoService("none here")  # a report, also of other tests' readers
        failed = [{"sample": number, "reason": told, "detail": "a text"} for number in body["samples"]]
        return {"pending": [], "reasons": {}, "failed": failed}

    monkeypatch.setattr(Service, "post", post)
    with pytest.raises(StagerError, match=r"class002/.* of kept: a text") as caught:
        data.__getitems__(range(6))
    assert (type(caught.value), getattr(caught.value, "reason", None)) == (kind, reason)


def test_a_service_tells_a_waiting_client_of_the_version_before_no_reason_that_it_does_not_know(
    place: Place,
) -> None:
    path = place.root / "pictures/class002/005.png"
    about = path.stat()
    path.write_bytes(b"a text".ljust(about.st_size))
    os.utime(path, ns=(about.st_mtime_ns, about.st_mtime_ns))
    told: list[dict[str, Any]] = []
    post = Service.post

    def listening(self: Service, path: str, *asked: Any) -> Any:
        answer = post(self, path, *asked)
        told.extend(answer["failed"] if path.endswith("/want") else ())
        return answer

    with place.service(), pytest.MonkeyPatch.context() as patch:
        place.json("prefetch", "photos", "--classes", "class000,")  # from now on, the source is where it is
        data = StagedDataset("photos", classes=["class002"])
        patch.setattr(Service, "post", listening)
        with pytest.raises(SampleError) as caught:
            data[5]
    assert caught.value.reason == "unknown_format"
    assert [failed["reason"] for failed in told] == ["not_an_image"]


def test_a_job_that_the_version_before_left_undone_is_taken_up(place: Place) -> None:
    with closing(sqlite3.connect(place.cache / "catalog.db")) as old:
        number, text = old.execute("SELECT id, request FROM jobs ORDER BY id DESC LIMIT 1").fetchone()
        request = json.loads(text.replace(SOURCE, f"{place.root}/pictures"))
        assert "options" not in request["spec"]
        request["is_local"] = False
        values = json.dumps(request), number
        old.execute("UPDATE jobs SET state = 'queued', result = '{}', request = ? WHERE id = ?", values)
        old.commit()
    with place.service():
        job = ended(Service(place.socket), number)
        assert (job["staged"], job["already"], job["failed"]) == (0, 6, 1)
