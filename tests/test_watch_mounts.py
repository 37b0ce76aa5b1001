"""Watched mounts: without events, hung, gone and back; and where the kernel has too few watches."""

import os
import queue
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

import pytest

from making import image_folder, jpeg
from mounts import hung_mount
from running import Place
from sets import origin_reads, staged, wait_for
from shown_mount import ShownMount, shown_mount
from stager.mounts import mounts
from stager.reader.service import Service
from stager.reader.values import SourceSpec
from stager.watch.helper.inotify import InotifyWatch, TooManyFolders, count_folders
from stager.watch.helper.rescan import LATELY_S, STATS_PER_S, Rescan
from stager.watch.helper.root import kinds_of
from stager.watch.hint import EVERYTHING, Hint
from stager.watch.messages import FromWatcher, Gone, Hinted, Watching, WatchPlace
from stager.watch.process import WatchProcess
from test_watch import keys_of, watch_of, watched

IMAGES = 40

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="to mount a file system, one must be root")


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[ShownMount]:
    image_folder(tmp_path / "far", 4, IMAGES // 4)
    with shown_mount(tmp_path / "pets", tmp_path / "far") as mount:
        yield mount


@pytest.fixture
def served(tmp_path: Path, mount: ShownMount) -> Iterator[Place]:
    place = Place(tmp_path).configure(watched("pets", mount.path, 'watch_every = "1s"'))
    with place.service():
        assert place.json("prefetch", "pets")["staged"] == IMAGES
        wait_for(lambda: watch_of(place).get("by") == "rescan")
        wait_for(lambda: watch_of(place)["state"] == "resting")
        yield place


def test_a_mount_that_sends_no_events_is_looked_through_so_many_stats_a_second(
    served: Place, mount: ShownMount
) -> None:
    told = watch_of(served)
    assert (told["by"], told["stats_per_s"], told["every_s"]) == ("rescan", STATS_PER_S, 1.0)
    assert told["note"] == "fuse tells of no changes"
    assert "fuse tells of no changes" in served.run("status").stdout
    before, reads = staged(served, "pets"), origin_reads(served)
    (mount.shown / "class000" / "new.jpg").write_bytes(jpeg(1))
    (mount.shown / "class001" / "000.jpg").unlink()
    (mount.shown / "new").mkdir()
    (mount.shown / "new" / "1.jpg").write_bytes(jpeg(2))
    now = {"class000/new.jpg", "new/1.jpg"} | before.keys() - {"class001/000.jpg"}
    wait_for(lambda: keys_of(served) == now, 30)
    with (mount.shown / "class002" / "000.jpg").open("r+b") as file:  # the folder's time stays
        file.write(jpeg(7777, 80, 80))
    wait_for(lambda: origin_reads(served) == reads + 1, 30)


def test_a_mount_whose_server_dies_freezes_the_data_set_until_it_is_mounted_again(
    served: Place, mount: ShownMount
) -> None:
    before, reads = staged(served, "pets"), origin_reads(served)
    mount.end_server()
    wait_for(lambda: watch_of(served)["state"] == "frozen", 30)
    assert "endpoint is not connected" in watch_of(served)["why"]
    assert staged(served, "pets").keys() == before.keys()
    mount.unmount()
    wait_for(lambda: "nothing is there" in watch_of(served)["why"], 30)
    assert staged(served, "pets").keys() == before.keys()
    mount.mount()
    wait_for(lambda: watch_of(served)["state"] == "resting", 30)
    assert origin_reads(served) == reads
    assert staged(served, "pets").keys() == before.keys()


def test_another_device_freezes_until_a_person_says_that_it_is_meant(tmp_path: Path) -> None:
    place, pets = _on_local_disk(tmp_path)
    with place.service():
        assert place.json("prefetch", "pets")["staged"] == IMAGES
        wait_for(lambda: watch_of(place).get("by") == "inotify")
        with _mounted(pets, "-t", "tmpfs", "tmpfs"):
            image_folder(pets, 2, 3)
            wait_for(lambda: watch_of(place)["state"] == "frozen", 30)
            wait_for(lambda: "not as it was" in watch_of(place)["why"], 30)
            assert len(staged(place, "pets")) == IMAGES
            assert place.run("refresh", "pets").returncode == 2
            assert watch_of(place)["state"] == "frozen"
            assert place.json("refresh", "pets", "--accept-removals")["diff"]["removed"] == IMAGES - 6
            wait_for(lambda: watch_of(place)["state"] == "resting", 30)
            assert len(keys_of(place)) == 6


def test_a_bind_mount_that_vanishes_and_comes_back_costs_nothing(tmp_path: Path) -> None:
    image_folder(tmp_path / "disk", 4, IMAGES // 4)
    pets = tmp_path / "pets"
    pets.mkdir()
    place = Place(tmp_path).configure(watched("pets", pets))
    with place.service():
        with _mounted(pets, "--bind", str(tmp_path / "disk")):
            assert place.json("prefetch", "pets")["staged"] == IMAGES
            wait_for(lambda: watch_of(place).get("by") == "inotify")
            wait_for(lambda: watch_of(place)["state"] == "resting")
            reads = origin_reads(place)
        wait_for(lambda: watch_of(place)["state"] == "frozen", 30)
        assert len(staged(place, "pets")) == IMAGES
        with _mounted(pets, "--bind", str(tmp_path / "disk")):
            wait_for(lambda: watch_of(place)["state"] == "resting", 30)
            (pets / "class000" / "new.jpg").write_bytes(jpeg(1))
            wait_for(lambda: "class000/new.jpg" in keys_of(place), 30)
        assert origin_reads(place) == reads


def test_a_mount_that_hangs_stops_only_its_own_data_set_and_status_says_so(tmp_path: Path) -> None:
    image_folder(tmp_path / "pets", 4, IMAGES // 4)
    with hung_mount(tmp_path / "hung") as hung:
        place = Place(tmp_path)
        place.configure(watched("pets", tmp_path / "pets") + watched("hung", hung))
        with place.service() as process:
            assert place.json("prefetch", "pets")["staged"] == IMAGES
            wait_for(lambda: "frozen dataset=hung" in place.log(), 60)
            assert "hung: no answer for 20 s" in place.log()
            (tmp_path / "pets" / "class000" / "new.jpg").write_bytes(jpeg(1))
            wait_for(lambda: "class000/new.jpg" in keys_of(place), 30)
            began = time.monotonic()
            assert Service(place.socket).get("/status", 5)["service"]["up"]
            assert time.monotonic() - began < 1
            process.terminate()
            process.wait(30)


def _on_local_disk(tmp_path: Path) -> tuple[Place, Path]:
    image_folder(tmp_path / "pets", 4, IMAGES // 4)
    return Place(tmp_path).configure(watched("pets", tmp_path / "pets")), tmp_path / "pets"


@contextmanager
def _mounted(path: Path, *how: str) -> Iterator[None]:
    subprocess.run(["mount", *how, str(path)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


# The watcher's process alone


class Heard:
    """What a watcher says."""

    def __init__(self, place: WatchPlace) -> None:
        self.messages: queue.SimpleQueue[FromWatcher | None] = queue.SimpleQueue()
        self.watcher = WatchProcess(place, lambda _, message: self.messages.put(message))

    def next(
        self, is_it: Callable[[FromWatcher | None], bool], timeout_s: float = 30.0
    ) -> FromWatcher | None:
        """The next message of a kind; others are passed by."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            with suppress(queue.Empty):
                message = self.messages.get(timeout=0.1)
                if is_it(message):
                    return message
        raise AssertionError("nothing of the kind was said")


@contextmanager
def heard(place: WatchPlace) -> Iterator[Heard]:
    said = Heard(place)
    try:
        yield said
    finally:
        said.watcher.end()


def _place(path: Path, **options: object) -> WatchPlace:
    return WatchPlace(asdict(SourceSpec(str(path))), **{"every_s": 1.0, **options})  # type: ignore[arg-type]


def test_too_few_watches_are_told_and_the_folders_are_looked_through(tmp_path: Path) -> None:
    image_folder(tmp_path / "pets", 5, 1)
    for folder in (tmp_path / "pets", *(tmp_path / "pets").iterdir()):
        os.utime(folder, (1e9, 1e9))  # one that is that new is looked at twice
    with heard(_place(tmp_path / "pets", watches_most=5)) as said:  # there are six folders
        told = said.next(lambda message: isinstance(message, Watching))
        assert isinstance(told, Watching)
        assert (told.by, told.stats_per_s) == ("rescan", STATS_PER_S)
        assert told.note.startswith("6 folders or more, and 5 can be watched: sysctl fs.inotify")
        said.next(lambda message: message == Hinted(EVERYTHING))
        (tmp_path / "pets" / "class003" / "new.jpg").write_bytes(b"")
        said.next(lambda message: message == Hinted(Hint.of(["class003"])))


def test_folders_that_come_beyond_the_limit_are_told_too(tmp_path: Path) -> None:
    image_folder(tmp_path / "pets", 5, 1)
    with heard(_place(tmp_path / "pets", watches_most=8)) as said:
        assert said.next(lambda message: isinstance(message, Watching)) == Watching("inotify", watches=6)
        image_folder(tmp_path / "pets" / "more", 4, 1)
        told = said.next(lambda message: isinstance(message, Watching) and message.by == "rescan")
        assert isinstance(told, Watching)
        assert "8 can be watched" in told.note


def test_events_of_files_that_do_not_count_are_no_hints(tmp_path: Path) -> None:
    image_folder(tmp_path / "pets", 1, 1)
    watch = InotifyWatch(str(tmp_path / "pets"), (".jpg",))
    try:
        (tmp_path / "pets" / "log.txt").write_text("a line")
        (tmp_path / "pets" / ".hidden.jpg").write_bytes(b"")
        (tmp_path / "pets" / "class000" / "new.jpg").write_bytes(b"")
        heard_so_far = Hint()
        deadline = time.monotonic() + 10
        while not heard_so_far and time.monotonic() < deadline:
            time.sleep(0.1)
            heard_so_far |= watch.take()
        assert heard_so_far == Hint.of(["class000"])
    finally:
        watch.stop()


def test_a_root_that_is_a_file_or_empty_is_gone(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with heard(_place(tmp_path / "empty")) as said:
        told = said.next(lambda message: isinstance(message, Gone))
        assert isinstance(told, Gone)
        assert "nothing is there" in told.why
        image_folder(tmp_path / "empty", 1, 1)
        said.next(lambda message: message == Hinted(EVERYTHING))


def test_a_limit_of_watches_is_kept_and_folders_are_counted_no_further(tmp_path: Path) -> None:
    image_folder(tmp_path / "pets", 9, 1)
    assert count_folders(str(tmp_path / "pets"), 100) == 10
    assert count_folders(str(tmp_path / "pets"), 3) == 4
    with pytest.raises(TooManyFolders, match=r"4 folders or more, and 3 can be watched"):
        InotifyWatch(str(tmp_path / "pets"), (), most=3)


@pytest.mark.parametrize(
    ("root", "kinds"),
    [
        ("/data", []),
        ("/mnt/far", ["nfs4"]),
        ("/mnt/far/below", ["nfs4"]),
        ("/mnt", ["cifs", "fuse.sshfs", "nfs4"]),
        ("/mnt/a b", ["fuse.sshfs"]),
        ("/mnt/on top", []),
    ],
)
def test_the_kind_of_a_mount_says_how_it_is_watched(root: str, kinds: list[str]) -> None:
    there = [
        ("/", "ext4"),
        ("/mnt/far", "nfs4"),
        (r"/mnt/a\040b", "fuse.sshfs"),
        ("/mnt/win", "cifs"),
        (r"/mnt/on\040top", "nfs"),
        (r"/mnt/on\040top", "xfs"),
    ]
    lines = [f"36 35 98:0 / {place} rw,noatime shared:1 - {kind} dev rw" for place, kind in there]
    assert kinds_of(root, mounts("\n".join(lines).encode())) == kinds


def test_a_rescan_asks_no_more_than_it_may_and_sees_each_kind_of_change(tmp_path: Path) -> None:
    root = tmp_path / "pets"
    image_folder(root, 30, 2)
    old = time.time() - 100
    for folder in (root, *root.iterdir()):
        os.utime(folder, (old, old))
    rescan, now, seen = Rescan(str(root), 10.0, 0.0), 0.0, Hint()

    def round_of(stats: int) -> Hint:
        nonlocal now
        found = Hint()
        for _ in range(200):
            before = rescan.stats
            found |= rescan.go_on(stats, now, old + 50)
            assert rescan.stats - before <= stats + 2  # a folder that is listed costs two
            now += 0.1
        return found

    seen = round_of(3)
    assert rescan.is_ready
    assert not seen
    (root / "class007" / "new.jpg").write_bytes(b"")
    (root / "more" / "below").mkdir(parents=True)
    for folder in ("class007", "more", "more/below", ""):
        os.utime(root / folder, (old + 1, old + 1))
    assert round_of(3) == Hint.of(["", "class007", "more", "more/below"])
    assert not round_of(3)
    (root / "more" / "below").rmdir()
    os.utime(root / "more", (old + 2, old + 2))
    assert round_of(3) == Hint.of(["more"])
    os.utime(root / "class003", (old + 50, old + 50))  # just now: it may change again in the same moment
    assert round_of(3) == Hint.of(["class003"])
    assert round_of(3) == Hint.of(["class003"])
    assert LATELY_S < 50
