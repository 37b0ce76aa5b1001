"""What we use of libraries that they do not promise: whoever upgrades one is told here, and by name."""

import platform
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import botocore
import pytest
import urllib3

import faultserver as fault
from faultserver import BUCKET, FaultServer
from stager.reader.values import SourceSpec
from stager.sources.s3.curl import CurlSource
from stager.sources.s3.source import BotoSource

PYTHON = f"Python {platform.python_version()}"
BOTOCORE = f"botocore {botocore.__version__}"
URLLIB3 = f"urllib3 {urllib3.__version__}"
END_S = 60


def changed(library: str, what: str, file: str) -> str:
    return f"{library}: {what}. {file} relies on it: see there what it is for, and find another way"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultServer]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "key")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    with fault.fault_server() as server:
        server.objects["a"] = b"data"
        yield server


def spec_of(server: FaultServer) -> SourceSpec:
    return SourceSpec(f"s3://{BUCKET}", endpoint_url=server.endpoint_url)


def test_botocore_lets_us_take_the_items_before_it_looks_for_an_error(server: FaultServer) -> None:
    """Its handler takes a page that is no XML for an error: an item that is none is gone before it looks."""
    client = BotoSource(spec_of(server)).client
    item = "<Contents><Key>&bogus;</Key><ETag>e</ETag><Size>1</Size></Contents>"
    answer: dict[str, Any] = {
        "status_code": 200,
        "headers": {},
        "body": f"<ListBucketResult>{item}</ListBucketResult>".encode(),
    }
    taken: dict[str, Any] = {}
    client.meta.events.emit(
        "before-parse.s3.ListObjectsV2",
        operation_model=client.meta.service_model.operation_model("ListObjectsV2"),
        response_dict=answer,
        customized_response_dict=taken,
    )
    file = "stager/sources/s3/listing.py (take_items_first)"
    what = "what is registered for before-parse.*.ListObjectsV2 is not called"
    assert "Contents" in taken, changed(BOTOCORE, what, file)
    what = "before-parse.*.ListObjectsV2 is called behind before-parse.s3.*, so every page is parsed twice"
    assert answer["status_code"] == 200, changed(BOTOCORE, what, file)


def test_the_body_of_an_answer_can_be_shut_down_from_another_thread(server: FaultServer) -> None:
    file = "stager/sources/s3/source.py (_cut_off)"
    with BotoSource(spec_of(server)).client.get_object(Bucket=BUCKET, Key="a")["Body"] as answer:
        what = "`with` a StreamingBody gives no urllib3.HTTPResponse"
        assert isinstance(answer, urllib3.HTTPResponse), changed(BOTOCORE, what, file)
        what = "an HTTPResponse has no shutdown()"
        assert callable(getattr(answer, "shutdown", None)), changed(URLLIB3, what, file)


@pytest.mark.parametrize("where", ["environment", "profile"])
def test_curl_trusts_the_authority_that_boto3_is_told_of(
    server: FaultServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, where: str
) -> None:
    """By a botocore session of our own: boto3 does not show the one it makes."""
    if where == "environment":
        monkeypatch.setenv("AWS_CA_BUNDLE", "/our/authority.pem")
    else:
        monkeypatch.delenv("AWS_CA_BUNDLE", raising=False)
        config = tmp_path / "config"
        config.write_text("[default]\nca_bundle = /our/authority.pem\n")
        monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    assert CurlSource(spec_of(server))._authority() == "/our/authority.pem"


WAITS = """
import threading
told = threading.Event()
threading._register_atexit(told.set)
threading.Thread(target=told.wait).start()
"""


def test_python_calls_us_before_it_waits_for_threads_at_its_end() -> None:
    file = "clients/stager_client/batches/ahead.py (_end_all)"
    what = "threading has no _register_atexit"
    assert callable(getattr(threading, "_register_atexit", None)), changed(PYTHON, what, file)
    try:
        subprocess.run([sys.executable, "-c", WAITS], check=True, timeout=END_S)
    except subprocess.TimeoutExpired:
        what = "threading._register_atexit does not call before threads are joined"
        pytest.fail(changed(PYTHON, what, file))
