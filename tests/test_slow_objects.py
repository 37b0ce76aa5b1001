"""One object that drips or hangs fails alone, after a time of its own; all others are kept."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest

import faultserver as fault
from contracts import read
from faultserver import BUCKET, FaultServer
from making import jpeg, scanned
from running import Place
from sets import staged, table
from stager.errors import ObjectBusy, SampleError, SourceBusy, SourceSilent
from stager.interfaces import Fetched, Scanning
from stager.reader.values import ObjectInfo, Part
from stager.recipes import open_recipe
from stager.shards import FORMATS
from stager.sources.retry import SILENT_TRIES, RetryingSource
from stager.sources.threads import HUNG_MOST, ThreadedSource
from stager.worker.build import build_shard
from stager.worker.pools import Pools

SAMPLES = 24
ALWAYS = 999
# What the service and its workers have as limits in these tests: a fraction of the usual ones.
SHORT_LIMITS = """
import stager.config
stager.config.STALL_S = 15.0
from stager.sources.s3.source import Limits
from stager.sources.s3.curl import CurlSource
CurlSource.__init__.__defaults__ = (Limits(silence_s=6, answer_s=6),)
"""


class Answering:
    """A source whose answers are told to it, by key, one a try; then it gives the key."""

    def __init__(self, answers: dict[str, list[Exception]]) -> None:
        self.answers = answers
        self.asked: list[str] = []

    def scan(self, scanning: Scanning | None = None) -> Iterator[ObjectInfo]:
        raise NotImplementedError

    def read(self, part: Part) -> memoryview:
        key = part.info.key
        self.asked.append(key)
        if self.answers.get(key):
            raise self.answers[key].pop(0)
        return memoryview(key.encode())


def info_of(key: str) -> ObjectInfo:
    return ObjectInfo(key, len(key), "v")


def asked_again(inner: Answering, sleep: Callable[[float], None] = lambda _: None) -> RetryingSource:
    return RetryingSource(ThreadedSource(inner), sleep=sleep)


def test_an_object_that_is_silent_three_times_is_given_up() -> None:
    inner = Answering({"a": [SourceSilent("a: no answer")] * ALWAYS})
    with pytest.raises(SourceSilent):
        read(asked_again(inner), Part(info_of("a")))
    assert len(inner.asked) == SILENT_TRIES


@pytest.mark.parametrize("busy", [SourceSilent("a: no answer"), SourceBusy("a: slow down")])
def test_if_others_are_answered_meanwhile_it_is_the_object_and_not_the_source(busy: SourceBusy) -> None:
    inner = Answering({"a": [busy] * ALWAYS})
    source: RetryingSource
    source = asked_again(inner, lambda _: None if "b" in inner.asked else read_other())

    def read_other() -> None:
        assert bytes(read(source, Part(info_of("b")))) == b"b"

    with pytest.raises(SampleError) as raised:
        read(source, Part(info_of("a")))
    assert (raised.value.reason, raised.value.message) == ("unreadable", busy.message)


def test_damage_is_of_the_object_and_never_of_the_source() -> None:
    inner = Answering({"a": [ObjectBusy("a: damaged")] * ALWAYS})
    with pytest.raises(SampleError, match="a: damaged") as raised:
        read(asked_again(inner), Part(info_of("a")))
    assert raised.value.reason == "unreadable"


class Hanging(Answering):
    """As a mount in which some files hang, and cannot be interrupted."""

    def __init__(self, hung: set[str]) -> None:
        super().__init__({})
        self.hung, self.let_go = hung, threading.Event()

    def read(self, part: Part) -> memoryview:
        data = super().read(part)
        if part.info.key in self.hung:
            self.let_go.wait()
        return data


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    inner = Hanging({f"hung-{number}" for number in range(200)})
    yield inner
    inner.let_go.set()


def test_a_read_that_hangs_is_given_up_and_its_thread_left_behind(hanging: Hanging) -> None:
    source = ThreadedSource(hanging, threads=1, read_s=0.2)
    with pytest.raises(SourceSilent, match="hung-0: no answer"):
        read(source, Part(info_of("hung-0")))
    assert bytes(read(source, Part(info_of("b")))) == b"b"
    with pytest.raises(SourceSilent, match="still hangs"):  # at once, and without another thread
        read(source, Part(info_of("hung-0")))
    assert hanging.asked.count("hung-0") == 1
    hanging.let_go.set()
    for _ in range(100):
        try:
            assert bytes(read(source, Part(info_of("hung-0")))) == b"hung-0"
            break
        except SourceSilent:
            threading.Event().wait(0.05)
    else:
        raise AssertionError("it is not read though it came back")


def test_threads_that_hang_are_bounded_and_then_the_source_is_busy(hanging: Hanging) -> None:
    source = ThreadedSource(hanging, read_s=0.2)
    before = threading.active_count()
    for number in range(HUNG_MOST):
        with pytest.raises(SourceSilent):
            read(source, Part(info_of(f"hung-{number}")))
    for number in range(HUNG_MOST, 100):
        with pytest.raises(SourceBusy, match=f"{HUNG_MOST} reads hang"):
            read(source, Part(info_of(f"hung-{number}")))
    assert threading.active_count() - before <= HUNG_MOST + 3
    hanging.let_go.set()


def test_parts_of_one_object_that_hang_each_count_and_none_of_it_is_tried_meanwhile(hanging: Hanging) -> None:
    source = ThreadedSource(hanging, read_s=0.2)
    answers: SimpleQueue[Fetched] = SimpleQueue()
    for number in range(HUNG_MOST):
        source.start(Part(info_of("hung-0"), 0, number % 6), answers.put)
    for _ in range(HUNG_MOST):
        assert isinstance(answers.get(timeout=60), SourceSilent)
    with pytest.raises(SourceSilent, match="still hangs"):
        read(source, Part(info_of("hung-0"), 5))
    with pytest.raises(SourceBusy, match=f"{HUNG_MOST} reads hang"):
        read(source, Part(info_of("b")))
    assert len(hanging.asked) == HUNG_MOST


class HangingImages:
    """A source as a worker has it, of images in a mount where one of them hangs."""

    def __init__(self, hung: str) -> None:
        self.objects = {f"c/{number:02}.jpg": jpeg(number) for number in range(8)}
        self.let_go = threading.Event()
        self.hung = hung

    def scan(self, scanning: Scanning | None = None) -> Iterator[ObjectInfo]:
        yield from (ObjectInfo(key, len(data), "v") for key, data in self.objects.items())

    def read(self, part: Part) -> memoryview:
        if part.info.key == self.hung:
            self.let_go.wait()
        return memoryview(self.objects[part.info.key])


def test_a_shard_tells_that_it_goes_on_while_an_object_hangs_and_keeps_the_others(tmp_path: Path) -> None:
    images = HangingImages("c/03.jpg")
    source = RetryingSource(ThreadedSource(images, read_s=3.5), sleep=lambda _: None)
    manifest = scanned(tmp_path / "m", images.scan())
    told: list[int] = []
    built = build_shard(
        tmp_path / "shard", FORMATS["arrow"], "d", source, open_recipe({"crop": 32}), None,
        manifest.digest, manifest.records, list(range(8)), Pools(2), told.append,
    )  # fmt: skip
    images.let_go.set()
    assert sorted(built.samples) == [0, 1, 2, 4, 5, 6, 7]
    assert [(number, reason) for number, reason, _ in built.failed] == [(3, "unreadable")]
    assert told.count(0) >= 2
    assert sum(told) == 8


class NeverAnswering:
    """A source with a bug: it does not call back."""

    def scan(self, scanning: Scanning | None = None) -> Iterator[ObjectInfo]:
        yield ObjectInfo("c/1.jpg", 1, "v")

    def start(self, part: Part, done: Callable[[Fetched], None]) -> None:
        self.done = done


def test_nobody_says_for_ever_that_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stager.worker.build.FETCH_PATIENCE_S", 2.5)
    source = NeverAnswering()
    manifest = scanned(tmp_path / "m", source.scan())
    told: list[int] = []
    arguments = (
        None, FORMATS["arrow"], "d", source, open_recipe({"crop": 32}), None,
        manifest.digest, manifest.records, [0], Pools(1), told.append,
    )  # fmt: skip
    threading.Thread(target=build_shard, args=arguments, daemon=True).start()
    threading.Event().wait(8)
    assert 1 <= told.count(0) <= 3
    source.done(SampleError("missing", "c/1.jpg"))


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with fault.fault_server() as server:
        server.objects = {f"c{n // 8}/{n:03}.jpg": jpeg(n) for n in range(SAMPLES)}
        yield server


@pytest.fixture
def place(tmp_path: Path, server: FaultServer, monkeypatch: pytest.MonkeyPatch) -> Place:
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(SHORT_LIMITS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"), prepend=":")
    tables = table("data", f"s3://{BUCKET}", endpoint_url=server.endpoint_url, anonymous=True)
    return Place(tmp_path).configure(tables)


def test_objects_that_drip_or_hang_fail_alone_and_the_job_goes_on(server: FaultServer, place: Place) -> None:
    slow = {"c0/003.jpg": fault.dripping, "c1/010.jpg": fault.stalled, "c2/020.jpg": fault.silent}
    for key, how in slow.items():
        server.fail(key, *[how] * ALWAYS)
    told = place.json("prefetch", "data", code=3)
    assert (told["staged"], told["failed"]) == (SAMPLES - 3, 3)
    assert staged(place, "data").keys() == server.objects.keys() - slow.keys()
    failed = place.json("ls", "data", "--failed")
    assert {(one["key"], one["reason"]) for one in failed} == {(key, "unreadable") for key in slow}


def test_a_listing_that_is_slow_and_goes_on_is_not_given_up(server: FaultServer, place: Place) -> None:
    server.page_keys = 2
    server.fail("/", fault.error(501, "NotImplemented"))
    server.fail("", *[fault.after(2.0)] * ALWAYS)  # twelve pages: 24 s without 10,000 samples
    assert place.json("prefetch", "data")["staged"] == SAMPLES
