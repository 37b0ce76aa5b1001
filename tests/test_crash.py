"""Kill -9 of the service and of workers: the work goes on, and what was recorded is never fetched again.

STAGER_CRASHES=20 kills the service more often; STAGER_SEED chooses other moments.
"""

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest

from countingproxy import CountingProxy, counting_proxy
from making import image_folder, jpeg
from running import Place
from s3server import S3Server
from sets import ask_catalog, shard_files, staged, table, wait_for
from stager.reader.service import Service

CRASHES = int(os.environ.get("STAGER_CRASHES", "5"))
SEED = int(os.environ.get("STAGER_SEED", "1"))


@pytest.fixture
def proxy(s3: S3Server) -> Iterator[CountingProxy]:
    address = urlsplit(s3.endpoint_url)
    with counting_proxy((str(address.hostname), int(address.port or 0))) as running:
        yield running


def far(root: Path, s3: S3Server, proxy: CountingProxy, prefix: str, count: int) -> Place:
    """A place whose data set is in S3, behind the proxy."""
    keys = [f"{prefix}/c{number % 10}/{number:05d}.jpg" for number in range(count)]
    body = jpeg(1, 40, 36)

    def put(key: str) -> None:
        s3.client().put_object(Bucket=s3.public_bucket, Key=key, Body=body)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(put, keys))
    access: dict[str, str | bool] = {"endpoint_url": proxy.endpoint_url, "anonymous": True}
    return Place(root).configure(table("far", f"s3://{s3.public_bucket}/{prefix}", **access))


def wait_for_objects(proxy: CountingProxy, count: int) -> None:
    wait_for(lambda: len(proxy.objects()) >= count)


def unfinished_jobs(place: Place) -> int:
    return int(ask_catalog(place, "SELECT count(*) FROM jobs WHERE state = 'queued'")[0][0])


def recorded(place: Place) -> set[int]:
    """The samples that the catalog has."""
    blobs = ask_catalog(place, "SELECT samples FROM shards")
    return {int(number) for (blob,) in blobs for number in np.frombuffer(blob, "<u4")}


def assert_the_books_are_straight(place: Place, name: str, service: Service) -> None:
    verified = place.json("verify")
    assert (verified["bad"], verified["problems"]) == ([], [])
    assert place.leftovers() == []
    assert {Path(row["path"]) for row in service.get("/shards")} == set(shard_files(place, name))
    assert service.get(f"/datasets/{name}/failures") == []


def test_kills_of_the_service_during_one_prefetch_are_only_pauses(
    tmp_path: Path, s3: S3Server, proxy: CountingProxy
) -> None:
    print(f"STAGER_SEED={SEED}")
    moments = random.Random(SEED)
    count = 200 + 150 * CRASHES
    place = far(tmp_path, s3, proxy, "crash", count)
    service = Service(place.socket)
    process = place.start_service()
    proxy.slow_down(0.003)
    command = place.start("prefetch", "--json")
    wait_for(lambda: service.get("/status")["jobs"])
    kept: list[tuple[int, set[int]]] = []  # for each kill: requests that came before it, what was recorded
    for _ in range(CRASHES):
        seen, objects = len(proxy.objects()), moments.choice((0, 1, moments.randrange(200)))
        wait_for_objects(proxy, seen + objects)
        time.sleep(moments.uniform(0, 0.3))
        assert command.poll() is None, command.communicate()
        process.kill()
        process.wait()
        assert unfinished_jobs(place) == 1
        kept.append((len(proxy.requests), recorded(place)))
        assert len(kept[-1][1]) < count
        process = place.start_service()
    proxy.slow_down(0)
    out, err = command.communicate(timeout=120)
    assert command.returncode == 0, err
    result = json.loads(out)
    assert (result["wanted"], result["failed"]) == (count, 0)
    assert result["already"] + result["staged"] == count
    assert_the_books_are_straight(place, "far", service)
    keys = sorted(staged(place, "far"))
    assert len(keys) == count
    for before, numbers in kept:  # what was recorded is never fetched again
        fetched = {
            path.partition("/crash/")[2] for path in proxy.requests[before:] if "list-type" not in path
        }
        assert fetched.isdisjoint(keys[number] for number in numbers)
    process.terminate()
    assert process.wait(30) == 0


def workers_of(process: "subprocess.Popen[str]") -> list[int]:
    """The children of a process."""
    lists = Path(f"/proc/{process.pid}/task").glob("*/children")
    return [int(pid) for path in lists for pid in path.read_text().split()]


def test_a_killed_worker_is_replaced_and_no_sample_is_blamed(
    tmp_path: Path, s3: S3Server, proxy: CountingProxy
) -> None:
    place = far(tmp_path, s3, proxy, "worker", 120)
    with place.service() as process:
        proxy.allow(0)
        command = place.start("prefetch", "--json")
        for allowed in (20, 50):  # in the plan's shard, then in those that follow
            asked = len(proxy.objects())
            proxy.allow(allowed)
            wait_for_objects(proxy, asked + allowed + 1)
            for worker in workers_of(process):  # for readers, and for all else
                os.kill(worker, signal.SIGKILL)
        proxy.allow(None)
        out, err = command.communicate(timeout=120)
        assert command.returncode == 0, err
        assert json.loads(out)["staged"] == 120
        assert place.log().count("worker died") >= 2
        assert_the_books_are_straight(place, "far", Service(place.socket))
        assert len(staged(place, "far")) == 120


DECODER = '''
"""The real simplejpeg, except that some images end the process, as a bug in a decoder would."""
import importlib.machinery, importlib.util, os, sys

spec = importlib.machinery.PathFinder.find_spec("simplejpeg", [path for path in sys.path if path != {here!r}])
real = importlib.util.module_from_spec(spec)
sys.modules["simplejpeg"] = real
spec.loader.exec_module(real)
decode_jpeg_header = real.decode_jpeg_header

def checked(data, *arguments, **options):
    if b"DEADLY" in bytes(data):
        os.abort()  # as a crash does, it ends the process at once; a signal sent to it may take a moment
    return decode_jpeg_header(data, *arguments, **options)

real.decode_jpeg_header = checked
'''


def test_samples_that_kill_the_worker_fail_alone(tmp_path: Path) -> None:
    good = image_folder(tmp_path / "source", 3, 4)
    (tmp_path / "source/class001/deadly.jpg").write_bytes(jpeg(1) + b"DEADLY")
    (tmp_path / "decoder").mkdir()
    (tmp_path / "decoder/simplejpeg.py").write_text(DECODER.format(here=str(tmp_path / "decoder")))
    path = os.pathsep.join([str(tmp_path / "decoder"), os.environ.get("PYTHONPATH", "")])
    place = Place(tmp_path, {"PYTHONPATH": path}).configure(table("pets", tmp_path / "source"))
    done = place.json("prefetch", code=3)
    assert (done["staged"], done["failed"]) == (12, 1)
    (row,) = place.json("ls", "--failed")
    assert (row["key"], row["reason"]) == ("class001/deadly.jpg", "crashed")
    assert set(staged(place, "pets")) == set(good)
    again = place.json("prefetch", code=3)
    assert (again["already"], again["staged"], again["failed"]) == (12, 0, 1)
    assert place.leftovers() == []
