"""Places with objects that a test can change, and open as a source."""

import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from s3server import S3Server
from stager.interfaces import BlockingSource, Source
from stager.reader.values import SourceSpec
from stager.sources.mount.directory import DirectorySource

AnySource = Source | BlockingSource
Wrap = Callable[[Any], AnySource]


def bare(source: AnySource) -> AnySource:
    return source


class FolderPlace:
    """Files in a directory."""

    def __init__(self, root: Path, wrap: Wrap = bare) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        (root / ".keep").touch()  # it is no object: a root with nothing in it is a mount that is gone
        self.wrap = wrap
        self.clock_ns = 1_700_000_000 * 10**9

    def put(self, key: str, data: bytes) -> None:
        path = self.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        self.clock_ns += 1  # two writes within a tick of the kernel's clock have one mtime
        os.utime(path, ns=(self.clock_ns, self.clock_ns))

    def delete(self, key: str) -> None:
        (self.root / key).unlink()

    def open(self) -> AnySource:
        return self.wrap(DirectorySource(self.root))


class BucketPlace:
    """Objects below a prefix of their own, in a real bucket."""

    def __init__(self, s3: S3Server, kind: Callable[[SourceSpec], AnySource], wrap: Wrap = bare) -> None:
        self.client = s3.client()
        self.bucket = s3.bucket
        self.prefix = uuid.uuid4().hex
        self.spec = SourceSpec(f"s3://{s3.bucket}/{self.prefix}", endpoint_url=s3.endpoint_url)
        self.kind = kind
        self.wrap = wrap

    def put(self, key: str, data: bytes) -> None:
        self.client.put_object(Bucket=self.bucket, Key=f"{self.prefix}/{key}", Body=data)

    def delete(self, key: str) -> None:
        self.client.delete_object(Bucket=self.bucket, Key=f"{self.prefix}/{key}")

    def open(self) -> AnySource:
        return self.wrap(self.kind(self.spec))
