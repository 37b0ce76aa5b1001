"""A reader is open while others prefetch, evict, rescan, repair and kill: it sees the version it opened.

Every sample equals the source's bytes of that version, or an error says at once why it cannot be had: never
zeros, never a mixture, never a wait to the deadline where the answer is known.
"""

import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader  # noqa: E402

from running import Place  # noqa: E402
from sets import wait_for  # noqa: E402
from stager.errors import StagerError, WaitTimeout  # noqa: E402
from stager_client.numpy import StagedArrays  # noqa: E402
from stager_client.torch import StagedDataset, StagedLoader  # noqa: E402
from versions_kept import (  # noqa: E402
    CROP_A,
    CROP_B,
    SIDE_A,
    KeptSource,
    Version,
    cropped,
    image_of,
    number_of,
    what_is_wrong,
)

COUNT = 60
CHANGED = range(0, COUNT, 5)
ROW_BYTES = SIDE_A * SIDE_A * 3 + 512
WAIT_S = 20.0


@dataclass(slots=True)
class Seen:
    """What came of reading every sample of a reader."""

    wrong: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)  # waited to the deadline
    refused: dict[str, str] = field(default_factory=dict)  # by key, the error that said why
    right: set[str] = field(default_factory=set)


class World:
    """A service, the source of its data set `data`, and another data set that takes its room."""

    def __init__(self, root: Path, capacity: str) -> None:
        self.place = Place(root)
        self.capacity = capacity
        self.source, self.other = KeptSource(root / "source"), KeptSource(root / "other")
        for number in range(COUNT):
            self.source.put(number)
            self.other.put(number)
        self.configure(CROP_A)
        self.process = self.place.start_service()

    def configure(self, recipe: str) -> None:
        tables = self.source.table("data", recipe) + self.other.table("other")
        self.place.configure(tables, capacity=self.capacity, memory="1MB")

    def restart(self, recipe: str = CROP_A) -> None:
        self.process.kill()
        self.process.wait()
        self.configure(recipe)
        self.process = self.place.start_service()

    def prefetch(self, *options: str) -> None:
        done = self.place.run("prefetch", "data", *options)
        assert done.returncode == 0, done.stderr

    def change(self, numbers: Sequence[int] = CHANGED) -> None:
        for number in numbers:
            self.source.put(number)

    def evict_by_budget(self) -> None:
        """Let another training take the room of this one."""
        other = StagedDataset("other", timeout_s=60)
        loader = StagedLoader(other, 8, shuffle=True)
        for _ in range(3):
            for images, labels in loader:
                assert not any(
                    what_is_wrong(image.permute(1, 2, 0).numpy(), int(label), self.other.contents)
                    for image, label in zip(images, labels, strict=True)
                )
                time.sleep(0.02)  # a training computes
        (row,) = [row for row in self.place.json("ls") if row["name"] == "data"]
        assert row["resident"] < row["samples"], "nothing was evicted: this test would show nothing"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    yield from run_world(tmp_path, monkeypatch, "2GB")


@pytest.fixture
def tight_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """There is room for one of the two data sets, and a little."""
    yield from run_world(tmp_path, monkeypatch, str((COUNT + 12) * ROW_BYTES + 65536 * 4))


def run_world(root: Path, monkeypatch: pytest.MonkeyPatch, capacity: str) -> Iterator[World]:
    world = World(root, capacity)
    monkeypatch.setenv("STAGER_CONFIG", str(world.place.config))
    try:
        yield world
    finally:
        world.process.send_signal(signal.SIGTERM)
        world.process.wait(30)


def opened(count: int = COUNT) -> StagedDataset:
    """A reader that has read every sample once, and so has each shard open."""
    data = StagedDataset("data", timeout_s=WAIT_S)
    assert len(data) == count
    data.__getitems__(range(count))
    return data


def read_one_by_one(data: StagedDataset, version: Version) -> Seen:
    seen = Seen()
    for position in range(len(data)):
        key = data.samples.key(position)
        try:
            ((image, label),) = data.__getitems__([position])
        except WaitTimeout as error:
            seen.late.append(f"{key}: {error}")
            break  # one is enough to know, and each takes its time
        except StagerError as error:
            seen.refused[key] = str(error)
            continue
        note(seen, image.permute(1, 2, 0).numpy(), label, version, key)
    return seen


def read_batches(data: StagedDataset, version: Version) -> Seen:
    """Up to the first error, which ends an epoch."""
    seen = Seen()
    try:
        for images, labels in StagedLoader(data, 4):
            for image, label in zip(images.permute(0, 2, 3, 1).numpy(), labels.tolist(), strict=True):
                note(seen, image, label, version)
    except WaitTimeout as error:
        seen.late.append(str(error))
    except StagerError as error:
        seen.refused["a batch"] = str(error)
    return seen


def note(seen: Seen, image: Any, label: int, version: Version, key: str = "") -> None:
    wrong = what_is_wrong(image, label, version)
    if wrong:
        seen.wrong.append(f"{key}: {wrong}" if key else wrong)
    else:
        seen.right.add(key)


def assert_as_opened(data: StagedDataset, version: Version, changed: Sequence[int] = ()) -> None:
    """Both ways to read: what has not changed at the source is there; what has is right, or refused."""
    for seen in (read_one_by_one(data, version), read_batches(data, version)):
        assert not seen.wrong, f"{len(seen.wrong)} of {len(data)} samples are wrong: {seen.wrong[:3]}"
        assert not seen.late, f"waited to the deadline: {seen.late}"
        lost = {key: why for key, why in seen.refused.items() if key != "a batch"}
        assert {number_of(key) for key in lost} <= set(changed), f"refused though unchanged: {lost}"
        assert not seen.refused or changed, seen.refused


def test_objects_that_change_under_an_open_reader_are_as_it_opened_them_or_refused(world: World) -> None:
    world.prefetch()
    data, version = opened(), world.source.version()
    world.change()
    world.prefetch()
    assert_as_opened(data, version, CHANGED)


def test_an_object_that_is_added_leaves_an_open_reader_right_when_room_is_made(tight_world: World) -> None:
    data, version = opened(), tight_world.source.version()  # staged because it was read, so it may go
    tight_world.source.put(COUNT)
    tight_world.prefetch("--where", "key = 'c0/00060.png'")
    tight_world.evict_by_budget()
    assert_as_opened(data, version)


def test_a_service_that_is_killed_at_its_first_punch_leaves_open_readers_right(world: World) -> None:
    world.prefetch()
    world.change()
    calls = traced_prefetch(world)
    world.prefetch()
    data, version = opened(), world.source.version()
    changed = range(1, COUNT, 5)  # of shards that also hold others: those are punched, and not unlinked
    world.change(changed)
    kill = f"inject=fallocate:signal=KILL:when={calls_to_the_first_punch(calls)}"
    print(f"the service was killed at: {traced_prefetch(world, kill)[-2:] or 'nothing: it never punched'}")
    world.restart()  # where nothing was punched, it is killed all the same
    world.prefetch()
    assert_as_opened(data, version, changed)


def traced_prefetch(world: World, inject: str = "") -> list[str]:
    """Prefetch to its end, or the service's; return what strace saw the service's threads allocate and punch.

    A thread has a count of its own, and workers, which allocate too, are not traced.
    """
    pid, log = world.process.pid, world.place.root / "strace.log"
    threads = [path.name for path in Path(f"/proc/{pid}/task").iterdir()]
    options = ["-o", str(log), "-e", "trace=fallocate", *(("-e", inject) if inject else ())]
    targets = [word for thread in threads for word in ("-p", thread)]
    tracer = subprocess.Popen(["strace", *options, *targets], stderr=subprocess.DEVNULL)
    try:
        traced = [Path(f"/proc/{pid}/task/{thread}/status") for thread in threads]
        wait_for(lambda: all(f"TracerPid:\t{tracer.pid}\n" in path.read_text() for path in traced))
        command = world.place.start("prefetch", "data")
        wait_for(lambda: world.process.poll() is not None or command.poll() is not None)
        command.kill()
        command.communicate()
    finally:
        tracer.terminate()
        tracer.wait()
    return [
        line for line in log.read_text().splitlines() if line.split()[0] in threads and "fallocate" in line
    ]


def calls_to_the_first_punch(lines: list[str]) -> int:
    """How often the thread that punches first calls until then; 1 if none punches."""
    punches = [number for number, line in enumerate(lines) if "PUNCH_HOLE" in line]
    if not punches:
        return 1
    thread = lines[punches[0]].split()[0]
    return sum(line.split()[0] == thread for line in lines[: punches[0] + 1])


def test_a_recipe_that_changes_and_comes_back_leaves_an_open_reader_right(world: World) -> None:
    world.prefetch()
    data, version = opened(), world.source.version()
    world.restart(CROP_B)
    world.prefetch()
    world.change()
    world.prefetch()
    world.restart(CROP_A)
    world.prefetch()
    assert_as_opened(data, version, CHANGED)


def test_a_manifest_that_comes_back_leaves_an_open_reader_right_when_room_is_made(
    tight_world: World,
) -> None:
    data, version = opened(), tight_world.source.version()
    tight_world.source.put(COUNT)
    tight_world.prefetch("--where", "key = 'c0/00060.png'")
    tight_world.source.remove(COUNT)
    tight_world.prefetch("--where", "key = 'c0/00000.png'")
    tight_world.evict_by_budget()
    assert_as_opened(data, version)


def test_a_repair_reaches_readers_that_opened_before_the_last_scan(world: World) -> None:
    world.prefetch()
    data, version = opened(), world.source.version()
    world.source.put(COUNT)
    world.prefetch()
    flip_in_the_cache(world, range(0, COUNT, 7))
    assert world.place.json("verify", "--repair")["bad"]
    assert_as_opened(data, version)


def flip_in_the_cache(world: World, numbers: Sequence[int]) -> None:
    """Flip one bit of each of these samples, wherever its pixels lie below the cache."""
    files = [path for path in world.place.cache.rglob("*") if path.is_file()]
    for number in numbers:
        pixels = cropped(image_of(number, world.source.contents[number]), SIDE_A).tobytes()
        places = [(path, at) for path in files if (at := path.read_bytes().find(pixels)) >= 0]
        assert places, number
        for path, at in places:
            with path.open("r+b") as file:
                file.seek(at + len(pixels) // 3)
                file.write(bytes([pixels[len(pixels) // 3] ^ 16]))


@pytest.mark.parametrize("what", ["an object was added", "objects have changed"])
def test_workers_that_are_spawned_after_a_rescan_read_what_their_parent_opened(
    what: str, world: World
) -> None:
    world.prefetch()
    data, version = opened(), world.source.version()
    changed: Sequence[int] = CHANGED if what == "objects have changed" else ()
    if changed:
        world.change()
    else:
        world.source.put(COUNT)
    world.prefetch()
    kept = [position for position in range(COUNT) if number_of(data.samples.key(position)) not in changed]
    loader = DataLoader(
        torch.utils.data.Subset(data, kept), batch_size=6, num_workers=2, multiprocessing_context="spawn"
    )
    seen = Seen()
    for images, labels in loader:
        for image, label in zip(images, labels.tolist(), strict=True):
            note(seen, image.permute(1, 2, 0).numpy(), label, version, f"{len(seen.right)}")
    assert not seen.wrong
    assert len(seen.right) == len(kept)


def test_arrays_that_are_open_stay_on_their_version_over_many_scans(world: World) -> None:
    """The same as the first, for the way without a framework, over several epochs and scans."""
    world.prefetch()
    arrays, version = StagedArrays("data", 8, timeout_s=WAIT_S, shuffle=True), world.source.version()
    for epoch in range(4):
        try:
            for images, labels in arrays:
                for image, label in zip(images, labels.tolist(), strict=True):
                    assert not (wrong := what_is_wrong(image, label, version)), f"epoch {epoch}: {wrong}"
        except WaitTimeout:
            raise
        except StagerError:
            if not epoch:
                raise
        world.change(range(epoch, COUNT, 9))
        world.prefetch()


def test_a_miss_of_the_recipe_before_is_staged_by_that_recipe_after_a_restart(world: World) -> None:
    world.prefetch("--where", "key like 'c0/%'")
    data, version = StagedDataset("data", timeout_s=WAIT_S), world.source.version()
    world.restart(CROP_B)
    world.prefetch()
    assert_as_opened(data, version)
    assert len(StagedDataset("data", timeout_s=WAIT_S)[0][0][0]) != SIDE_A
