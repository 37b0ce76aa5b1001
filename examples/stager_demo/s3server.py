"""A real S3 server on this machine, for tests, the demo and benches: SeaweedFS in a temporary directory.

with s3_server() as s3:
    s3.client().put_object(Bucket=s3.bucket, Key="a", Body=b"...")
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

START_S: Final = 60.0
STARTS: Final = 3  # another process may take a port that was free a moment ago
PORTS: Final = (
    "master.port", "master.port.grpc", "volume.port", "volume.port.grpc",
    "filer.port", "filer.port.grpc", "s3.port.grpc", "s3.port",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class S3Server:
    """A server that runs, with two buckets. Whoever has no keys may read the public one."""

    endpoint_url: str
    access_key: str = "stager"
    secret_key: str = "not-a-secret"  # noqa: S105
    bucket: str = "data"
    public_bucket: str = "public"

    def environ(self) -> dict[str, str]:
        """The variables that let boto3 in, and keep it from looking anywhere else."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def client(self) -> "S3Client":
        return _client(self.endpoint_url, self.access_key, self.secret_key)


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """Start a server (2.5 s), stop it at the end and remove all it wrote."""
    with ExitStack() as stack:
        for start in range(STARTS):
            try:
                server = stack.enter_context(_running_server())
                break
            except ChildProcessError:
                if start == STARTS - 1:
                    raise
        yield server


@contextmanager
def _running_server() -> Iterator[S3Server]:
    ports = _free_ports(len(PORTS))
    server = S3Server(f"http://127.0.0.1:{ports[-1]}")
    directory = Path(tempfile.mkdtemp(prefix="stager-s3-"))
    log = directory / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            _command(server, directory, ports),
            stdout=output,
            stderr=output,
            cwd=directory,
            start_new_session=True,
        )
    try:
        _wait_until_ready(server, process, log)
        yield server
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        shutil.rmtree(directory, ignore_errors=True)
        for port in ports:  # these it puts in /tmp, wherever its directory is
            for path in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):  # noqa: S108
                path.unlink(missing_ok=True)


def _command(server: S3Server, directory: Path, ports: list[int]) -> list[str]:
    everything = ["Admin", "Read", "List", "Tagging", "Write"]
    public = [f"Read:{server.public_bucket}", f"List:{server.public_bucket}"]
    keys = [{"accessKey": server.access_key, "secretKey": server.secret_key}]
    identities = [
        {"name": "stager", "credentials": keys, "actions": everything},
        {"name": "anonymous", "actions": public},
    ]
    config = directory / "s3.json"
    config.write_text(json.dumps({"identities": identities}))
    return [
        str(Path(sysconfig.get_path("scripts")) / "weed"),
        "-logtostderr=true",
        "server",
        f"-dir={directory}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        "-master.telemetry=false",
        "-master.peers=none",  # no election: a second less, and no race that costs five
        "-master.volumeSizeLimitMB=1024",
        "-volume.max=100",
        "-s3",
        f"-s3.config={config}",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        *(f"-{name}={port}" for name, port in zip(PORTS, ports, strict=True)),
    ]


def _wait_until_ready(server: S3Server, process: subprocess.Popen[bytes], log: Path) -> None:
    """Return once both buckets take an object. Raise ChildProcessError if the server gave up."""
    client = server.client()
    deadline = time.monotonic() + START_S
    while True:
        try:
            for bucket in (server.bucket, server.public_bucket):
                client.create_bucket(Bucket=bucket)
                client.put_object(Bucket=bucket, Key="ready", Body=b"")
                client.delete_object(Bucket=bucket, Key="ready")
            return
        except (BotoCoreError, ClientError):
            if process.poll() is not None or time.monotonic() > deadline:
                tail = log.read_text(errors="replace")[-2000:]
                raise ChildProcessError(f"SeaweedFS did not start:\n{tail}") from None
            time.sleep(0.02)


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


@cache  # making one takes longer than most tests
def _client(endpoint_url: str, access_key: str, secret_key: str) -> "S3Client":
    return boto3.client(
        "s3",
        endpoint_url=endpoint_url,
        aws_access_key_id=access_key,
        aws_secret_access_key=secret_key,
        region_name="us-east-1",
        config=Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}),
    )
