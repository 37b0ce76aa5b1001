"""S3 against a real server: who is let in, what is listed, and which words an error has."""

import io
import logging
import socket
import traceback
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from boto3.s3.transfer import TransferConfig
from botocore.stub import Stubber
from hypothesis import given
from hypothesis import strategies as st

from contracts import only, read, refusal
from places import BucketPlace
from s3server import S3Server
from stager.errors import SourceBusy, SourceError, SourceForbidden, SourceNotFound, UsageError
from stager.interfaces import BlockingSource, Source
from stager.reader.values import ObjectInfo, Part, SourceSpec, encode_key
from stager.sources import open_source
from stager.sources.pace import PacedSource
from stager.sources.retry import RetryingSource
from stager.sources.s3.curl import CurlSource
from stager.sources.s3.source import BotoSource, Limits, in_key_order, split_url

AnySource = Source | BlockingSource
Kind = Callable[[SourceSpec], AnySource]
INFO = ObjectInfo("a", 1, "0" * 32)


@pytest.fixture(params=[BotoSource, CurlSource])
def kind(request: pytest.FixtureRequest) -> Kind:
    kind: Kind = request.param
    return kind


@pytest.fixture
def place(s3: S3Server, kind: Kind) -> BucketPlace:
    return BucketPlace(s3, kind)


def both_verbs_raise(source: AnySource, error: type[SourceError], match: str) -> None:
    with pytest.raises(error, match=match) as scanned:
        list(source.scan())
    with pytest.raises(error, match=match) as reading:
        read(source, Part(INFO))
    for raised in (scanned, reading):
        assert raised.value.hint
        assert raised.value.message.isprintable()
        assert "canary" not in "".join(traceback.format_exception(raised.value))


def test_open_source_reads_through_curl_and_asks_again(s3: S3Server) -> None:
    source = open_source(SourceSpec(f"s3://{s3.bucket}", endpoint_url=s3.endpoint_url))
    assert isinstance(source, RetryingSource)
    assert isinstance(source.inner, PacedSource)
    assert isinstance(source.inner.inner, CurlSource)


def test_a_bucket_that_does_not_exist_is_not_found(s3: S3Server, kind: Kind) -> None:
    source = kind(SourceSpec("s3://no-such-bucket/a", endpoint_url=s3.endpoint_url))
    with pytest.raises(SourceNotFound, match="s3://no-such-bucket/a/: no such bucket"):
        list(source.scan())


@pytest.mark.parametrize(
    ("variable", "what"),
    [
        ("AWS_ACCESS_KEY_ID", "does not know this access key"),
        ("AWS_SECRET_ACCESS_KEY", "secret key does not fit"),
    ],
)
def test_wrong_keys_are_forbidden_and_not_repeated(
    place: BucketPlace, monkeypatch: pytest.MonkeyPatch, variable: str, what: str
) -> None:
    monkeypatch.setenv(variable, "canary")
    source = place.open()
    both_verbs_raise(source, SourceForbidden, what)


def test_without_credentials_it_is_forbidden(place: BucketPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    both_verbs_raise(place.open(), SourceForbidden, "no credentials found")


def test_a_profile_that_does_not_exist_is_forbidden(place: BucketPlace, kind: Kind) -> None:
    with pytest.raises(SourceForbidden, match="no such profile"):
        kind(replace(place.spec, profile="nobody"))


def test_anonymous_reads_what_is_public_and_no_more(
    s3: S3Server, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.client().put_object(Bucket=s3.public_bucket, Key="open/a", Body=b"data")
    s3.client().put_object(Bucket=s3.bucket, Key="closed/a", Body=b"data")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    spec = SourceSpec(f"s3://{s3.public_bucket}/open", endpoint_url=s3.endpoint_url, anonymous=True)
    source = kind(spec)
    assert bytes(read(source, Part(only(source)))) == b"data"
    closed = kind(replace(spec, url=f"s3://{s3.bucket}/closed"))
    with pytest.raises(SourceForbidden, match="access denied"):
        list(closed.scan())
    assert refusal(closed, Part(INFO)).reason == "forbidden"


@pytest.mark.parametrize("host", ["127.0.0.1", "no-such-host.invalid"])
def test_an_endpoint_that_cannot_be_reached_is_busy_and_named(s3: S3Server, kind: Kind, host: str) -> None:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))  # taken, but nobody listens
        endpoint_url = f"http://{host}:{unheard.getsockname()[1]}"
        source = kind(SourceSpec("s3://data", endpoint_url=endpoint_url))
        both_verbs_raise(source, SourceBusy, f"{endpoint_url} cannot be reached")


def test_an_endpoint_url_that_is_none_is_a_usage_error(s3: S3Server, kind: Kind) -> None:
    with pytest.raises(UsageError, match="not a valid endpoint_url"):
        kind(SourceSpec("s3://data", endpoint_url="not a url"))


def test_an_endpoint_may_come_from_the_environment(
    place: BucketPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.put("a", b"data")
    monkeypatch.setenv("AWS_ENDPOINT_URL", str(place.spec.endpoint_url))
    place.spec = replace(place.spec, endpoint_url=None)
    source = place.open()
    assert bytes(read(source, Part(only(source)))) == b"data"


def test_a_prefix_matches_whole_parts_and_a_slash_at_its_end_changes_nothing(place: BucketPlace) -> None:
    for key in ("a/b", "a/b/1", "a/b/c/2", "a/bc/3", "a/b.4"):
        place.put(key, b"")
    url = place.spec.url
    for tail in ("/a/b", "/a/b/"):
        place.spec = replace(place.spec, url=url + tail)
        assert [info.key for info in place.open().scan()] == ["1", "c/2"]


def test_without_a_prefix_the_source_is_the_whole_bucket(s3: S3Server, kind: Kind) -> None:
    bucket = f"whole-{uuid.uuid4().hex}"
    s3.client().create_bucket(Bucket=bucket)
    for key in ("a", "b/c"):
        s3.client().put_object(Bucket=bucket, Key=key, Body=key.encode())
    for url in (f"s3://{bucket}", f"s3://{bucket}/"):
        source = kind(SourceSpec(url, endpoint_url=s3.endpoint_url))
        assert {info.key: bytes(read(source, Part(info))) for info in source.scan()} == {
            "a": b"a",
            "b/c": b"b/c",
        }


def test_markers_of_folders_are_no_objects(place: BucketPlace) -> None:
    for key in ("folder/", "folder/a"):
        place.put(key, b"")
    assert [info.key for info in place.open().scan()] == ["folder/a"]


def test_more_keys_than_a_page_holds_are_all_listed(s3: S3Server) -> None:
    place = BucketPlace(s3, BotoSource)
    folders = [
        f"{number:02}{more}" for number in range(11) for more in ("", "-b")
    ]  # some list 00 before 00-b
    keys = [f"{folder}/{number:03}" for folder in folders for number in range(100)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda key: place.put(key, b"x"), keys))
    assert [info.key for info in place.open().scan()] == sorted(keys)


def test_an_object_uploaded_in_parts_is_read_though_its_etag_is_no_md5(place: BucketPlace) -> None:
    data = b"1" * (5 << 20) + b"2"
    in_parts = TransferConfig(multipart_threshold=5 << 20, multipart_chunksize=5 << 20)
    place.client.upload_fileobj(io.BytesIO(data), place.bucket, f"{place.prefix}/a", Config=in_parts)
    source = place.open()
    info = only(source)
    assert info.version.endswith("-2")
    assert bytes(read(source, Part(info))) == data


def test_no_secret_is_logged_even_at_debug(
    place: BucketPlace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    place.put("a", b"data")
    source = place.open()
    read(source, Part(only(source)))
    monkeypatch.setenv("AWS_SESSION_TOKEN", "canary")  # the server knows no such token
    both_verbs_raise(place.open(), SourceForbidden, "the server")
    assert "canary" not in caplog.text
    assert "Signature=" not in caplog.text


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("s3://b", ("b", "")),
        ("s3://b/", ("b", "")),
        ("s3://b/a", ("b", "a/")),
        ("s3://b/a/", ("b", "a/")),
        ("s3://b//a", ("b", "/a/")),
        ("s3://b/a?x#y%20+ é", ("b", "a?x#y%20+ é/")),
    ],
)
def test_a_url_is_taken_literally(url: str, parts: tuple[str, str]) -> None:
    assert split_url(url) == parts


@given(st.sets(st.text("ab-./", min_size=1).filter(lambda key: "//" not in f"/{key}/"), max_size=30))
def test_what_is_listed_folder_by_folder_comes_in_key_order(keys: set[str]) -> None:
    in_order = sorted(keys, key=encode_key)
    by_folder = sorted(keys, key=lambda key: [encode_key(part) for part in key.split("/")])
    for listed in (in_order, by_folder):
        infos = (ObjectInfo(key, 1, "v") for key in listed)
        assert [info.key for info in in_key_order(infos)] == in_order


def test_a_large_object_has_more_time_and_there_are_few_different_times() -> None:
    limits = Limits(answer_s=30, slowest_bytes_per_s=1_000_000)
    assert [limits.whole_s(size * 1_000_000) for size in (0, 1, 30, 31, 60, 61, 1000)] == [
        *(30, 30, 30, 60, 60, 120, 1920),
    ]


def test_on_aws_curl_is_told_the_region_the_bucket_is_in(s3: S3Server) -> None:
    source = BotoSource(SourceSpec("s3://bucket"))
    headers = {"x-amz-bucket-region": "eu-west-3"}
    with Stubber(source.client) as stub:
        stub.add_response("head_bucket", {"ResponseMetadata": {"HTTPHeaders": headers}}, {"Bucket": "bucket"})
        assert source.address() == ("https://s3.eu-west-3.amazonaws.com", "eu-west-3")
        stub.add_client_error(
            "head_bucket", "403", http_status_code=403, response_meta={"HTTPHeaders": headers}
        )
        assert source.address() == ("https://s3.eu-west-3.amazonaws.com", "eu-west-3")
    given = BotoSource(SourceSpec("s3://bucket", region="us-west-2"))
    assert given.address() == ("https://s3.us-west-2.amazonaws.com", "us-west-2")
