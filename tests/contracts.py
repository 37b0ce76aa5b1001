"""What every implementation of an interface promises. Subclass, say how to make one, inherit the tests."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from queue import SimpleQueue
from typing import Protocol

import pytest

from stager.errors import SampleError
from stager.interfaces import BlockingSource, Fetched, Source
from stager.reader.values import ObjectInfo, encode_key

ODD_KEYS = (
    "with space.jpg", "a+b", "100%", "%41", "a%2Fb", "é", "e\u0301", "日/本.jpg", "😀", "q?x=1&y#z", "a~",
    "[x]{y}", "quote'\"", "`^|", "<&>", "tab\tkey", "new\nline", "del\x7f", "dots..", "-n", "a:b,d;e=f$!(h)*",
)  # fmt: skip


class Place(Protocol):
    """Where a source's objects are, for a test to change them."""

    def put(self, key: str, data: bytes) -> None:
        """Make or replace an object. Replaced bytes get another version."""

    def delete(self, key: str) -> None: ...

    def open(self) -> Source | BlockingSource: ...


class SourceContract:
    """What every Source promises. Subclass, give a fixture `place`, inherit the tests."""

    def test_a_scan_yields_every_object_once_in_the_order_of_the_keys_bytes(self, place: Place) -> None:
        keys = ["a!x/1", "a-c", "a.b", "a/1", "a/b/2", "a/b-", "a0", "aa", "z", "ü/1", "日", "😀"]
        for key in reversed(keys):
            place.put(key, key.encode())
        scanned = [info.key for info in place.open().scan()]
        assert scanned == sorted(keys, key=encode_key)

    def test_a_scan_of_an_empty_place_yields_nothing(self, place: Place) -> None:
        assert list(place.open().scan()) == []

    def test_a_scan_can_be_left_and_begun_again(self, place: Place) -> None:
        for key in "abc":
            place.put(key, b"")
        source = place.open()
        first = list(islice(source.scan(), 2))
        assert [info.key for info in first] == ["a", "b"]
        assert [info.key for info in source.scan()] == ["a", "b", "c"]

    def test_what_does_not_change_is_scanned_alike(self, place: Place) -> None:
        place.put("a", b"1")
        place.put("b/c", b"22")
        assert list(place.open().scan()) == list(place.open().scan())

    def test_changed_bytes_have_another_version(self, place: Place) -> None:
        place.put("a", b"old")
        source = place.open()
        old = only(source)
        place.put("a", b"new")
        assert only(source).version != old.version

    @pytest.mark.parametrize("size", [0, 1, 100_000, 5_000_000])
    def test_a_read_gives_the_bytes_and_the_scan_their_number(self, place: Place, size: int) -> None:
        data = bytes(range(256)) * (size // 256) + bytes(size % 256)
        place.put("a", data)
        source = place.open()
        info = only(source)
        assert info.size == size
        assert read(source, info) == data
        assert read(source, info).contiguous

    def test_odd_keys_come_back_as_they_were_put(self, place: Place) -> None:
        for key in ODD_KEYS:
            place.put(key, b"of " + key.encode())
        source = place.open()
        came = {info.key: bytes(read(source, info)) for info in source.scan()}
        assert came == {key: b"of " + key.encode() for key in ODD_KEYS}

    def test_a_read_refuses_an_object_that_changed(self, place: Place) -> None:
        place.put("a", b"old")
        source = place.open()
        info = only(source)
        place.put("a", b"new")
        assert refusal(source, info).reason == "changed"

    def test_a_read_refuses_an_object_that_is_gone(self, place: Place) -> None:
        place.put("a", b"1")
        place.put("b", b"2")
        source = place.open()
        a, b = source.scan()
        place.delete("a")
        assert refusal(source, a).reason == "missing"
        assert bytes(read(source, b)) == b"2"

    def test_a_refusal_is_one_line_that_names_the_object(self, place: Place) -> None:
        source = place.open()
        for key in ("dir/a", "new\nline"):
            error = refusal(source, ObjectInfo(key, 1, "0" * 32))
            assert error.message.isprintable()
            assert repr(key)[1:-1] in error.message

    def test_many_threads_may_read_at_once(self, place: Place) -> None:
        objects = {f"{number:02}": bytes([number]) * 10_000 for number in range(40)}
        for key, data in objects.items():
            place.put(key, data)
        source = place.open()
        infos = list(source.scan())
        with ThreadPoolExecutor(8) as threads:
            for info, came in zip(infos * 3, threads.map(partial(read, source), infos * 3), strict=True):
                assert came == objects[info.key]


def read(source: Source | BlockingSource, info: ObjectInfo) -> memoryview:
    """The object's bytes; raise what the source tells instead."""
    if not hasattr(source, "start"):
        return source.read(info)
    came: SimpleQueue[Fetched] = SimpleQueue()
    source.start(info, came.put)
    fetched = came.get(timeout=60)
    if isinstance(fetched, memoryview):
        return fetched
    raise fetched


def only(source: Source | BlockingSource) -> ObjectInfo:
    (info,) = source.scan()
    return info


def refusal(source: Source | BlockingSource, info: ObjectInfo) -> SampleError:
    with pytest.raises(SampleError) as raised:
        read(source, info)
    return raised.value
