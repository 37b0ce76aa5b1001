"""StagedDataset as training uses it: in a DataLoader, with a service, without one, and when it comes back."""

import hashlib
import json
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

torch = pytest.importorskip("torch")

from countingproxy import counting_proxy  # noqa: E402
from making import image_folder  # noqa: E402
from running import Place  # noqa: E402
from sets import flip_a_bit, shard_files, staged, table, wait_for  # noqa: E402
from stager.errors import NoService, SampleError, WaitTimeout  # noqa: E402
from stager.reader.service import Service  # noqa: E402
from stager_client.torch import StagedDataset  # noqa: E402

CLASSES, PER_CLASS = 4, 6
COUNT = CLASSES * PER_CLASS
NAMES = ("pets", "fresh", "known", "rotten", "evicted", "rows")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A place with a service: `pets` is staged, the other data sets have the same source and are not."""
    place = Place(tmp_path_factory.mktemp("served"))
    image_folder(place.root / "source", CLASSES, PER_CLASS)
    image_folder(place.root / "spoiled", 2, 2)
    (place.root / "spoiled/class001/bad.jpg").write_bytes(b"no image")
    tables = [table(name, place.root / "source") for name in NAMES]
    tables.append(table("spoiled", place.root / "spoiled"))
    with place.configure("".join(tables)).service():
        stage(place, "pets")
        yield place


@pytest.fixture
def here(served: Place, monkeypatch: pytest.MonkeyPatch) -> Place:
    """The place, for clients in this process."""
    monkeypatch.setenv("STAGER_CONFIG", str(served.config))
    return served


def stage(place: Place, name: str, **subset: Any) -> dict[str, Any]:
    service = Service(place.socket)
    job = service.post("/jobs", {"dataset": name, "subset": subset})["id"]
    wait_for(lambda: service.get(f"/jobs/{job}")["state"] == "done")
    done: dict[str, Any] = service.get(f"/jobs/{job}")
    return done


def counts_of(place: Place, data: StagedDataset) -> list[dict[str, Any]]:
    """What the service has counted of this data set's session, epoch by epoch."""
    data.flush()
    sessions = Service(place.socket).get("/stats")["sessions"]
    found: list[dict[str, Any]] = [
        epoch
        for session in sessions
        if session["session"] == data.samples.session.id
        for epoch in session["epochs"]
    ]
    assert all(epoch["requests"] == epoch["hits"] + epoch["misses"] for epoch in found)
    assert all(epoch["misses"] == sum(epoch["reasons"].values()) for epoch in found)
    return found


def assert_reads_right(data: StagedDataset, right: dict[str, npt.NDArray[np.uint8]]) -> None:
    """All samples in one batch are as staged before."""
    assert len(data) == len(right)
    for position, (image, label) in enumerate(data.__getitems__(list(range(len(data))))):
        key = data.samples.key(position)
        assert data.classes[label] == key.split("/")[0]
        assert np.array_equal(image.permute(1, 2, 0).numpy(), right[key])


# In a training process

TRAINING = """
import hashlib, json, sys
from torch.utils.data import DataLoader
from stager_client.torch import StagedDataset

def read(name, method):
    data = StagedDataset(name)
    # Spawned workers take seconds to start; those that stay report at their end.
    loader = DataLoader(data, batch_size=5, shuffle=True, num_workers=2, multiprocessing_context=method,
                        persistent_workers=method == "spawn")
    epochs = []
    for _ in range(2):
        seen = []
        for images, labels in loader:
            digests = [hashlib.sha1(image.contiguous().numpy().tobytes()).hexdigest() for image in images]
            seen += zip(labels.tolist(), digests)
        epochs.append(seen)
    return {"session": data.samples.session.id, "epochs": epochs}

if __name__ == "__main__":
    told = {name: read(name, method) for name, method in (("fresh", "fork"), ("pets", "spawn"))}
    told["modules"] = sorted({name.split(".")[0] for name in sys.modules})
    print(json.dumps(told))
"""


def test_forked_and_spawned_workers_read_it_all_and_the_second_epoch_has_only_hits(
    served: Place, tmp_path: Path
) -> None:
    program = tmp_path / "train.py"
    program.write_text(TRAINING)
    done = subprocess.run(
        [sys.executable, "-W", "error", program],
        env=served.env(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    right = staged(served, "pets")
    expected = sorted(
        [int(key[5:8]), hashlib.sha1(pixels.transpose(2, 0, 1).tobytes()).hexdigest()]  # noqa: S324
        for key, pixels in right.items()
    )
    for name in ("fresh", "pets"):
        first, second = told[name]["epochs"]
        assert sorted(first) == sorted(second) == expected
        assert first != second  # it was shuffled

    stats = Service(served.socket).get("/stats")
    epochs = {session["session"]: session["epochs"] for session in stats["sessions"]}
    missed, hit = epochs[told["fresh"]["session"]]  # it had never been staged, nor scanned
    assert (missed["requests"], hit["requests"]) == (COUNT, COUNT)
    assert missed["hits"] + missed["misses"] == COUNT
    assert missed["misses"] == sum(missed["reasons"].values()) > 0
    assert missed["wait_s"] > 0
    assert (hit["hits"], hit["hit_rate"], hit["reasons"]) == (COUNT, 1.0, {})
    assert [epoch["hit_rate"] for epoch in epochs[told["pets"]["session"]]] == [1.0, 1.0]
    total = stats["datasets"]["fresh"]
    assert (total["requests"], total["origin_reads"]) == (2 * COUNT, COUNT)
    assert not {"boto3", "botocore", "pycurl", "PIL", "fastapi", "uvicorn", "typer"} & set(told["modules"])


# Hits


def test_a_hit_calls_nobody(here: Place, tmp_path: Path) -> None:
    with counting_proxy(here.socket, tmp_path / "proxy.sock") as proxy:
        data = StagedDataset("pets", service=str(tmp_path / "proxy.sock"))
        assert proxy.requests == ["GET /v1/datasets/pets", "POST /v1/datasets/pets/hello"]  # to open it
        right = staged(here, "pets")
        for _ in range(3):
            assert_reads_right(data, right)
            assert data[0][1] == 0
        data.flush()
        assert set(proxy.requests[2:]) == {"POST /v1/reports"}
    assert sum(epoch["hits"] for epoch in counts_of(here, data)) == 3 * (COUNT + 1)


def test_it_looks_like_an_image_folder(here: Place) -> None:
    data = StagedDataset(
        "pets", transform=lambda image: image.float() / 255, target_transform=lambda label: -label
    )
    assert len(data) == COUNT
    assert data.classes == ["class000", "class001", "class002", "class003"]
    assert data.class_to_idx == {"class000": 0, "class001": 1, "class002": 2, "class003": 3}
    assert data.targets == [label for label in range(CLASSES) for _ in range(PER_CLASS)]
    image, label = data[7]
    assert (image.dtype, image.shape, label) == (torch.float32, (3, 32, 32), -1)
    assert torch.equal(data[-1][0], data[COUNT - 1][0])
    for index in (COUNT, -COUNT - 1):
        with pytest.raises(IndexError):
            data[index]
    plain = StagedDataset("pets")
    assert plain[0][0].dtype == torch.uint8
    plain[0][0].zero_()  # a sample is the reader's own
    assert plain[0][0].any()


def test_a_subset_is_drawn_as_the_service_draws_it_and_its_labels_count_from_0(here: Place) -> None:
    job = stage(here, "pets", classes=2, seed=42, per_class=3)
    data = StagedDataset("pets", classes=2, seed=42, per_class=3)
    assert data.classes == job["classes"]
    assert data.targets == [0] * 3 + [1] * 3
    named = StagedDataset("pets", classes=["class003", "class001"])
    assert named.classes == ["class001", "class003"]
    assert {named.samples.key(position)[:8] for position in range(len(named))} == {"class001", "class003"}
    assert named[-1][1] == 1


def test_a_copy_reads_the_same_and_counts_for_the_same_session(here: Place) -> None:
    data = StagedDataset("pets", classes=3)
    data[0]
    copy = pickle.loads(pickle.dumps(data))  # noqa: S301
    assert (len(copy), copy.classes, copy.targets) == (len(data), data.classes, data.targets)
    assert torch.equal(copy[5][0], data[5][0])
    copy.flush()
    assert sum(epoch["requests"] for epoch in counts_of(here, data)) == 3


# Misses


def test_samples_that_are_missing_are_staged_and_waited_for(here: Place) -> None:
    right = staged(here, "pets")
    stage(here, "known", classes=2)
    data = StagedDataset("known")
    assert_reads_right(data, right)
    assert_reads_right(data, right)
    first, second = counts_of(here, data)
    assert (first["hits"], first["misses"], first["reasons"]) == (12, 12, {"not_planned": 12})
    assert (second["hits"], second["hit_rate"]) == (COUNT, 1.0)


def test_a_corrupted_shard_is_noticed_and_healed(here: Place) -> None:
    right = staged(here, "pets")
    stage(here, "rotten", classes=2)
    data = StagedDataset("rotten", classes=2)
    (path,) = shard_files(here, "rotten")
    keys = flip_a_bit(path)
    assert_reads_right(data, {key: right[key] for key in keys})
    assert not path.exists()
    (counts,) = counts_of(here, data)
    assert (counts["misses"], counts["reasons"]) == (1, {"corrupt": 1})
    assert Service(here.socket).get("/problems") == []
    assert "shard dropped dataset=rotten" in here.log()


def test_what_is_evicted_under_a_reader_stays_readable_and_comes_back(here: Place) -> None:
    right = staged(here, "pets")
    stage(here, "evicted")
    data = StagedDataset("evicted")
    held = data.samples.read([3, 20])
    gone = Service(here.socket).post("/datasets/evicted/evict", {})
    assert gone["samples"] == COUNT
    assert shard_files(here, "evicted") == []
    for position, arrays in zip((3, 20), held, strict=True):
        assert np.array_equal(arrays["image"], right[data.samples.key(position)])
    assert_reads_right(data, right)
    (first, _) = counts_of(here, data)
    assert first["reasons"] == {"evicted": first["misses"]}


def test_a_sample_that_cannot_be_had_raises_or_is_left_out(here: Place) -> None:
    stage(here, "spoiled")
    data = StagedDataset("spoiled")
    assert len(data) == 5
    with pytest.raises(SampleError, match=r"class001/bad\.jpg could not be staged"):
        data[4]
    assert data[0][1] == 0
    rest = StagedDataset("spoiled", skip_failed=True)
    assert (len(rest), rest.targets) == (4, [0, 0, 1, 1])
    assert len(rest.__getitems__([0, 1, 2, 3])) == 4


# The service is away


@pytest.fixture
def lonely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A place without a service, where a command has staged one of two classes."""
    image_folder(tmp_path / "source", 2, 3)
    place = Place(tmp_path).configure(table("pets", tmp_path / "source"))
    monkeypatch.setenv("STAGER_CONFIG", str(place.config))
    assert place.json("prefetch", "--classes", "class000")["staged"] == 3
    return place


def test_without_a_service_what_is_resident_is_read_and_a_wait_has_an_end(lonely: Place) -> None:
    data = StagedDataset("pets", timeout_s=0.5)
    assert [data[position][1] for position in range(3)] == [0, 0, 0]
    with pytest.raises(WaitTimeout) as caught:
        data.__getitems__([0, 4, 5])
    assert "2 samples of pets (first: class001/001.jpg) are not staged" in caught.value.message
    assert str(lonely.socket) in caught.value.message
    with pytest.raises(NoService, match=str(lonely.socket)):
        StagedDataset("never-staged")


def test_a_restart_of_the_service_is_only_a_pause(lonely: Place) -> None:
    process = lonely.start_service()
    data = StagedDataset("pets")
    assert data[3][1] == 1  # staged for it
    process.terminate()
    assert process.wait(30) == 0
    assert data[3][1] == 1
    data.flush()  # nobody hears it; the counts are sent again
    labels: list[int] = []
    reader = threading.Thread(target=lambda: labels.append(data[4][1]))
    reader.start()  # it waits for a service
    process = lonely.start_service()
    try:
        reader.join(60)
        assert labels == [1]
        counts = counts_of(lonely, data)
        assert sum(epoch["requests"] for epoch in counts) == 3
        assert sum(epoch["reasons"].get("service_down", 0) for epoch in counts) == 1
    finally:
        process.terminate()
        assert process.wait(30) == 0


def test_a_folder_that_was_prefetched_is_opened_by_its_path_too(here: Place) -> None:
    folder = str(here.root / "source")
    name = here.json("prefetch", folder)["dataset"]
    data = StagedDataset(folder)
    assert (data.samples.name, len(data)) == (name, COUNT)


def test_an_unused_data_set_of_the_config_is_scanned_for_the_first_reader(here: Place) -> None:
    data = StagedDataset("rows")
    assert (len(data), staged(here, "rows")) == (COUNT, {})
    assert data.targets == StagedDataset("pets").targets
    assert Service(here.socket).get("/stats")["datasets"]["rows"]["origin_reads"] == 0
