"""A bucket, or a prefix of one, through boto3: it lists for every S3 reader, and reads by the book."""

import heapq
import logging
import math
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import urlsplit

import boto3
import botocore.session
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError
from botocore.response import StreamingBody
from urllib3 import HTTPResponse

from stager.errors import SourceError, UsageError
from stager.interfaces import Scanning
from stager.reader.values import ObjectInfo, Part, SourceSpec, Unlisted
from stager.sources.keys import shown
from stager.sources.s3.check import ObjectCheck, asked_for, range_of, range_unlisted
from stager.sources.s3.errors import our_errors
from stager.sources.s3.listing import Contradiction, list_objects, take_items_first

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

# At DEBUG they log session tokens and signatures.
for _name in ("boto3", "botocore", "s3transfer", "urllib3"):
    logging.getLogger(_name).setLevel(max(logging.INFO, logging.getLogger(_name).level))


@dataclass(frozen=True, slots=True)
class Limits:
    """How long one request may take."""

    connect_s: float = 3.0
    silence_s: float = 15.0  # without a single byte
    answer_s: float = 30.0  # from the first byte to the last, for an object of ordinary size
    slowest_bytes_per_s: int = 500_000  # a large object gets more time, but no less speed

    def whole_s(self, size_bytes: int) -> float:
        """The time for an object: `answer_s`, doubled as often as needed. So there are few different ones."""
        needed = size_bytes / self.slowest_bytes_per_s / self.answer_s
        return self.answer_s * 2.0 ** math.ceil(math.log2(needed)) if needed > 1 else self.answer_s


LIMITS: Final = Limits()
CONNECTIONS: Final = 64  # kept open to one server
WITNESS_BYTES_MAX: Final = 16 << 20  # of an object that is only read to learn what etags are
_LISTING_HINT: Final = "check the server at endpoint_url and its proxies; what is staged stays"


class BotoSource:
    """The objects below a prefix. Key: what follows the prefix; version: the etag."""

    def __init__(self, spec: SourceSpec, limits: Limits = LIMITS) -> None:
        self.spec = spec
        self.limits = limits
        self.bucket, self.prefix = split_url(spec.url)
        self.url = f"s3://{self.bucket}/{self.prefix}"
        self.endpoint = _without_userinfo(spec.endpoint_url or "AWS")
        with our_errors(spec.url, self.endpoint):
            self.settings = botocore.session.get_session()  # of the environment and the profile
            self.session = boto3.Session(
                profile_name=spec.profile, region_name=spec.region, botocore_session=self.settings
            )
            self.client = self._connect("path" if spec.endpoint_url else "auto")
            if not self.on_aws and not spec.endpoint_url:  # AWS_ENDPOINT_URL, or the profile, names a server
                self.client = self._connect("path")
        self.endpoint = _without_userinfo(self.client.meta.endpoint_url)
        self.check = ObjectCheck(self.url, self)

    @property
    def on_aws(self) -> bool:
        host = urlsplit(self.client.meta.endpoint_url).hostname or ""
        return host.endswith((".amazonaws.com", ".amazonaws.com.cn"))

    def scan(self, scanning: Scanning | None = None) -> Iterator[ObjectInfo]:
        listed = self._listed(scanning or Scanning())
        if not self.on_aws:
            listed = in_key_order(listed)
        last = ""
        for info in listed:
            if info.key <= last:
                raise SourceError(
                    f"{self.url}: {shown(info.key)} is listed after {shown(last)}, out of order"
                )
            last = info.key
            yield info

    def read(self, part: Part) -> memoryview:
        if isinstance(part.info, Unlisted):
            part, data, encryption = self._fetch_unlisted(part)
        else:
            data, encryption = self.fetch(part)
        if part.size < part.info.size or self.check.md5(part.info, data, encryption):
            return data
        return self.check.again(part.info, data)

    def fetch(self, part: Part) -> tuple[memoryview, str]:
        """The part as it comes, of the right version and length, and how its object is encrypted."""
        asked, info = asked_for(part, self.url), part.info
        where: dict[str, Any] = {"Bucket": self.bucket, "Key": self.prefix + info.key}
        if (asked_range := range_of(asked)) is not None:
            where["Range"] = asked_range
        with our_errors(self.check.url_of(info), self.endpoint, reading=True):
            answer = self.client.get_object(**where, IfMatch=f'"{info.version}"')
            with _cut_off(answer["Body"], self.limits.whole_s(asked.size)) as body:
                data = memoryview(body.read())
        status = answer["ResponseMetadata"]["HTTPStatusCode"]
        self.check.answer(asked, status, answer.get("ETag"), answer.get("ContentRange"), len(data))
        return data[: part.size], answer.get("ServerSideEncryption", "")

    def _fetch_unlisted(self, part: Part) -> tuple[Part, memoryview, str]:
        """The part as it comes, which it is of what is there, and how its object is encrypted."""
        where: dict[str, Any] = {"Bucket": self.bucket, "Key": self.prefix + part.info.key}
        if (asked_range := range_unlisted(part)) is not None:
            where["Range"] = asked_range
        with our_errors(self.check.url_of(part.info), self.endpoint, reading=True):
            answer = self.client.get_object(**where)
            with _cut_off(answer["Body"], self.limits.whole_s(answer["ContentLength"])) as body:
                data = memoryview(body.read())
        status = answer["ResponseMetadata"]["HTTPStatusCode"]
        told = answer.get("ETag"), answer.get("ContentRange"), len(data)
        return self.check.unlisted(part, status, *told), data, answer.get("ServerSideEncryption", "")

    def witnesses(self, info: ObjectInfo, count: int) -> list[ObjectInfo]:
        """Other objects of the source, from all over its first page."""
        with our_errors(self.url, self.endpoint):
            told = self.client.list_objects_v2(Bucket=self.bucket, Prefix=self.prefix)
        found = [self._info(item) for item in told.get("Contents", ())]
        fit = [
            other
            for other in found
            if other.key != info.key and "-" not in other.version and 0 < other.size <= WITNESS_BYTES_MAX
        ]
        return fit[:: -(-len(fit) // count)] if fit else []

    def _listed(self, scanning: Scanning) -> Iterator[ObjectInfo]:
        prefix = self.prefix + scanning.under

        def ask(**where: Any) -> Mapping[str, Any]:
            page = self._ask(prefix, **where)
            scanning.went_on()
            return page

        try:
            with our_errors(self.url, self.endpoint):
                for item in list_objects(ask, prefix):
                    if not item["Key"].endswith("/"):  # consoles make these to show a folder
                        yield self._info(item)
        except Contradiction as error:
            raise SourceError(f"{self.url}: the listing contradicts itself: {error}", _LISTING_HINT) from None

    def _info(self, item: Mapping[str, Any]) -> ObjectInfo:
        return ObjectInfo(item["Key"].removeprefix(self.prefix), item["Size"], item["ETag"].strip('"'))

    def _ask(self, prefix: str, **where: Any) -> Mapping[str, Any]:
        """A page of the listing, in which nothing lacks what it is listed for."""
        try:
            page = self.client.list_objects_v2(Bucket=self.bucket, Prefix=prefix, **where)
        except (ValueError, TypeError) as error:  # what botocore's parser lets out if a number is none
            raise ResponseParserError(f"no listing: {error}") from error
        if not all(map(_is_whole, page.get("Contents", ()))):
            raise SourceError(f"{self.url}: an object is listed without its key, etag or size", _LISTING_HINT)
        if not all(type(folder.get("Prefix")) is str for folder in page.get("CommonPrefixes", ())):
            raise SourceError(f"{self.url}: a folder is listed without its name", _LISTING_HINT)
        return page

    def address(self) -> tuple[str, str]:
        """The bucket's endpoint and region. boto3 goes where S3 sends it; who does not must be told."""
        meta = self.client.meta
        if self.spec.region or not self.on_aws:
            return meta.endpoint_url, meta.region_name
        with our_errors(self.url, self.endpoint):
            try:
                headers = self.client.head_bucket(Bucket=self.bucket)["ResponseMetadata"]["HTTPHeaders"]
            except ClientError as error:  # a refusal says it too
                headers = error.response["ResponseMetadata"]["HTTPHeaders"]
        region = headers.get("x-amz-bucket-region", meta.region_name)
        return self.session.client("s3", region_name=region).meta.endpoint_url, region

    def _connect(self, addressing_style: Literal["auto", "path"]) -> "S3Client":
        config = Config(
            connect_timeout=self.limits.connect_s,
            read_timeout=self.limits.silence_s,
            retries={"total_max_attempts": 1},
            max_pool_connections=CONNECTIONS,
            signature_version=UNSIGNED if self.spec.anonymous else None,
            s3={"addressing_style": addressing_style},
        )
        try:
            client = self.session.client("s3", endpoint_url=self.spec.endpoint_url, config=config)
            take_items_first(client.meta.events)
            return client
        except BotoCoreError:
            raise
        except ValueError:
            raise UsageError(
                f"{self.endpoint}: not a valid endpoint_url",
                hint="write it as http://host:port or https://host",
            ) from None


def _is_whole(item: Mapping[str, Any]) -> bool:
    """Whether all that we need of an object is there once: what is there twice, botocore has as a list."""
    size = item.get("Size")
    return type(item.get("Key")) is type(item.get("ETag")) is str and type(size) is int and size >= 0


def split_url(url: str) -> tuple[str, str]:
    """The bucket, and the prefix of all its keys: empty, or ending with a slash, so that a/b is not a/bc."""
    bucket, _, prefix = url.partition("://")[2].partition("/")
    if "@" in bucket:
        raise UsageError("the source has credentials in its URL", hint="set a profile, or AWS_ACCESS_KEY_ID")
    if not bucket:
        raise UsageError(f"{url}: it names no bucket", hint="write s3://bucket/prefix")
    return bucket, prefix if prefix.endswith("/") or not prefix else prefix + "/"


def in_key_order(infos: Iterable[ObjectInfo]) -> Iterator[ObjectInfo]:
    """Sort the objects of a server that lists folder by folder.

    SeaweedFS lists a/1 before a-b, S3 after it. In either order all that is yet to come sorts after the first
    part of the present key, so at most one folder of the top level is held back, and those it is a prefix of.
    What is in one of them comes in one go, with nothing between the first and the last.
    """
    held: list[tuple[str, int, list[ObjectInfo]]] = []  # a heap of folders, by their first keys
    folder, inside, count = "", list[ObjectInfo](), 0

    def end_folder() -> None:
        inside.sort(key=attrgetter("key"))  # text sorts as its UTF-8 does
        heapq.heappush(held, (inside[0].key, count, inside))

    for info in infos:
        if not folder or not info.key.startswith(folder):
            if inside:
                end_folder()
            first, slash, _ = info.key.partition("/")
            while held and held[0][0] < first:
                yield from heapq.heappop(held)[2]
            folder, inside, count = first + slash if slash else "", [], count + 1
        inside.append(info)
    if inside:
        end_folder()
    while held:
        yield from heapq.heappop(held)[2]


@contextmanager
def _cut_off(body: StreamingBody, after_s: float) -> Iterator[StreamingBody]:
    """Break the connection when the body takes too long: a drip of bytes is never silent."""
    with body as answer:  # urllib3's: botocore means it to be had in this way (its issue 3564)
        timer = threading.Timer(after_s, _shut_down, [answer])
        timer.daemon = True
        timer.start()
        try:
            yield body
        finally:
            timer.cancel()


def _shut_down(answer: HTTPResponse) -> None:
    with suppress(RuntimeError, ValueError, OSError):  # it ended by itself just now
        answer.shutdown()


def _without_userinfo(endpoint_url: str) -> str:
    return re.sub("//[^/@]*@", "//", endpoint_url)
