"""What every implementation of an interface promises. Subclass, say how to make one, inherit the tests."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from queue import SimpleQueue
from typing import Protocol

import pytest

from stager.errors import SampleError
from stager.interfaces import BlockingSource, Fetched, Scanning, Source
from stager.reader.values import ObjectInfo, Part, Unlisted, encode_key

ODD_KEYS = (
    "with space.jpg", "a+b", "100%", "%41", "a%2Fb", "é", "e\u0301", "日/本.jpg", "😀", "q?x=1&y#z", "a~",
    "[x]{y}", "quote'\"", "`^|", "<&>", "tab\tkey", "new\nline", "del\x7f", "dots..", "-n", "a:b,d;e=f$!(h)*",
)  # fmt: skip


LETTERS = b"abcdefghijklmnopqrstuvwxyz"
# Of them: at the start, in the middle, to the end, all, and none.
RANGES = (
    (0, 1), (0, 5), (7, 8), (3, 20), (20, 26), (25, None), (1, None), (0, 26), (0, None),
    (0, 0), (9, 9), (26, 26), (26, None),
)  # fmt: skip
OUTSIDE = ((0, 27), (26, 27), (27, 27), (27, None), (30, 40), (9, 8), (-1, 5), (-5, None), (0, -1))


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

    def test_a_scan_of_keys_that_begin_so_yields_those_and_no_others(self, place: Place) -> None:
        keys = ["a.nii", "a.nii.gz", "b/1", "b/c/2", "b0", "bc/1", "ü/1"]
        for key in keys:
            place.put(key, key.encode())
        source = place.open()
        for under in ("a.nii", "b/", "b/c", "b", "ü/1", "none/", "a.nii/", "b/1/"):
            scanned = [info.key for info in source.scan(Scanning(under=under))]
            assert scanned == [key for key in keys if key.startswith(under)]
        assert [info.key for info in source.scan()] == keys

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
        assert read(source, Part(info)) == data
        assert read(source, Part(info)).contiguous

    def test_odd_keys_come_back_as_they_were_put(self, place: Place) -> None:
        for key in ODD_KEYS:
            place.put(key, b"of " + key.encode())
        source = place.open()
        came = {info.key: bytes(read(source, Part(info))) for info in source.scan()}
        assert came == {key: b"of " + key.encode() for key in ODD_KEYS}

    def test_a_read_refuses_an_object_that_changed(self, place: Place) -> None:
        place.put("a", b"old")
        source = place.open()
        info = only(source)
        place.put("a", b"new")
        assert refusal(source, Part(info)).reason == "changed"

    def test_a_read_refuses_an_object_that_is_gone(self, place: Place) -> None:
        place.put("a", b"1")
        place.put("b", b"2")
        source = place.open()
        a, b = source.scan()
        place.delete("a")
        assert refusal(source, Part(a)).reason == "missing"
        assert bytes(read(source, Part(b))) == b"2"

    def test_a_refusal_is_one_line_that_names_the_object(self, place: Place) -> None:
        source = place.open()
        for key in ("dir/a", "new\nline"):
            error = refusal(source, Part(ObjectInfo(key, 1, "0" * 32)))
            assert error.message.isprintable()
            assert repr(key)[1:-1] in error.message

    def test_many_threads_may_read_at_once(self, place: Place) -> None:
        objects = {f"{number:02}": bytes([number]) * 10_000 for number in range(40)}
        for key, data in objects.items():
            place.put(key, data)
        source = place.open()
        parts = [Part(info) for info in source.scan()] * 3
        with ThreadPoolExecutor(8) as threads:
            for part, came in zip(parts, threads.map(partial(read, source), parts), strict=True):
                assert came == objects[part.info.key]

    @pytest.mark.parametrize(("start", "stop"), RANGES)
    def test_a_part_is_read_as_the_bytes_it_names(self, place: Place, start: int, stop: int | None) -> None:
        place.put("a", LETTERS)
        source = place.open()
        part = Part(only(source), start, stop)
        came = read(source, part)
        assert came == LETTERS[start:stop]
        assert came.contiguous
        assert len(came) == part.size

    @pytest.mark.parametrize(("start", "stop"), [(0, 0), (0, None), (0, 1)])
    def test_an_object_without_bytes_has_one_part(self, place: Place, start: int, stop: int | None) -> None:
        place.put("a", b"")
        source = place.open()
        part = Part(only(source), start, stop)
        if stop == 1:
            assert refusal(source, part).reason == "truncated"
        else:
            assert read(source, part) == b""

    @pytest.mark.parametrize(("start", "stop"), OUTSIDE)
    def test_a_part_outside_of_its_object_is_refused_by_name(
        self, place: Place, start: int, stop: int | None
    ) -> None:
        place.put("dir/a", LETTERS)
        source = place.open()
        error = refusal(source, Part(only(source), start, stop))
        assert error.reason == "truncated"
        assert "dir/a: " in error.message
        assert f"bytes {start} to {26 if stop is None else stop} " in error.message

    @pytest.mark.parametrize("data", [LETTERS.upper(), LETTERS + b"!", LETTERS[:4], b""])
    @pytest.mark.parametrize(("start", "stop"), RANGES)
    def test_a_part_of_an_object_that_changed_is_refused(
        self, place: Place, start: int, stop: int | None, data: bytes
    ) -> None:
        place.put("a", LETTERS)
        source = place.open()
        info = only(source)
        place.put("a", data)
        assert refusal(source, Part(info, start, stop)).reason == "changed"

    def test_a_part_of_an_object_that_is_gone_is_refused(self, place: Place) -> None:
        place.put("a", LETTERS)
        source = place.open()
        info = only(source)
        place.delete("a")
        assert refusal(source, Part(info, 3, 9)).reason == "missing"

    def test_parts_of_objects_with_odd_keys_come_as_they_were_put(self, place: Place) -> None:
        for key in ODD_KEYS:
            place.put(key, b"of " + key.encode())
        source = place.open()
        came = {info.key: bytes(read(source, Part(info, 3))) for info in source.scan()}
        assert came == {key: key.encode() for key in ODD_KEYS}

    @pytest.mark.parametrize(
        ("start", "stop"), [*RANGES[:6], (0, None), (1, None), (0, 26), (-1, None), (-9, None)]
    )
    def test_of_what_no_listing_told_that_is_read_which_is_there(
        self, place: Place, start: int, stop: int | None
    ) -> None:
        place.put("dir/a", b"of before")
        place.put("dir/a", LETTERS)
        came = read(place.open(), Part(Unlisted("dir/a", 7, "", ""), start, stop))
        assert bytes(came) == LETTERS[start:stop]
        assert came.contiguous

    @pytest.mark.parametrize("size", [0, 1, 5_000_000])
    def test_of_what_no_listing_told_all_is_read_however_large_it_is(self, place: Place, size: int) -> None:
        data = bytes(range(256)) * (size // 256) + bytes(size % 256)
        place.put("a", data)
        assert read(place.open(), Part(Unlisted("a", 100, "", ""))) == data

    @pytest.mark.parametrize(("start", "stop"), [(0, None), (-3, None), (2, 5)])
    def test_what_no_listing_told_and_is_not_there_is_missing(
        self, place: Place, start: int, stop: int | None
    ) -> None:
        place.put("dir/b", b"1")
        source = place.open()
        for key in ("dir/a", "dir", "else/b"):
            error = refusal(source, Part(Unlisted(key, 7, "", ""), start, stop))
            assert (error.reason, key in error.message) == ("missing", True)

    def test_many_threads_may_read_parts_of_one_object_at_once(self, place: Place) -> None:
        data = b"".join(number.to_bytes(4, "big") for number in range(50_000))
        place.put("a", data)
        source = place.open()
        info = only(source)
        parts = [Part(info, start, start + 1999) for start in range(0, len(data) - 1999, 1234)]
        with ThreadPoolExecutor(8) as threads:
            for part, came in zip(parts, threads.map(partial(read, source), parts), strict=True):
                assert came == data[part.start : part.stop]


def read(source: Source | BlockingSource, part: Part) -> memoryview:
    """The part's bytes; raise what the source tells instead."""
    if not hasattr(source, "start"):
        return source.read(part)
    came: SimpleQueue[Fetched] = SimpleQueue()
    source.start(part, came.put)
    fetched = came.get(timeout=60)
    if isinstance(fetched, memoryview):
        return fetched
    raise fetched


def only(source: Source | BlockingSource) -> ObjectInfo:
    (info,) = source.scan()
    return info


def refusal(source: Source | BlockingSource, part: Part) -> SampleError:
    with pytest.raises(SampleError) as raised:
        read(source, part)
    return raised.value
