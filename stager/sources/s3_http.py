"""S3 by our own few lines of HTTP. Listing, credentials and whatever is unusual stay with boto3."""

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Final

import numpy as np
from botocore.exceptions import ClientError, NoCredentialsError
from botocore.httpsession import get_cert_path
from botocore.utils import get_environ_proxies

from stager.errors import SampleError
from stager.model import ObjectInfo, SourceSpec
from stager.sources.http import Answer, Server, UnusualAnswer
from stager.sources.s3 import LIMITS, BotoSource, Limits
from stager.sources.s3_errors import our_errors
from stager.sources.s3_sign import Keys, object_path, request_head

PART_BYTES: Final = 8 << 20
PARTS_FROM_BYTES: Final = 16 << 20  # a larger object is fetched in parts, several at a time
PARTS_AT_ONCE: Final = 8
_CODE: Final = re.compile(rb"<Code>([A-Za-z.]+)</Code>")


class HttpSource:
    """The objects below a prefix. Any thread may read; do not fork while it is open."""

    def __init__(self, spec: SourceSpec, limits: Limits = LIMITS) -> None:
        self.reference = BotoSource(spec, limits)
        self._server: Server | None = None
        self._region, self._by_proxy = "", False
        self._parts = ThreadPoolExecutor(PARTS_AT_ONCE, "parts")  # its threads start when they are needed
        self._lock = Lock()

    def scan(self) -> Iterator[ObjectInfo]:
        return self.reference.scan()

    def read(self, info: ObjectInfo) -> memoryview:
        reference = self.reference
        where = reference.where(info)
        with our_errors(where, reference.endpoint, reading=True):
            server = self._opened()
            if self._by_proxy:
                return reference.read(info)
            try:
                if info.size > PARTS_FROM_BYTES:
                    return self._in_parts(server, where, info)
                answer = self._ask(server, info)
            except UnusualAnswer:
                return reference.read(info)
        data = reference.check.answer(where, info, answer.headers.get("etag"), answer.body)
        return reference.check.bytes(where, info, _crc32(answer), data)

    def _in_parts(self, server: Server, where: str, info: ObjectInfo) -> memoryview:
        """Fetch ranges side by side into one buffer, all of one version; then check the whole."""
        data = np.empty(info.size, np.uint8).data

        def fetch(start: int) -> None:
            part = data[start : start + PART_BYTES]
            span = f"{start}-{start + len(part) - 1}"
            answer = self._ask(server, info, span, part)
            if answer.status == 200:  # the server knows no ranges
                raise UnusualAnswer
            if answer.headers.get("content-range") != f"bytes {span}/{info.size}":
                raise SampleError("unreadable", f"{where}: the server sent another part than was asked for")
            self.reference.check.version(where, info, answer.headers.get("etag"))

        list(self._parts.map(fetch, range(0, info.size, PART_BYTES)))
        crc32 = None if self.reference.check.is_md5(info) else _crc32(self._ask(server, info, method="HEAD"))
        return self.reference.check.bytes(where, info, crc32, data)

    def _ask(
        self,
        server: Server,
        info: ObjectInfo,
        span: str = "",
        place: memoryview | None = None,
        method: str = "GET",
    ) -> Answer:
        headers = {"host": server.name, "if-match": f'"{info.version}"'}
        headers |= {"range": f"bytes={span}"} if span else {"x-amz-checksum-mode": "ENABLED"}
        path = object_path(self.reference.bucket, self.reference.prefix + info.key)
        head = request_head(method, path, headers, self._keys(), self._region, time.time())
        whole_s = self.reference.limits.whole_s(info.size if place is None else len(place))
        answer = server.ask(head, whole_s, place)
        if not 200 <= answer.status < 300:
            code = _CODE.search(answer.body)
            about = {"Code": code[1].decode() if code else ""}
            told = {"Error": about, "ResponseMetadata": {"HTTPStatusCode": answer.status}}
            raise ClientError(told, method)  # type: ignore[arg-type]
        return answer

    def _opened(self) -> Server:
        """The server that boto3 would ask. Found at the first read, since finding it may take a request."""
        if self._server is None:
            with self._lock:
                url, self._region = self.reference.address()
                authority = self.reference.session._session.get_config_variable("ca_bundle")
                self._by_proxy = bool(get_environ_proxies(url))
                limits = self.reference.limits
                self._server = Server(
                    url,
                    connect_s=limits.connect_s,
                    silence_s=limits.silence_s,
                    authority=authority or get_cert_path(True),
                )
        return self._server

    def _keys(self) -> Keys | None:
        if self.reference.spec.anonymous:
            return None
        credentials = self.reference.session.get_credentials()
        if credentials is None:
            raise NoCredentialsError
        frozen = credentials.get_frozen_credentials()  # new ones, when the old ones are about to expire
        return Keys(frozen.access_key or "", frozen.secret_key or "", frozen.token or "")


def _crc32(answer: Answer) -> str | None:
    """The checksum of the whole object, if the server has it. Of parts it has another kind, with a dash."""
    if answer.headers.get("x-amz-checksum-type", "FULL_OBJECT") != "FULL_OBJECT":
        return None
    return answer.headers.get("x-amz-checksum-crc32")
