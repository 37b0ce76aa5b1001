"""S3 when things go wrong on the wire: the right error, in bounded time, and never a wrong byte."""

import base64
import itertools
import os
import random
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import faultserver as fault
from contracts import only, read, refusal
from faultserver import BUCKET, Fault, FaultServer, error
from stager.errors import SourceBusy, SourceError, SourceForbidden, SourceNotFound
from stager.reader.values import Part, SourceSpec
from stager.sources.retry import RetryingSource
from stager.sources.s3 import listing as s3_listing
from stager.sources.s3.check import CHECKSUMS
from stager.sources.s3.curl import PART_BYTES, CurlSource
from stager.sources.s3.source import BotoSource, Limits
from stager.sources.threads import ThreadedSource

S3Source = BotoSource | CurlSource
DATA = bytes(range(256)) * 400
LIMITS = Limits(connect_s=1, silence_s=0.3, answer_s=0.6)
BOUND_S = 10.0  # far above the limits, far below for ever


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultServer]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "canary")
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    with fault.fault_server() as server:
        server.objects["a"] = DATA
        yield server


@pytest.fixture(params=[BotoSource, CurlSource])
def source(request: pytest.FixtureRequest, server: FaultServer) -> S3Source:
    kind: type[S3Source] = request.param
    return kind(SourceSpec(f"s3://{BUCKET}", endpoint_url=server.endpoint_url), LIMITS)


@pytest.fixture
def patient(server: FaultServer, source: S3Source) -> S3Source:
    """The same with the usual limits, for a server that has many requests at a time, in Python."""
    return type(source)(SourceSpec(f"s3://{BUCKET}", endpoint_url=server.endpoint_url))


def asked_again(source: S3Source) -> RetryingSource:
    inner = ThreadedSource(source) if isinstance(source, BotoSource) else source
    return RetryingSource(inner, waits_s=(0, 0), sleep=lambda _: None)


BUSY: list[Fault] = [
    error(503, "SlowDown"), error(503, ""), error(500, "InternalError"), error(429, "TooManyRequests"),
    fault.truncated, fault.truncated_without_length, fault.reset, fault.stalled, fault.silent, fault.dripping,
    fault.damaged, fault.too_long,
]  # fmt: skip


@pytest.mark.parametrize("broken", BUSY)
def test_what_may_pass_is_busy_soon_and_asked_again_gives_the_bytes(
    server: FaultServer, source: S3Source, broken: Fault
) -> None:
    info = only(source)
    started = time.monotonic()
    server.fail("a", broken)
    with pytest.raises(SourceBusy) as raised:
        read(source, Part(info))
    assert raised.value.message.startswith(f"s3://{BUCKET}/a: ")
    server.fail("a", broken)
    assert bytes(read(asked_again(source), Part(info))) == DATA
    assert time.monotonic() - started < BOUND_S


def test_a_sandbox_that_forbids_all_about_priorities_does_not_stop_it(
    server: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As systemd/stager.service does."""

    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    source = CurlSource(SourceSpec(f"s3://{BUCKET}", endpoint_url=server.endpoint_url), LIMITS)
    assert bytes(read(source, Part(only(source)))) == DATA


def test_nobody_below_asks_again(server: FaultServer, source: S3Source) -> None:
    info = only(source)
    server.fail("a", *[error(503, "SlowDown")] * 3)
    with pytest.raises(SourceBusy):
        read(asked_again(source), Part(info))
    assert server.asked.count(f"/{BUCKET}/a") == 3


READ_ERRORS = [
    (error(403, "AccessDenied"), "forbidden", ""),
    (error(403, ""), "forbidden", ""),
    (error(403, "InvalidObjectState"), "forbidden", "archived"),
    (error(404, "NoSuchKey"), "missing", ""),
    (error(404, ""), "missing", ""),
    (error(412, "PreconditionFailed"), "changed", ""),
    (error(412, ""), "changed", ""),
    (error(400, "SomethingNew"), "unreadable", "SomethingNew"),
    (fault.another_version, "changed", "etag is 0000"),
]


@pytest.mark.parametrize(("broken", "reason", "what"), READ_ERRORS)
def test_what_concerns_one_object_is_an_error_of_that_sample(
    server: FaultServer, source: S3Source, broken: Fault, reason: str, what: str
) -> None:
    info = only(source)
    server.fail("a", broken)
    refused = refusal(source, Part(info))
    assert refused.reason == reason
    assert what in refused.message


SOURCE_ERRORS = [
    (404, "NoSuchBucket", SourceNotFound, "no such bucket"),
    (301, "PermanentRedirect", SourceNotFound, "another region"),
    (400, "AuthorizationHeaderMalformed", SourceNotFound, "another region"),
    (403, "InvalidAccessKeyId", SourceForbidden, "does not know this access key"),
    (403, "SignatureDoesNotMatch", SourceForbidden, "secret key does not fit"),
    (400, "ExpiredToken", SourceForbidden, "have expired"),
    (400, "InvalidToken", SourceForbidden, "session token"),
    (403, "RequestTimeTooSkewed", SourceForbidden, "the clock of this machine is wrong"),
    (503, "SlowDown", SourceBusy, "slow down"),
    (500, "InternalError", SourceBusy, "the server failed"),
]


@pytest.mark.parametrize(("status", "code", "kind", "what"), SOURCE_ERRORS)
def test_what_concerns_the_source_is_said_in_one_line_with_a_hint_and_no_secret(
    server: FaultServer, source: S3Source, status: int, code: str, kind: type[SourceError], what: str
) -> None:
    info = only(source)
    broken = error(status, code, message="x-amz-security-token:canary")
    server.fail("a", broken)
    server.fail("", broken)
    with pytest.raises(kind, match=what) as reading:
        read(source, Part(info))
    with pytest.raises(kind, match=what) as scanned:
        list(source.scan())
    for raised in (reading, scanned):
        assert raised.value.hint
        assert raised.value.message.isprintable()
        assert "canary" not in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize(
    ("broken", "kind"),
    [
        (error(403, "AccessDenied"), SourceForbidden),
        (fault.truncated, SourceBusy),
        (fault.error_in_200, SourceBusy),
        (fault.no_listing, SourceBusy),
        (fault.without_etags, SourceError),
        (fault.going_on_nowhere, SourceError),
    ],
)
def test_a_listing_that_fails_is_an_error_of_the_source(
    server: FaultServer, source: S3Source, broken: Fault, kind: type[SourceError]
) -> None:
    server.fail("", broken)
    with pytest.raises(kind):
        list(source.scan())


@pytest.mark.parametrize("broken", [fault.going_on_nowhere, fault.going_back])
def test_a_listing_that_contradicts_itself_is_said_in_one_line_with_a_hint(
    server: FaultServer, patient: S3Source, broken: Fault
) -> None:
    server.objects |= {f"one/{number:03}": b"" for number in range(200)}
    server.page_keys = 20
    server.fail("", fault.good, fault.good, *[broken] * 99)
    with pytest.raises(SourceError, match=f"s3://{BUCKET}/: the listing contradicts itself: ") as raised:
        list(asked_again(patient).scan())
    assert type(raised.value) is SourceError
    assert raised.value.hint
    assert len(server.listings) < 40


def test_ranges_of_a_listing_that_contradicts_itself_are_complete_or_an_error(
    server: FaultServer, patient: S3Source
) -> None:
    """Ranges listed side by side may reach the end by themselves: then no wrong token is followed."""
    server.objects |= {f"{number // 10:02}/{number:03}": b"" for number in range(200)}
    server.page_keys = 20
    for _ in range(5):
        server.fail("", fault.good, fault.good, *[fault.going_back] * 99)
        try:
            found = [info.key for info in asked_again(patient).scan()]
        except SourceError:
            continue
        assert found == sorted(server.objects)


@pytest.mark.parametrize("way", [fault.as_aws_lists, fault.as_aws_lists_in_lines])
def test_a_listing_is_the_same_by_our_short_way_as_by_botocore(
    server: FaultServer, source: S3Source, monkeypatch: pytest.MonkeyPatch, way: Fault
) -> None:
    keys = ["b<&>'\"c", "d e/é+%41", "f", "a b"]
    server.objects |= {f"{key}/{number:04}": b"x" * number for key in keys for number in range(0, 900, 3)}
    expected = list(source.scan())  # Size before ETag: botocore parses it
    assert len(expected) == len(server.objects)
    server.fail("", *[way] * 9)
    parsed: set[str] = set()
    take = s3_listing._take_items

    def take_and_tell(customized_response_dict: dict[str, Any], **answer: Any) -> None:
        take(customized_response_dict=customized_response_dict, **answer)
        parsed.update(item["Key"] for item in customized_response_dict.get("Contents", ()))

    monkeypatch.setattr(s3_listing, "_take_items", take_and_tell)
    assert list(source.scan()) == expected
    assert {quote(key) for key in server.objects} <= parsed


def test_a_listing_that_breaks_at_a_later_page_goes_on(server: FaultServer, source: S3Source) -> None:
    server.objects |= {f"{number:05}": b"" for number in range(2500)}
    server.fail("", fault.good, error(503, "SlowDown"), fault.good, fault.good, fault.truncated)
    assert [info.key for info in asked_again(source).scan()] == sorted(server.objects)


def test_a_long_listing_has_many_requests_under_way_and_says_the_same(
    server: FaultServer, patient: S3Source
) -> None:
    server.objects |= {f"{number // 300:02}/{number:05}": b"" for number in range(9000)}
    server.fail("", *[fault.late] * 99)
    assert [info.key for info in patient.scan()] == sorted(server.objects)
    assert sum("start-after" in asked for asked in server.listings) >= 5
    assert len(server.listings) <= 15


def test_if_folders_cannot_be_had_or_a_range_fails_the_listing_goes_on_one_by_one(
    server: FaultServer, patient: S3Source
) -> None:
    server.objects |= {f"{number // 300:02}/{number:05}": b"" for number in range(5000)}
    server.fail("", fault.late, fault.late, *[error(503, "SlowDown")] * 2)
    assert [info.key for info in asked_again(patient).scan()] == sorted(server.objects)
    server.fail("/", error(501, "NotImplemented"))
    assert [info.key for info in patient.scan()] == sorted(server.objects)


def test_a_listing_out_of_order_is_refused_for_a_scan_promises_order(
    server: FaultServer, source: S3Source
) -> None:
    server.keys = lambda start, count: ["z", "b", "y"]  # type: ignore[method-assign]
    server.objects |= dict.fromkeys("bzy", b"")
    reference = source if isinstance(source, BotoSource) else source.reference
    assert [info.key for info in reference.scan()] == ["b", "y", "z"]  # small disorder is put right
    server.keys = lambda start, count: ["z", "b", "y", "b"]  # type: ignore[method-assign]
    with pytest.raises(SourceError, match="out of order"):
        list(source.scan())


def test_an_object_that_comes_short_is_noticed_without_an_md5(server: FaultServer, source: S3Source) -> None:
    server.etags["a"] = "5ee8e4f0a1d14ab5a4d3ad5f5be2b0c7-2"  # uploaded in parts
    info = only(source)
    server.fail("a", fault.truncated_without_length)
    with pytest.raises(SourceBusy):
        read(source, Part(info))
    assert bytes(read(source, Part(info))) == DATA


def test_bytes_that_are_damaged_differently_each_time_are_never_given_out(
    server: FaultServer, source: S3Source
) -> None:
    info = only(source)
    for _ in range(3):
        server.fail("a", fault.damaged)
        with pytest.raises(SourceBusy, match="damaged on the way"):
            read(source, Part(info))
    assert bytes(read(source, Part(info))) == DATA


SUMS = {name: base64.b64encode(compute(memoryview(DATA))).decode() for name, compute in CHECKSUMS.items()}


@pytest.mark.parametrize("name", SUMS)
def test_the_servers_own_checksum_finds_damage_that_no_etag_shows(server: FaultServer, name: str) -> None:
    server.etags["a"] = "5ee8e4f0a1d14ab5a4d3ad5f5be2b0c7-2"  # uploaded in parts
    server.sums = {f"x-amz-checksum-{name}": SUMS[name], "x-amz-checksum-type": "FULL_OBJECT"}
    source = curl_source(server)
    info = only(source)
    server.fail("a", fault.damaged)
    with pytest.raises(SourceBusy, match="damaged on the way"):
        read(source, Part(info))
    assert bytes(read(source, Part(info))) == DATA


def test_a_checksum_of_checksums_says_nothing_of_the_whole(server: FaultServer) -> None:
    server.etags["a"] = "5ee8e4f0a1d14ab5a4d3ad5f5be2b0c7-2"
    source = curl_source(server)
    for sums in ({"x-amz-checksum-crc32": "AAAAAA==-2"}, {"x-amz-checksum-crc32": "AAAAAA==", **COMPOSITE}):
        server.sums = sums
        assert bytes(read(source, Part(only(source)))) == DATA


COMPOSITE = {"x-amz-checksum-type": "COMPOSITE"}


def test_a_large_object_comes_in_parts_and_each_byte_lies_where_it_belongs(server: FaultServer) -> None:
    large = random.Random(0).randbytes(2 * PART_BYTES + 12_345)
    server.objects["a"] = large
    source = curl_source(server, Limits())
    info = only(source)
    assert bytes(read(source, Part(info))) == large
    ends = [0, PART_BYTES, 2 * PART_BYTES, len(large)]
    assert sorted(server.ranges) == sorted(f"bytes={a}-{b - 1}" for a, b in itertools.pairwise(ends))
    for broken, kind in [
        (error(503, "SlowDown"), SourceBusy),
        (fault.deaf_to_ranges, SourceBusy),
        (fault.another_part, SourceBusy),
        (fault.truncated, SourceBusy),
        (fault.another_version, SourceBusy),  # it says 200 where a part was asked for
    ]:
        server.fail("a", fault.good, broken)
        with pytest.raises(kind):
            read(source, Part(info))
    server.fail("a", *[fault.damaged] * 3)
    with pytest.raises(SourceBusy, match="damaged"):
        read(source, Part(info))
    assert bytes(read(source, Part(info))) == large


def curl_source(server: FaultServer, limits: Limits = LIMITS) -> CurlSource:
    return CurlSource(SourceSpec(f"s3://{BUCKET}", endpoint_url=server.endpoint_url), limits)


@pytest.mark.parametrize(
    "key", ["x/../y", "../y", "..", "./y", "x//y", "/y", "x/.", "x\\y", "nul\0", "%2e%2e/y"]
)
def test_keys_that_a_path_library_would_tidy_up_stay_as_they_are(
    server: FaultServer, source: S3Source, key: str
) -> None:
    tidy = os.path.normpath(key.replace("\0", "")).strip("/")
    server.objects = {tidy: b"the object of another key", key: b"right"}
    (info,) = (info for info in source.scan() if info.key == key)
    assert bytes(read(source, Part(info))) == b"right"


def test_a_long_listing_streams(server: FaultServer) -> None:
    source = BotoSource(SourceSpec(f"s3://{BUCKET}/train", endpoint_url=server.endpoint_url))
    server.item = lambda key: (1, "0" * 32)  # type: ignore[method-assign]

    def resident_while_listing(total: int) -> list[int]:
        def keys(start: int, count: int) -> list[str]:
            numbers = range(start, min(start + count, total))
            return [f"train/n{number // 1000:05}/image-{number:09}.jpeg" for number in numbers]

        server.keys = keys  # type: ignore[method-assign]
        server.folders = lambda prefix: [f"train/n{number:05}/" for number in range(total // 1000)]  # type: ignore[method-assign]
        server.place_after = lambda key: int(key[7:12]) * 1000  # type: ignore[method-assign]
        return [resident_bytes() for number, _ in enumerate(source.scan(), 1) if number % 1000 == 0]

    short, long = resident_while_listing(10_000), resident_while_listing(200_000)
    assert (len(short), len(long)) == (10, 200)
    assert max(long) - max(short) < 24 << 20  # all of them at once take 60 MB


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
