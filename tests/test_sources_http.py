"""Our own HTTP to S3: signatures as botocore's, large objects in parts, checksums, connections that stay."""

import hashlib
import os
import random
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import patch

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st

import faultserver as fault
from contracts import only, refusal
from faultserver import BUCKET, FaultServer
from places import BucketPlace
from s3server import S3Server
from stager.errors import SourceBusy, SourceError
from stager.model import ObjectInfo, SourceSpec
from stager.sources.s3_http import PARTS_FROM_BYTES, HttpSource
from stager.sources.s3_sign import Keys, object_path, signed

LARGE = random.Random(1).randbytes(PARTS_FROM_BYTES + 4321)


@given(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40),
    st.sampled_from(["", "token/+="]),
    st.integers(0, 4_000_000_000),
)
def test_a_signature_is_the_one_botocore_makes(key: str, token: str, now_s: int) -> None:
    path = object_path("bucket", key)
    headers = {"host": "host:9", "if-match": '"abc"', "range": "bytes=0-9"}
    request = AWSRequest("GET", f"http://host:9{path}", headers={name: headers[name] for name in headers})
    request.context["payload_signing_enabled"] = True
    now = datetime.fromtimestamp(now_s, UTC)
    with patch("botocore.auth.get_current_datetime", lambda *_, **__: now.replace(tzinfo=None)):
        S3SigV4Auth(Credentials("id", "secret", token or None), "s3", "eu-west-3").add_auth(request)
    ours = signed("GET", path, headers, Keys("id", "secret", token), "eu-west-3", now_s)
    assert ours["authorization"] == request.headers["Authorization"]


def test_a_large_object_comes_in_parts_and_is_whole(s3: S3Server) -> None:
    place = BucketPlace(s3, HttpSource)
    place.put("a", LARGE)
    source = place.open()
    assert bytes(source.read(only(source))) == LARGE


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultServer]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "key")
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    with fault.fault_server() as server:
        yield server


def open_at(server: FaultServer) -> HttpSource:
    return HttpSource(SourceSpec(f"s3://{BUCKET}", endpoint_url=server.endpoint_url))


def test_a_server_that_knows_no_ranges_is_asked_for_the_whole(server: FaultServer) -> None:
    server.objects["a"] = LARGE
    source = open_at(server)
    assert bytes(source.read(only(source))) == LARGE


def in_ranges(answer: "fault._Handler", body: bytes, etag: str) -> None:
    first, last = map(int, answer.headers["Range"].removeprefix("bytes=").split("-"))
    answer.begin(206, etag, last + 1 - first, {"Content-Range": f"bytes {first}-{last}/{len(body)}"})
    answer.wfile.write(body[first : last + 1])


def another_range(answer: "fault._Handler", body: bytes, etag: str) -> None:
    answer.begin(206, etag, 10, {"Content-Range": f"bytes 5-14/{len(body)}"})
    answer.wfile.write(body[5:15])


def damaged_range(answer: "fault._Handler", body: bytes, etag: str) -> None:
    in_ranges(answer, bytes(len(body)), etag)


def of_another_version(answer: "fault._Handler", body: bytes, _etag: str) -> None:
    in_ranges(answer, body, hashlib.md5(b"other", usedforsecurity=False).hexdigest())


@pytest.mark.parametrize(
    ("broken", "reason"), [(another_range, "unreadable"), (of_another_version, "changed")]
)
def test_a_part_that_was_not_asked_for_is_refused(
    server: FaultServer, broken: fault.Fault, reason: str
) -> None:
    server.objects["a"] = LARGE
    server.fail("a", broken, *[in_ranges] * 9)
    source = open_at(server)
    assert refusal(source, only(source)).reason == reason


def test_parts_that_are_damaged_on_the_way_are_noticed(server: FaultServer) -> None:
    server.objects["a"] = LARGE
    source = open_at(server)
    info = only(source)
    server.fail("a", in_ranges, damaged_range, in_ranges)
    with pytest.raises(SourceBusy, match="damaged on the way"):
        source.read(info)
    server.fail("a", *[in_ranges] * 3)
    assert bytes(source.read(info)) == LARGE


def test_the_checksum_of_the_server_is_compared(server: FaultServer) -> None:
    def with_checksum(crc32: str, kind: str = "FULL_OBJECT") -> fault.Fault:
        def answer(answer: "fault._Handler", body: bytes, etag: str) -> None:
            headers = {"x-amz-checksum-crc32": crc32, "x-amz-checksum-type": kind}
            answer.begin(200, etag, len(body), headers)
            answer.wfile.write(body)

        return answer

    server.objects["a"], server.etags["a"] = b"123456789", "0123-2"
    source = open_at(server)
    info = only(source)
    server.fail(
        "a", with_checksum("y/Q5Jg=="), with_checksum("AAAAAA==", "COMPOSITE"), with_checksum("AAAAAA==")
    )
    assert bytes(source.read(info)) == b"123456789"
    assert (
        bytes(source.read(info)) == b"123456789"
    )  # the checksum is one of parts: it says nothing of the whole
    with pytest.raises(SourceBusy, match="damaged on the way"):
        source.read(info)


def test_a_connection_that_the_server_closed_is_no_error(server: FaultServer) -> None:
    def closing(answer: "fault._Handler", body: bytes, etag: str) -> None:
        fault.good(answer, body, etag)
        answer.close_connection = True

    server.objects["a"] = b"data"
    source = open_at(server)
    info = only(source)
    for _ in range(3):
        server.fail("a", closing)
        assert bytes(source.read(info)) == b"data"


TLS = Path(__file__).parent / "tls"  # a key for 127.0.0.1 that signs itself, and is good for nothing else


@pytest.fixture
def secure(server: FaultServer) -> FaultServer:
    """The same server by TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "cert.pem", TLS / "key.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.endpoint_url = server.endpoint_url.replace("http://", "https://")
    server.objects |= {"a": b"secret", "b": LARGE}
    return server


def test_objects_come_by_tls_from_a_server_whose_certificate_is_trusted(
    secure: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", str(TLS / "cert.pem"))
    source = open_at(secure)
    assert [bytes(source.read(info)) for info in source.scan()] == [b"secret", LARGE]


def test_a_server_whose_certificate_nobody_signed_is_not_believed(
    secure: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_CA_BUNDLE", raising=False)
    info = ObjectInfo("a", 6, secure.etag("a"))
    with pytest.raises(SourceError, match=r"(?i)certificate|tls|ssl"):
        open_at(secure).read(info)
