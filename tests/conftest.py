"""Fixtures that more than one test file needs."""

from collections.abc import Iterator
from functools import cache

import botocore.session
import pytest

from s3server import S3Server, s3_server


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
