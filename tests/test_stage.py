"""The way of one shard's samples: all that can be had are in it, and what is urgent goes first."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from images import encode, natural
from making import scanned
from shard_cases import files_no_larger_than
from stager.cache.scan import Scan
from stager.errors import SampleError, SourceBusy
from stager.interfaces import Fetched, Scanning
from stager.reader.shards import open_shard
from stager.reader.values import ObjectInfo, Part
from stager.recipes import open_recipe
from stager.shards import FORMATS, verify_shard
from stager.worker.build import Built, Lanes, PlaceInLine, Pools, build_shard

RECIPE = open_recipe({"crop": 40})


class MemorySource:
    """Forty images; those in `failing` raise."""

    def __init__(self, failing: dict[str, Exception] | None = None) -> None:
        self.objects = {f"c/{number:02}.png": encode(natural(50, 45, number), "PNG") for number in range(40)}
        self.failing = failing or {}

    def scan(self, scanning: Scanning | None = None) -> Iterator[ObjectInfo]:
        for key, data in self.objects.items():
            yield ObjectInfo(key, len(data), "v")

    def start(self, part: Part, done: Callable[[Fetched], None]) -> None:
        key = part.info.key
        answer = self.failing.get(key) or memoryview(self.objects[key])
        threading.Thread(target=done, args=[answer]).start()


@pytest.fixture(scope="module")
def pools() -> Pools:
    return Pools(3)


def build(
    directory: Path, source: MemorySource, pools: Pools, name: str = "arrow", turn: PlaceInLine | None = None
) -> tuple[Path, Built]:
    manifest = scanned(directory / "manifest", source.scan())
    Scan(directory / "manifest").unlink()
    path = directory / f"shard{FORMATS[name].suffix}"
    samples = list(range(len(manifest)))
    done: list[int] = []
    built = build_shard(
        *(path, FORMATS[name], "d", source, RECIPE, manifest.digest, manifest.records, samples, pools),
        *(done.append,),
        turn=turn,
    )
    assert sum(done) == len(samples)
    return path, built


@pytest.mark.parametrize("name", FORMATS)
def test_rows_are_told_in_the_order_they_lie_in_and_a_bad_sample_is_left_out(
    tmp_path: Path, pools: Pools, name: str
) -> None:
    source = MemorySource({"c/07.png": SampleError("missing", "gone")})
    source.objects["c/11.png"] = b"no image"
    path, built = build(tmp_path, source, pools, name)
    shard = open_shard(path)
    assert verify_shard(path) == []
    assert [f"c/{number:02}.png" for number in built.samples] == [key for key, _ in shard.identities()]
    assert sorted(built.samples) == [number for number in range(40) if number not in (7, 11)]
    assert [(number, reason) for number, reason, _ in built.failed] == [(7, "missing"), (11, "not_an_image")]
    assert built.size_bytes == path.stat().st_size
    for row, number in enumerate(built.samples):
        want = RECIPE.prepare(memoryview(source.objects[f"c/{number:02}.png"]))
        assert (shard.row(row)["image"] == want["image"]).all()


def test_a_source_that_fails_for_all_is_an_error_and_leaves_no_file(tmp_path: Path, pools: Pools) -> None:
    source = MemorySource({f"c/{number:02}.png": SourceBusy("busy") for number in range(40)})
    with pytest.raises(SourceBusy):
        build(tmp_path, source, pools)
    assert list(tmp_path.iterdir()) == []


def test_when_no_sample_can_be_had_there_is_no_file(tmp_path: Path, pools: Pools) -> None:
    source = MemorySource({f"c/{number:02}.png": SampleError("missing", "gone") for number in range(40)})
    _, built = build(tmp_path, source, pools)
    assert (built.samples, len(built.failed)) == ([], 40)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", FORMATS)
def test_a_disk_that_takes_no_more_is_the_error_of_the_shard_and_of_no_sample(
    tmp_path: Path, pools: Pools, name: str
) -> None:
    with files_no_larger_than(100_000), pytest.raises(OSError, match="File too large"):
        build(tmp_path, MemorySource(), pools, name)
    assert [path for path in tmp_path.iterdir() if path.name != "manifest"] == []


def test_what_is_urgent_is_taken_first_and_nothing_is_lost() -> None:
    lanes: Lanes[Any] = Lanes()
    for number in range(6):
        lanes.put(number, urgent=number % 2 == 1)
    assert [lanes.take() for _ in range(6)] == [1, 3, 5, 0, 2, 4]


def test_threads_that_put_and_take_lose_nothing() -> None:
    lanes: Lanes[int] = Lanes()
    taken: list[int] = []
    takers = [
        threading.Thread(target=lambda: [taken.append(lanes.take()) for _ in range(500)]) for _ in range(4)
    ]
    putters = [
        threading.Thread(
            target=lambda at=at: [lanes.put(number, number % 3 == 0) for number in range(at, 2000, 4)]
        )
        for at in range(4)
    ]
    for thread in [*takers, *putters]:
        thread.start()
    for thread in [*takers, *putters]:
        thread.join()
    assert sorted(taken) == list(range(2000))


@pytest.mark.parametrize("bytes_max", [1, 20_000])
def test_bytes_in_flight_stay_below_the_limit_but_one_object_always_gets_in(
    tmp_path: Path, bytes_max: int
) -> None:
    source = HeldSource()
    threading.Thread(target=source.let_go, daemon=True).start()
    path, built = build(tmp_path, source, Pools(2, bytes_max=bytes_max))
    assert sorted(built.samples) == list(range(40))
    assert verify_shard(path) == []
    assert source.most_bytes <= max(bytes_max, source.largest)
    assert source.most >= (1 if bytes_max == 1 else 2)


class HeldSource(MemorySource):
    """Objects are held back a while, so that many are asked for at once."""

    def __init__(self) -> None:
        super().__init__()
        self.held: SimpleQueue[tuple[Part, Callable[[Fetched], None]]] = SimpleQueue()
        self.lock = threading.Lock()
        self.bytes = self.most_bytes = self.asked = self.most = 0
        self.largest = max(map(len, self.objects.values()))

    def start(self, part: Part, done: Callable[[Fetched], None]) -> None:
        with self.lock:
            self.asked, self.bytes = self.asked + 1, self.bytes + part.size
            self.most, self.most_bytes = max(self.most, self.asked), max(self.most_bytes, self.bytes)
        self.held.put((part, done))

    def let_go(self) -> None:
        for _ in self.objects:
            part, done = self.held.get()
            with self.lock:
                self.asked, self.bytes = self.asked - 1, self.bytes - part.size
            done(memoryview(self.objects[part.info.key]))


def test_a_shard_is_fetched_when_those_before_it_are_whichever_thread_is_first(tmp_path: Path) -> None:
    first = PlaceInLine()
    sources, pools, threads = {"first": HeldSource(), "second": HeldSource()}, Pools(2), []
    for name, turn in (("second", PlaceInLine(first)), ("first", first)):
        assert sources["second"].most == 0
        (tmp_path / name).mkdir()
        threads.append(
            threading.Thread(target=build, args=(tmp_path / name, sources[name], pools, "arrow", turn))
        )
        threads[-1].start()
        threads[0].join(0.2)  # it has time enough to begin, and must not
    for source in sources.values():
        source.let_go()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert sources["second"].most > 0


def test_a_shard_that_cannot_even_begin_lets_the_next_one_go_on() -> None:
    first = PlaceInLine()
    second = PlaceInLine(first)
    waits = threading.Thread(target=second.wait)
    waits.start()
    first.leave()
    waits.join(10)
    assert not waits.is_alive()
