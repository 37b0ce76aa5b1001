"""Which etags are MD5s is decided by evidence, and no single object can switch the comparison off."""

import itertools
import logging
import os
from collections.abc import Iterator
from typing import Any

import pytest

import faultserver as fault
from contracts import read
from faultserver import BUCKET, FaultServer
from stager.errors import SourceBusy
from stager.reader.values import ObjectInfo, Part, SourceSpec
from stager.sources.s3.curl import CurlSource
from stager.sources.s3.source import BotoSource, Limits

S3Source = BotoSource | CurlSource
ALWAYS = 99
KMS = {"x-amz-server-side-encryption": "aws:kms"}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultServer]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary")
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    with fault.fault_server() as server:
        server.objects = {name: name.encode() * 1000 for name in "abcdefghij"}
        yield server


@pytest.fixture(params=[BotoSource, CurlSource])
def source(request: pytest.FixtureRequest, server: FaultServer) -> S3Source:
    kind: type[S3Source] = request.param
    return kind(SourceSpec(f"s3://{BUCKET}", endpoint_url=server.endpoint_url), Limits(silence_s=5))


def listed(source: S3Source) -> dict[str, ObjectInfo]:
    return {info.key: info for info in source.scan()}


def etags_of_kms(server: FaultServer, keys: str) -> None:
    """Etags that look like MD5s and are none."""
    server.etags |= {key: f"{number:032x}" for number, key in enumerate(keys, 7)}


@pytest.mark.parametrize("matched_before", [True, False])
def test_an_object_that_comes_wrong_and_alike_each_time_is_never_given_out_where_etags_are_md5s(
    server: FaultServer, source: S3Source, matched_before: bool
) -> None:
    infos = listed(source)
    if matched_before:
        assert read(source, Part(infos["b"])) == server.objects["b"]
    server.fail("a", *[fault.damaged] * ALWAYS)
    for _ in range(3):
        with pytest.raises(SourceBusy, match="damaged on the way"):
            read(source, Part(infos["a"]))
    for key in "cde":  # and it does not switch the comparison off for others
        server.fail(key, fault.damaged)
        with pytest.raises(SourceBusy, match="damaged on the way"):
            read(source, Part(infos[key]))
        assert read(source, Part(infos[key])) == server.objects[key]


def test_some_that_come_wrong_alike_do_not_outvote_one_that_matches(
    server: FaultServer, source: S3Source
) -> None:
    infos = listed(source)
    for key in "abcdefghi":
        server.fail(key, *[fault.damaged] * ALWAYS)
    assert read(source, Part(infos["j"])) == server.objects["j"]
    for key in "abcdefghi":
        with pytest.raises(SourceBusy, match="damaged on the way"):
            read(source, Part(infos[key]))


def test_etags_that_are_no_md5s_are_found_out_once_by_several_objects(
    server: FaultServer, source: S3Source, caplog: pytest.LogCaptureFixture
) -> None:
    etags_of_kms(server, "abcdefghij")
    infos = listed(source)
    assert read(source, Part(infos["a"])) == server.objects["a"]
    looked_at = {path for path in server.asked if path != f"/{BUCKET}"}
    assert len(looked_at) >= 4  # itself and three others
    server.asked.clear()
    for key in "bcd":
        assert read(source, Part(infos[key])) == server.objects[key]
    assert len(server.asked) == 3
    assert [record.levelno for record in caplog.records if "md5" in record.message] == [logging.WARNING]


@pytest.mark.parametrize("keys", ["a", "ab", "abc"])
def test_one_or_two_objects_whose_etags_are_no_md5s_can_be_had(
    server: FaultServer, source: S3Source, keys: str
) -> None:
    server.objects = {key: server.objects[key] for key in keys}
    etags_of_kms(server, keys)
    infos = listed(source)
    for key in keys:
        assert read(source, Part(infos[key])) == server.objects[key]


def test_an_object_that_is_said_to_be_encrypted_with_kms_has_no_md5_and_others_keep_theirs(
    server: FaultServer, source: S3Source
) -> None:
    etags_of_kms(server, "ab")
    server.headers = {"a": KMS, "b": KMS}
    infos = listed(source)
    server.asked.clear()
    for key in "acb":
        assert read(source, Part(infos[key])) == server.objects[key]
    assert len(server.asked) == 3  # nothing is read twice
    server.fail("c", *[fault.damaged] * ALWAYS)
    for _ in range(2):
        with pytest.raises(SourceBusy, match="damaged on the way"):
            read(source, Part(infos["c"]))


def test_while_nothing_is_proved_nothing_is_given_out(server: FaultServer, source: S3Source) -> None:
    infos = listed(source)
    server.fail("a", *[fault.damaged] * ALWAYS)
    for key in "bcdefghij":
        server.fail(key, *[fault.error(503, "SlowDown")] * 2)
    for _ in range(2):
        with pytest.raises(SourceBusy):
            read(source, Part(infos["a"]))


def test_objects_that_come_otherwise_each_time_are_no_evidence_either(
    server: FaultServer, source: S3Source
) -> None:
    """A network that damages everything says nothing of etags."""
    times = itertools.count()

    def damaged_anew(answer: Any, body: bytes, etag: str) -> None:
        fault.good(answer, next(times).to_bytes(4, "big") + body[4:], etag)

    infos = listed(source)
    server.fail("a", *[fault.damaged] * ALWAYS)
    for key in "bcdefghij":
        server.fail(key, *[damaged_anew] * ALWAYS)
    for key in "aba":
        with pytest.raises(SourceBusy, match="damaged on the way"):
            read(source, Part(infos[key]))


def test_an_object_that_cannot_be_had_is_no_evidence(server: FaultServer, source: S3Source) -> None:
    etags_of_kms(server, "abcdefghij")
    infos = listed(source)
    for key in "bc":
        server.fail(key, *[fault.error(404, "NoSuchKey")] * ALWAYS)
    assert read(source, Part(infos["a"])) == server.objects["a"]
