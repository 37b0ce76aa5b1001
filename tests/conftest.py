"""Fixtures that more than one test file needs."""

import os
from collections.abc import Iterator
from functools import cache

import botocore.session
import pytest

from s3server import S3Server, s3_server
from stager.reader import native
from stager.worker.priority import give_way

NOT_COMPILED = "stager/reader/c/samples.c was not compiled"


def pytest_configure() -> None:
    """We give way as a service's background workers do: else they would wait for us, who wait for them."""
    give_way()


@pytest.fixture(scope="session", autouse=True)
def boto3_reads_its_models_once() -> Iterator[None]:
    """Every boto3 session reads a megabyte of JSON; here many are made, one a test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(botocore.session, "create_loader", cache(botocore.session.create_loader))
        yield


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """A real S3 server, and the environment that lets boto3 into it."""
    with s3_server() as server, pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
            patch.delenv(name, raising=False)
        for name, value in server.environ().items():
            patch.setenv(name, value)
        yield server


@pytest.fixture(params=["native", "python"])
def with_and_without_c(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test is run with the reader's C code, and with its stand-in."""
    if request.param == "python":
        monkeypatch.setattr(native, "library", None)
    elif native.library is None:
        assert not os.environ.get("CI"), NOT_COMPILED
        pytest.skip(NOT_COMPILED)
