"""`stager prefetch` against an S3 server that fails: no wrong byte, nothing lost, and one fails alone."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import faultserver as fault
from faultserver import BUCKET, Fault, FaultServer
from making import jpeg
from running import Place
from sets import complaint, staged, table

SAMPLES = 32
ALWAYS = 999


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with fault.fault_server() as server:
        server.objects = {f"c{n // 8}/{n:03}.jpg": jpeg(n) for n in range(SAMPLES)}
        yield server


@pytest.fixture
def place(tmp_path: Path, server: FaultServer) -> Place:
    tables = table("data", f"s3://{BUCKET}", endpoint_url=server.endpoint_url, anonymous=True)
    return Place(tmp_path).configure(tables)


@pytest.mark.parametrize("broken", [fault.going_on_nowhere, fault.going_back])
def test_a_listing_that_contradicts_itself_drops_nothing_that_is_staged(
    server: FaultServer, place: Place, broken: Fault
) -> None:
    assert place.json("prefetch", "data")["staged"] == SAMPLES
    server.page_keys = 7
    server.fail("", *[broken] * ALWAYS)
    assert "the listing contradicts itself" in complaint(place.run("prefetch", "data"), 1)
    assert len(staged(place, "data")) == SAMPLES


def test_wrong_bytes_that_come_alike_each_time_are_never_staged(server: FaultServer, place: Place) -> None:
    assert place.json("prefetch", "data", "--classes", "c0")["staged"] == 8
    wrong = ["c1/008.jpg", "c1/009.jpg", "c2/016.jpg"]
    for key in wrong:
        server.fail(key, *[fault.damaged] * ALWAYS)
    told = place.json("prefetch", "data", code=3)
    assert (told["staged"], told["failed"]) == (SAMPLES - 8 - len(wrong), len(wrong))
    kept = staged(place, "data")
    assert kept.keys() == server.objects.keys() - set(wrong)
    failed = place.json("ls", "data", "--failed")
    assert {one["key"] for one in failed} == set(wrong)
    assert {one["reason"] for one in failed} == {"unreadable"}
    with fault.fault_server() as right:  # the same objects from a server without faults
        right.objects = server.objects
        tables = table("data", f"s3://{BUCKET}", endpoint_url=right.endpoint_url, anonymous=True)
        other = Place(place.root / "other")
        other.root.mkdir()
        other.configure(tables).json("prefetch", "data")
        truth = staged(other, "data")
    assert all(np.array_equal(kept[key], truth[key]) for key in kept)
