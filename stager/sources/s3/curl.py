"""S3 with libcurl to carry the bytes: a tenth of boto3's CPU a GET. boto3 lists, and has the credentials."""

import math
import re
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final
from urllib.parse import quote

import numpy as np
import pycurl
from botocore.exceptions import NoCredentialsError
from botocore.httpsession import get_cert_path

from stager.errors import SampleError, StagerError
from stager.interfaces import Fetched, Scanning
from stager.reader.values import ObjectInfo, Part, SourceSpec, Unlisted, encode_key
from stager.sources.s3.check import asked_for, range_of, range_unlisted
from stager.sources.s3.curl_loop import UNLISTED_BYTES, Get, Options, curl_loop
from stager.sources.s3.errors import our_error, our_errors
from stager.sources.s3.source import LIMITS, BotoSource, Limits
from stager.sources.threads import ThreadedSource

# libcurl takes such parts out of a path, and does not sign one that keeps them.
_DOTTED: Final = re.compile(r"(^|/)\.\.?(/|$)")

SIGN_EVERY_S: Final = 1.0  # credentials are looked at: new ones come minutes before the old ones run out
PART_BYTES: Final = 8 << 20  # what is larger comes in parts of this size, side by side

_ANSWERED: Final = re.compile(
    rb"^(etag|content-range|x-amz-checksum-[a-z0-9]+|x-amz-server-side-encryption):([^\r\n]*)", re.I | re.M
)  # what is looked at

# libcurl's errors, by the names of the table. All others: the connection broke.
_NAMES: Final = {
    pycurl.E_COULDNT_RESOLVE_HOST: "EndpointConnectionError",
    pycurl.E_COULDNT_RESOLVE_PROXY: "ProxyConnectionError",
    pycurl.E_COULDNT_CONNECT: "EndpointConnectionError",
    pycurl.E_OPERATION_TIMEDOUT: "ReadTimeoutError",
    pycurl.E_PEER_FAILED_VERIFICATION: "UntrustedCertificate",
    pycurl.E_SSL_CACERT_BADFILE: "UntrustedCertificate",
}


_OF_LENGTH: Final = (pycurl.E_OK, pycurl.E_PARTIAL_FILE, pycurl.E_FILESIZE_EXCEEDED)  # what came tells more


class CurlSource:
    """The objects below a prefix. One thread has all requests under way, and hands out what came."""

    def __init__(self, spec: SourceSpec, limits: Limits = LIMITS) -> None:
        self.reference = BotoSource(spec, limits)
        self._loop = curl_loop()
        self._options: dict[int, Any] = {
            pycurl.HTTP_VERSION: pycurl.CURL_HTTP_VERSION_1_1,
            pycurl.CAINFO: self._authority(),
            pycurl.CONNECTTIMEOUT_MS: round(1000 * limits.connect_s),
            pycurl.LOW_SPEED_LIMIT: 1,
            pycurl.LOW_SPEED_TIME: math.ceil(limits.silence_s),
        }
        self._signed_with: tuple[str, ...] = ()
        self._options_by_limit: dict[float, Options] = {}  # seconds a request may take -> its options
        self._headers: list[str] = []
        self._sign_at_s = 0.0
        self._endpoint: str | None = None
        self._by_the_book = ThreadedSource(self.reference)
        self._address: tuple[str, str] | None = None

    def scan(self, scanning: Scanning | None = None) -> Iterator[ObjectInfo]:
        return self.reference.scan(scanning)

    def start(self, part: Part, done: Callable[[Fetched], None]) -> None:
        if _DOTTED.search(self.reference.prefix + part.info.key):
            self._by_the_book.start(part, done)
        else:
            self._loop.call(partial(self._start, part, done))

    def _start(self, part: Part, done: Callable[[Fetched], None]) -> None:
        info = part.info
        try:
            endpoint = self._sign()
            key = quote(encode_key(self.reference.prefix + info.key), safe="/-_.~")
            url = f"{endpoint}/{self.reference.bucket}/{key}"
            headers = ["x-amz-checksum-mode: ENABLED", *self._headers]
            kind = _FetchUnlisted if isinstance(info, Unlisted) else _Fetch
            for get in kind(self.reference, part, done).gets(url, headers, self._options_for):
                self._loop.get(get)
        except Exception as error:  # whatever it is: the loop has others to serve
            done(error)

    def _sign(self) -> str:
        """Have ready what proves who we are; return where to ask."""
        now_s = time.monotonic()
        if now_s >= self._sign_at_s or self._endpoint is None:
            self._endpoint, self._sign_at_s = self._sign_anew(), now_s + SIGN_EVERY_S
        return self._endpoint

    def _sign_anew(self) -> str:
        reference = self.reference
        with our_errors(reference.url, reference.endpoint):
            if self._address is None:
                self._address = reference.address()
            endpoint, region = self._address
            if reference.spec.anonymous:
                return endpoint
            credentials = reference.session.get_credentials()
            if credentials is None:
                raise NoCredentialsError
            keys = credentials.get_frozen_credentials()  # new ones, before they run out
        signed_with = (str(keys.access_key), str(keys.secret_key), keys.token or "")
        if signed_with != self._signed_with:
            self._signed_with, self._options_by_limit = signed_with, {}
            self._options |= {
                pycurl.AWS_SIGV4: f"aws:amz:{region}:s3",
                pycurl.USERNAME: keys.access_key,
                pycurl.PASSWORD: keys.secret_key,
            }
            self._headers = [f"x-amz-security-token: {keys.token}"] if keys.token else []
        return endpoint

    def _options_for(self, size_bytes: int) -> Options:
        whole_s = self.reference.limits.whole_s(size_bytes)
        if whole_s not in self._options_by_limit:
            self._options_by_limit[whole_s] = self._options | {pycurl.TIMEOUT_MS: round(1000 * whole_s)}
        return self._options_by_limit[whole_s]

    def _authority(self) -> str:
        """The certificates that boto3 trusts."""
        own = self.reference.settings.get_config_variable("ca_bundle")
        return str(own or get_cert_path(True))


class _Fetch:
    """A part on its way, by one request or by several. All of it happens in the loop's thread."""

    def __init__(self, source: BotoSource, part: Part, done: Callable[[Fetched], None]) -> None:
        self._source, self._info, self._done = source, part.info, done
        self._asked = asked_for(part, source.url)
        self._size = part.size
        self._is_whole = self._size == part.info.size
        self._data = np.empty(self._size if self._is_whole else self._asked.size, np.uint8).data
        self._left = 0
        self._error: Exception | None = None

    def gets(self, url: str, headers: list[str], options_for: Callable[[int], Options]) -> list[Get]:
        headers = [f'If-Match: "{self._info.version}"', *headers]
        size = len(self._data)
        part_bytes = size if size < 2 * PART_BYTES else PART_BYTES
        if self._is_whole and part_bytes == size:
            self._left = 1
            return [Get(url, headers, options_for(size), self._data, partial(self._came, self._asked))]
        starts = range(0, size, part_bytes)
        self._left = len(starts)
        found = []
        for start in starts:
            body = self._data[start : start + part_bytes]
            begin = self._asked.start + start
            asked = Part(self._info, begin, begin + len(body))
            asked_headers = [*headers, f"Range: {range_of(asked)}"]
            found.append(Get(url, asked_headers, options_for(len(body)), body, partial(self._came, asked)))
        return found

    def _came(self, asked: Part, get: Get) -> None:
        self._left -= 1
        answered = get.answered(_ANSWERED)
        try:
            self._check(asked, get, answered)
        except Exception as error:
            self._error = self._error or error
        if self._left == 0:
            self._end(answered)

    def _check(self, asked: Part, get: Get, answered: dict[str, str]) -> None:
        if get.status >= 300:
            raise self._our_error(refusal_names(get))
        if get.error not in _OF_LENGTH:
            raise self._our_error([_NAMES.get(get.error, "ConnectionError")])
        etag, content_range = answered.get("etag"), answered.get("content-range")
        self._source.check.answer(asked, get.status, etag, content_range, get.came)
        if get.error != pycurl.E_OK:  # all that was asked for came, of an answer that is longer
            raise self._our_error(["ConnectionError"])

    def _our_error(self, names: list[str]) -> StagerError:
        return our_error(names, self._source.check.url_of(self._info), self._source.endpoint, reading=True)

    def _end(self, answered: dict[str, str]) -> None:
        """All of it is there: is it what was stored?"""
        check = self._source.check
        fetched: Fetched = self._error or self._data[: self._size]
        if self._error is None and self._is_whole:
            try:
                is_proved = check.checksum(self._info, answered, self._data)
                encryption = answered.get("x-amz-server-side-encryption", "")
                if not is_proved and not check.md5(self._info, self._data, encryption):
                    # To read it again takes its time, and the loop has none.
                    threading.Thread(target=self._compare, name="compare", daemon=True).start()
                    return
            except Exception as error:
                fetched = error
        self._done(fetched)

    def _compare(self) -> None:
        try:
            self._done(self._source.check.again(self._info, self._data))
        except Exception as error:
            self._done(error)


class _FetchUnlisted(_Fetch):
    """A part of an object of which only its answer tells size and version."""

    def __init__(self, source: BotoSource, part: Part, done: Callable[[Fetched], None]) -> None:
        self._source, self._info, self._done = source, part.info, done
        self._part, self._data = part, memoryview(b"")
        self._size, self._is_whole, self._left = 0, False, 1
        self._error: Exception | None = None

    def gets(self, url: str, headers: list[str], options_for: Callable[[int], Options]) -> list[Get]:
        asked_range = range_unlisted(self._part)
        headers = headers if asked_range is None else [*headers, f"Range: {asked_range}"]
        return [Get(url, headers, options_for(self._info.size), None, partial(self._came, self._part))]

    def _check(self, asked: Part, get: Get, answered: dict[str, str]) -> None:
        if get.status >= 300:
            raise self._our_error(refusal_names(get))
        if get.error == pycurl.E_FILESIZE_EXCEEDED:
            where = self._source.check.url_of(self._info)
            raise SampleError("too_large", f"{where}: more than {UNLISTED_BYTES >> 20} MiB")
        if get.error != pycurl.E_OK:
            raise self._our_error([_NAMES.get(get.error, "ConnectionError")])
        told = answered.get("etag"), answered.get("content-range"), get.came
        self._info = self._source.check.unlisted(asked, get.status, *told).info
        self._size, self._data = get.came, get.body or self._data
        self._is_whole = range_unlisted(self._part) is None


def refusal_names(get: Get) -> list[str]:
    """The error code of S3, if it gave one, and the status."""
    code = get.refusal.partition(b"<Code>")[2].partition(b"</Code>")[0].decode("latin-1")
    return [code, str(get.status)] if code.replace(".", "").isalnum() else [str(get.status)]
