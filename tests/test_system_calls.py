"""System calls that kill, or fail, by strace: whatever a command or the service was about to write, what was
recorded is there at the next start, and nothing else.

STAGER_KILLS=500 kills at every call we know of; the suite does it at some.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from making import image_folder, jpeg
from running import Place
from sets import complaint, staged, table, wait_for
from stager.cache.cache import Cache
from stager.cache.verify import check_books, problem_of
from stager.config import load_config
from stager.errors import CacheError, NoService
from stager.reader.index import is_resident
from stager.reader.service import Service

KILLS = int(os.environ.get("STAGER_KILLS", "14"))

CALLS = ("mkdir", "rename", "unlink", "pwrite64", "fdatasync", "fsync", "ftruncate", "fallocate")
WORK = {  # what is being done when the kill comes: the command, and its part of the kills
    "prefetch": (["prefetch"], 0.6),
    "changed": (["prefetch"], 0.25),
    "evict": (["evict", "pets", "--classes", "class000,class001"], 0.15),
}


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A place where all is staged, in two shards. The tests work on copies."""
    place = Place(tmp_path_factory.mktemp("before"))
    image_folder(place.root / "source", 3, 4)
    place.configure(table("pets", place.root / "source"))
    place.json("prefetch", "--classes", "class000,class001")
    place.json("prefetch")
    return place


@pytest.mark.parametrize("work", WORK)
def test_a_kill_at_any_system_call_loses_nothing_that_was_recorded(
    work: str, tmp_path: Path, before: Place
) -> None:
    need_strace()
    command, part = WORK[work]
    source = tmp_path / "source"
    shutil.copytree(before.root / "source", source)
    place = Place(tmp_path).configure(table("pets", source))
    base = before.cache if work != "prefetch" else None
    safe = set(staged(before, "pets")) if base else set()  # what must be there after any kill
    if work == "changed":
        (source / "class000/000.jpg").write_bytes(jpeg(99))
        (source / "class000/001.jpg").unlink()
        (source / "class001/new.jpg").write_bytes(jpeg(98))
        safe -= {"class000/000.jpg", "class000/001.jpg"}
    if work == "evict":
        safe = {key for key in safe if key.startswith("class002/")}
    wanted = {str(path.relative_to(source)) for path in source.rglob("*.jpg")}
    points = choose(system_calls(place, base, command), max(2, round(KILLS * part)))
    for at, (call, count) in enumerate(points):
        print(f"killed at {call} {count}")
        fresh(place, base)
        assert strace(place, command, "-e", f"inject={call}:signal=KILL:when={count}") == -signal.SIGKILL
        kept = assert_the_start_is_clean(place)
        assert safe <= kept
        if at % 4 == 3:
            done = place.json("prefetch")
            assert (done["wanted"], done["failed"]) == (len(wanted), 0)
            assert done["already"] >= len(safe)
            assert set(staged(place, "pets")) == wanted == assert_the_start_is_clean(place)


def need_strace() -> None:
    if not shutil.which("strace"):
        assert not os.environ.get("CI"), "strace is not installed"
        pytest.skip("strace is not installed")


def fresh(place: Place, base: Path | None) -> None:
    shutil.rmtree(place.cache, ignore_errors=True)
    if base is not None:
        shutil.copytree(base, place.cache)


def strace(place: Place, command: list[str], *options: str) -> int:
    """Run a command's main thread, where the owner's loop is, under strace; return its exit code."""
    traced = ["strace", "-o", str(place.root / "trace"), *options, sys.executable, "-m", "stager", *command]
    done = subprocess.run(traced, env=place.env(), capture_output=True, text=True, timeout=120, check=False)
    (place.root / "stderr").write_text(done.stderr)
    return done.returncode


def system_calls(place: Place, base: Path | None, command: list[str]) -> list[tuple[str, int]]:
    """Each call that changes something, in order, with how many of its name came until then."""
    fresh(place, base)
    assert strace(place, command, "-e", f"trace={','.join(CALLS)}") == 0
    seen: Counter[str] = Counter()
    points = []
    for name in re.findall(r"(?m)^(\w+)\(", (place.root / "trace").read_text()):
        seen[name] += 1
        points.append((name, seen[name]))
    return points


def choose(points: list[tuple[str, int]], count: int) -> list[tuple[str, int]]:
    """So many of the points, from the first to the last; half of them are the commits that record shards."""
    commits = [point for point in points if point[0] == "fdatasync"][-6:-2]
    late = spread(commits, count // 2)
    return sorted({*spread(points, count - len(late)), *late}, key=points.index)


def spread(points: list[tuple[str, int]], count: int) -> list[tuple[str, int]]:
    places = np.linspace(0, len(points) - 1, min(count, len(points)))
    return [points[at] for at in places.astype(int)]


def assert_the_start_is_clean(place: Place) -> set[str]:
    """Open the cache as the next owner does: all that is recorded is whole, and there is nothing else."""
    cache = Cache(load_config(place.config))
    try:
        assert check_books(cache, set()) == []
        assert list(cache.scratch.iterdir()) == []
        for dataset in cache.datasets.values():
            for row in cache.catalog.shards(dataset.id):
                assert problem_of(dataset.path_of(row), row.dead_rows) == ""
            numbers = dataset.manifest.numbers[is_resident(dataset.index.words[dataset.manifest.numbers])]
            resident = {dataset.records.key(int(number)) for number in numbers}
            assert resident == set(staged(place, dataset.name))  # a reader sees the same
            return resident
        return set()
    finally:
        cache.close()


@pytest.mark.parametrize(
    ("call", "error", "when"),
    [
        ("pwrite64", "ENOSPC", 0.1),
        ("pwrite64", "ENOSPC", 0.7),
        ("pwrite64", "ENOSPC", 0.78),
        ("fdatasync", "EIO", 0.8),
        ("fsync", "EIO", 0.0),
        ("rename", "EIO", 0.5),
        ("fallocate", "ENOSPC", 0.0),
    ],
)
def test_a_disk_that_fails_on_the_way_is_one_line_and_leaves_nothing(
    call: str, error: str, when: float, tmp_path: Path, calls: Counter[str], before: Place
) -> None:
    """From some call on, one kind of system call fails for good."""
    place = Place(tmp_path).configure(table("pets", before.root / "source"))
    count = 1 + int(calls[call] * when)
    code = strace(place, ["prefetch"], "-e", f"inject={call}:error={error}:when={count}+")
    told = (place.root / "stderr").read_text()
    assert "Traceback" not in told
    if code != 0:
        complaint(subprocess.CompletedProcess([], code, "", told), 1)
    kept = assert_the_start_is_clean(place)
    assert len(kept) == 12 or (code, len(kept)) == (1, 0)  # what was told as done is there


@pytest.fixture(scope="module")
def calls(before: Place, tmp_path_factory: pytest.TempPathFactory) -> Counter[str]:
    """How often a prefetch makes each system call."""
    need_strace()
    place = Place(tmp_path_factory.mktemp("calls")).configure(table("pets", before.root / "source"))
    return Counter(name for name, _ in system_calls(place, None, ["prefetch"]))


@pytest.mark.parametrize("commit", [1, 4, 6, 7])
def test_a_service_whose_catalog_cannot_be_written_says_so_and_stays_up(
    commit: int, tmp_path: Path, before: Place
) -> None:
    """From some commit on, the catalog's disk fails: at the job, the numbers, the counts, the shard."""
    need_strace()
    place = Place(tmp_path).configure(table("pets", before.root / "source"))
    shutil.copytree(before.cache, place.cache)
    cache = Cache(load_config(place.config))
    cache.departures.evict(cache.catalog.shards()[:1])
    cache.close()
    options = ["-f", "--seccomp-bpf", "-o", "/dev/null", "-e", "trace=fdatasync"]
    options += ["-e", f"inject=fdatasync:error=EIO:when={commit}+"]
    with (tmp_path / "service.log").open("w") as log:
        traced = subprocess.Popen(
            ["strace", *options, sys.executable, "-m", "stagerd"], env=place.env(), stderr=log, text=True
        )
    service = Service(place.socket)
    try:
        pid = wait_for(lambda: pid_of(service))
        assert "catalog.db" in error_of_a_job(service)
        assert service.get("/status")["service"]["pid"] == pid
        assert service.get("/problems") == []
        assert set(staged(place, "pets")) >= {f"class002/00{number}.jpg" for number in range(4)}
    finally:
        os.kill(pid, signal.SIGTERM)
        traced.wait(60)
    assert "Traceback" not in place.log()
    assert len(assert_the_start_is_clean(place)) in (4, 12)


def error_of_a_job(service: Service) -> str:
    """Ask for a prefetch, and return how it failed."""
    try:
        job = service.post("/jobs", {"dataset": "pets"})["id"]
    except CacheError as error:
        return error.message
    ended: dict[str, Any] = wait_for(lambda: _if_ended(service.get(f"/jobs/{job}")))
    return str(ended["error"]["message"]) if ended["error"] else ""


def pid_of(service: Service) -> int | None:
    try:
        return int(service.get("/status")["service"]["pid"])
    except NoService:
        return None


def _if_ended(job: dict[str, Any]) -> dict[str, Any] | None:
    return job if job["state"] in ("done", "failed", "cancelled") else None
