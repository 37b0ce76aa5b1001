"""A part of an S3 object: what is asked for, and that nothing but exactly that is ever given out."""

import itertools
import os
import random
from collections.abc import Iterator
from typing import Any

import pytest

import faultserver as fault
from contracts import only, read, refusal
from faultserver import BUCKET, Fault, FaultServer, error
from stager.errors import SourceBusy
from stager.reader.values import Part, SourceSpec
from stager.sources.retry import RetryingSource
from stager.sources.s3.curl import PART_BYTES, CurlSource
from stager.sources.s3.source import BotoSource, Limits
from stager.sources.threads import ThreadedSource

S3Source = BotoSource | CurlSource
DATA = random.Random(0).randbytes(200_000)
LIMITS = Limits(connect_s=1, silence_s=0.3, answer_s=0.6)
START, STOP = 70_000, 170_000  # more than the 64 KiB that a refusal may have


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultServer]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary")
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    with fault.fault_server() as server:
        server.objects["a"] = DATA
        yield server


@pytest.fixture(params=[BotoSource, CurlSource])
def source(request: pytest.FixtureRequest, server: FaultServer) -> S3Source:
    kind: type[S3Source] = request.param
    return kind(SourceSpec(f"s3://{BUCKET}", endpoint_url=server.endpoint_url), LIMITS)


def answering(
    status: int = 206, off: int = 0, more: int = 0, told: int = 0, total: int = 0, etag: str = ""
) -> Fault:
    """An answer to a range, but another state, range, number of bytes, total or version."""

    def answer(handler: Any, body: bytes, own_etag: str) -> None:
        first, last = map(int, handler.headers["Range"].removeprefix("bytes=").split("-"))
        part = (body + b"!")[first + off : last + 1 + off + more]
        told_range = f"bytes {first + off}-{last + off + told}/{len(body) + total}"
        handler.begin(status, etag or own_etag, len(part), {"Content-Range": told_range})
        handler.wfile.write(part)

    return answer


def endless(handler: Any, body: bytes, etag: str) -> None:
    """It begins as it was asked to, does not say how long it is, and goes on beyond the end of the object."""
    first, last = map(int, handler.headers["Range"].removeprefix("bytes=").split("-"))
    handler.begin(206, etag, None, {"Content-Range": f"bytes {first}-{last}/{len(body)}"})
    handler.wfile.write(body[first:] + b"!")
    handler.close_connection = True


def without_a_range(handler: Any, body: bytes, etag: str) -> None:
    first, last = map(int, handler.headers["Range"].removeprefix("bytes=").split("-"))
    handler.begin(206, etag, last + 1 - first)
    handler.wfile.write(body[first : last + 1])


def short_of_its_length(handler: Any, body: bytes, etag: str) -> None:
    """All bytes that were asked for, of more that it tells of."""
    first, last = map(int, handler.headers["Range"].removeprefix("bytes=").split("-"))
    handler.begin(206, etag, last + 2 - first, {"Content-Range": f"bytes {first}-{last}/{len(body)}"})
    handler.wfile.write(body[first : last + 1])
    handler.close_connection = True


def cut_short(handler: Any, body: bytes, etag: str) -> None:
    first, last = map(int, handler.headers["Range"].removeprefix("bytes=").split("-"))
    told = {"Content-Range": f"bytes {first}-{last}/{len(body)}"}
    handler.begin(206, etag, last + 1 - first, told)
    handler.wfile.write(body[first : (first + last) // 2])
    handler.close_connection = True


BUSY: dict[str, Fault] = {
    "slow down": error(503, "SlowDown"),
    "the whole object": fault.deaf_to_ranges,
    "the right bytes as if they were the whole": answering(status=200),
    "another range": fault.another_part,
    "another range, as it says": answering(off=1),
    "a longer one": answering(more=1, told=1),
    "a shorter one": answering(more=-1, told=-1),
    "fewer bytes than it says": answering(more=-1),
    "more bytes than it says": answering(more=1),
    "a range of another length than came": answering(told=1),
    "a range of an object of another size": answering(total=1),
    "no word of which range": without_a_range,
    "more than was asked for, without a length": endless,
    "less than its length": short_of_its_length,
    "half of it": cut_short,
    "a connection that is reset": fault.reset,
    "silence": fault.silent,
}


@pytest.mark.parametrize("name", BUSY)
@pytest.mark.parametrize(("start", "stop"), [(START, STOP), (5, 6), (START, None), (9, 9)])
def test_what_is_not_exactly_the_part_is_busy_and_asked_again_gives_the_bytes(
    server: FaultServer, source: S3Source, name: str, start: int, stop: int | None
) -> None:
    part = Part(only(source), start, stop)
    server.fail("a", BUSY[name])
    with pytest.raises(SourceBusy) as raised:
        read(source, part)
    assert raised.value.message.startswith(f"s3://{BUCKET}/a: ")
    server.fail("a", BUSY[name])
    inner = ThreadedSource(source) if isinstance(source, BotoSource) else source
    assert read(RetryingSource(inner, waits_s=(0, 0), sleep=lambda _: None), part) == DATA[start:stop]


REFUSED: dict[str, tuple[Fault, str]] = {
    "412": (error(412, "PreconditionFailed"), "changed"),
    "416, of a server that does not know If-Match": (error(416, "InvalidRange"), "changed"),
    "416 in no words": (error(416, ""), "changed"),
    "another etag": (answering(etag="0" * 32), "changed"),
    "another etag, and another size": (answering(etag="0" * 32, total=-7), "changed"),
    "another etag, and another length": (answering(etag="0" * 32, more=-3, told=-3), "changed"),
    "404": (error(404, "NoSuchKey"), "missing"),
    "403": (error(403, "AccessDenied"), "forbidden"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_concerns_one_object_is_an_error_of_that_sample(
    server: FaultServer, source: S3Source, name: str
) -> None:
    part = Part(only(source), START, STOP)
    broken, reason = REFUSED[name]
    server.fail("a", broken)
    assert refusal(source, part).reason == reason


@pytest.mark.parametrize(
    ("start", "stop", "asked"),
    [
        (START, STOP, [f"bytes={START}-{STOP - 1}"]),
        (0, 1, ["bytes=0-0"]),
        (START, None, [f"bytes={START}-{len(DATA) - 1}"]),
        (9, 9, ["bytes=9-9"]),  # its version is asked for, at the price of one byte
        (len(DATA), None, [f"bytes={len(DATA) - 1}-{len(DATA) - 1}"]),
        (0, None, []),
        (0, len(DATA), []),
    ],
)
def test_one_request_asks_for_the_part_and_no_more(
    server: FaultServer, source: S3Source, start: int, stop: int | None, asked: list[str]
) -> None:
    info = only(source)
    server.asked.clear()
    assert read(source, Part(info, start, stop)) == DATA[start:stop]
    assert (server.ranges, len(server.asked)) == (asked, 1)


def test_a_part_outside_is_not_asked_for(server: FaultServer, source: S3Source) -> None:
    info = only(source)
    server.asked.clear()
    assert refusal(source, Part(info, START, len(DATA) + 1)).reason == "truncated"
    assert server.asked == []


def test_an_object_that_is_asked_for_by_its_ends_is_still_compared_with_its_md5(
    server: FaultServer, source: S3Source
) -> None:
    info = only(source)
    server.fail("a", fault.damaged)
    with pytest.raises(SourceBusy, match="damaged on the way"):
        read(source, Part(info, 0, len(DATA)))


def test_a_part_says_nothing_of_the_md5_of_its_object(server: FaultServer, source: S3Source) -> None:
    info = only(source)
    assert read(source, Part(info, 0, 100)) == DATA[:100]
    server.fail("a", fault.damaged)
    with pytest.raises(SourceBusy, match="damaged on the way"):
        read(source, Part(info))


def test_the_checksum_of_a_whole_object_is_not_that_of_its_part(server: FaultServer) -> None:
    server.headers["a"] = {"x-amz-checksum-crc32": "AAAAAA=="}
    source = CurlSource(SourceSpec(f"s3://{BUCKET}", endpoint_url=server.endpoint_url), LIMITS)
    assert read(source, Part(only(source), START, STOP)) == DATA[START:STOP]


def test_a_large_part_comes_by_several_requests_and_each_byte_lies_where_it_belongs(
    server: FaultServer,
) -> None:
    large = random.Random(0).randbytes(3 * PART_BYTES)
    server.objects["a"] = large
    source = CurlSource(SourceSpec(f"s3://{BUCKET}", endpoint_url=server.endpoint_url))
    start, stop = 1_234_567, 1_234_567 + 2 * PART_BYTES + 99
    part = Part(only(source), start, stop)
    assert read(source, part) == large[start:stop]
    ends = [start, start + PART_BYTES, start + 2 * PART_BYTES, stop]
    assert sorted(server.ranges) == sorted(f"bytes={a}-{b - 1}" for a, b in itertools.pairwise(ends))
    for broken in (fault.deaf_to_ranges, fault.another_part, cut_short, error(503, "SlowDown")):
        server.fail("a", fault.good, broken)
        with pytest.raises(SourceBusy):
            read(source, part)
    server.fail("a", fault.good, error(412, "PreconditionFailed"))
    assert refusal(source, part).reason == "changed"
    assert read(source, part) == large[start:stop]


@pytest.mark.parametrize("key", ["x/../y", "./y", "x/."])
def test_a_part_of_what_libcurl_would_rename_is_read_by_the_book(server: FaultServer, key: str) -> None:
    server.objects = {key: DATA}
    source = CurlSource(SourceSpec(f"s3://{BUCKET}", endpoint_url=server.endpoint_url), LIMITS)
    assert read(source, Part(only(source), START, STOP)) == DATA[START:STOP]
