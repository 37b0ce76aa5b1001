"""Are these the bytes that were listed? Shared by all S3 readers of one source."""

import base64
import hashlib
import logging
import re
import threading
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from awscrt import checksums

from stager.errors import ObjectBusy, SampleError, SourceBusy
from stager.reader.values import ObjectInfo, Part
from stager.sources.keys import shown
from stager.sources.parts import found, span

log = logging.getLogger(__name__)

_CONTENT_RANGE: Final = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_MD5: Final = re.compile("[0-9a-f]{32}")
_DAMAGED_HINT: Final = "check the network and its proxies"

# What S3 keeps of an object, the cheapest to compute first.
CHECKSUMS: Final[dict[str, Callable[[memoryview], bytes]]] = {
    "crc64nvme": lambda data: checksums.crc64nvme(data).to_bytes(8, "big"),
    "crc32c": lambda data: checksums.crc32c(data).to_bytes(4, "big"),
    "crc32": lambda data: checksums.crc32(data).to_bytes(4, "big"),
    "sha1": lambda data: hashlib.sha1(data, usedforsecurity=False).digest(),
    "sha256": lambda data: hashlib.sha256(data).digest(),
}


# The server says so of an object whose etag is no MD5, whatever it looks like.
_KMS: Final = re.compile("aws:kms(:dsse)?")
WITNESSES: Final = 6  # other objects that are looked at to find out what etags are
AGREEING: Final = 3  # of them must agree that etags are no MD5s, or all there are


class ReadAgain(Protocol):
    """The reference reader."""

    def fetch(self, part: Part) -> tuple[memoryview, str]:
        """The part as it comes, of the right version and length, and how its object is encrypted."""

    def witnesses(self, info: ObjectInfo, count: int) -> list[ObjectInfo]:
        """Other objects of the source, at most so many."""


class ObjectCheck:
    """Compares what came with what was listed: version, length, and the strongest sum there is of the bytes.

    That is the checksum the server keeps of the whole object, else the MD5, where the etag is one. An etag
    that looks like an MD5 need not be one. The server says so itself of an object under SSE-KMS: its MD5 is
    not compared. For all others the source as a whole is judged, once, and by more than one object:

    - One MD5 that matches proves that etags are MD5s, for good. Another one is damage from then on, however
      often the same bytes come: the object is busy, and in the end unreadable, alone.
    - While none has matched, a mismatch decides nothing. The object is held, and other objects are read: one
      that matches proves them. Only if the object came alike twice, and so did three others of which none
      matches (all others, if there are fewer), etags are no MD5s, and we stop comparing them.

    So nothing was given out that a later match could prove wrong. An object that is alone in its source, and
    whose etag is no MD5, is given out if it comes alike twice: nobody knows more of it.

    Of a part that is not the whole object there is no sum: its version, range and length are compared.
    """

    def __init__(self, source: str, reference: ReadAgain) -> None:
        self.source = source
        # Set once, by any thread, without a lock: the loop that compares must not wait for one that decides.
        self._has_matched = self._is_off = False
        self._reference = reference
        self._deciding = threading.Lock()

    def url_of(self, info: ObjectInfo) -> str:
        return shown(self.source + info.key)

    def answer(
        self, asked: Part, status: int, etag: str | None, content_range: str | None, came: int
    ) -> None:
        """Raise if this is an answer of another version, or not exactly what was asked for."""
        info, size = asked.info, asked.size
        is_range = size < info.size
        if is_range != (status == 206):
            raise self._not_asked(info, status)
        found = (etag or "none").strip('"')
        if found != info.version:
            where = self.url_of(info)
            raise SampleError("changed", f"{where}: etag is {found}, the listing said {info.version}")
        if came != size:
            raise SourceBusy(f"{self.url_of(info)}: {came} of {size} bytes came", hint="try again later")
        told = f"bytes {asked.start}-{asked.start + size - 1}/{info.size}" if is_range else None
        if content_range != told:
            raise self._not_asked(info, status)

    def unlisted(
        self, part: Part, status: int, etag: str | None, content_range: str | None, came: int
    ) -> Part:
        """The part of which this is an answer, with the size and version that the answer tells.

        Raise if it is not what was asked for.
        """
        asked_range = range_unlisted(part)
        if (asked_range is not None) != (status == 206) or not etag:
            raise self._not_asked(part.info, status)
        if asked_range is None:
            return found(part, came, etag.strip('"'))
        told = _CONTENT_RANGE.fullmatch(content_range or "")
        asked = found(part, int(told[3]), etag.strip('"')) if told else part
        stop = asked.info.size if asked.stop is None else asked.stop
        if not told or (int(told[1]), int(told[2]) + 1, came) != (asked.start, stop, stop - asked.start):
            raise self._not_asked(part.info, status)
        return asked

    def checksum(self, info: ObjectInfo, answered: Mapping[str, str], data: memoryview) -> bool:
        """Whether the server told a checksum of the whole object that we know. Raise if it is another one."""
        for name, compute in CHECKSUMS.items():
            told = answered.get(f"x-amz-checksum-{name}")
            if not told or "-" in told or answered.get("x-amz-checksum-type") == "COMPOSITE":
                continue  # of parts that we do not know
            if base64.b64encode(compute(data)).decode() != told:
                raise self._damaged(info)
            return True
        return False

    def md5(self, info: ObjectInfo, data: memoryview, encryption: str = "") -> bool:
        """Whether the MD5 is that of the etag, or there is none to compare with."""
        if (self._is_off and not self._has_matched) or not _may_be_md5(info, encryption):
            return True
        matches = _matches(info, data)
        if matches:
            self._has_matched = True
        return matches

    def again(self, info: ObjectInfo, data: memoryview) -> memoryview:
        """The MD5 is another one: the data all the same, if it is proved that etags are no MD5s."""
        with self._deciding:
            if not self._has_matched and not self._is_off:
                self._decide(info, data)
        if self._has_matched:
            raise self._damaged(info)
        return data

    def _decide(self, info: ObjectInfo, data: memoryview) -> None:
        """Find out whether etags are MD5s. Raise SourceBusy if that cannot be told now."""
        if not self._comes_wrong_alike(info, data):
            raise self._damaged(info)
        agreeing, witnesses = 0, self._reference.witnesses(info, WITNESSES)
        for witness in witnesses:
            agreeing += self._comes_wrong_alike(witness)
            if self._has_matched:
                return
        if agreeing < min(AGREEING, len(witnesses)):
            raise self._damaged(info)
        log.warning("md5 check switched off source=%s cause=%s", self.source, "its etags are no MD5s")
        self._is_off = True

    def _comes_wrong_alike(self, info: ObjectInfo, data: memoryview | None = None) -> bool:
        """Whether the same bytes come twice, though the etag is not their MD5. One that matches is noted."""
        try:
            second, encryption = self._reference.fetch(Part(info))
            if not _may_be_md5(info, encryption):
                return False
            if _matches(info, second):
                self._has_matched = True
                return False
            return second == (data if data is not None else self._reference.fetch(Part(info))[0])
        except SampleError:
            return False

    def _not_asked(self, info: ObjectInfo, status: int) -> SourceBusy:
        told = f"{self.url_of(info)}: the answer ({status}) is not the part that was asked for"
        return SourceBusy(told, hint="is there a proxy that changes requests?")

    def _damaged(self, info: ObjectInfo) -> ObjectBusy:
        return ObjectBusy(f"{self.url_of(info)}: the bytes were damaged on the way", hint=_DAMAGED_HINT)


def asked_for(part: Part, place: str) -> Part:
    """The part, with both its ends. Of an empty one a byte is asked for: HTTP has no range without any."""
    if part.stop is None and part.start == 0:  # the whole object, as nearly always: the short way
        return part
    start, stop = span(part, place)
    if start == stop and part.info.size:
        start, stop = (start, start + 1) if stop < part.info.size else (start - 1, stop)
    return Part(part.info, start, stop)


def range_of(asked: Part) -> str | None:
    """What a request says of its part; None: nothing, it is the whole object."""
    size = asked.size
    return f"bytes={asked.start}-{asked.start + size - 1}" if size < asked.info.size else None


def range_unlisted(part: Part) -> str | None:
    """The same of a part that no listing told of."""
    if part.start < 0:
        return f"bytes={part.start}"
    if part.stop is None:
        return f"bytes={part.start}-" if part.start else None
    return f"bytes={part.start}-{part.stop - 1}"


def _may_be_md5(info: ObjectInfo, encryption: str) -> bool:
    return _MD5.fullmatch(info.version) is not None and not _KMS.fullmatch(encryption)


def _matches(info: ObjectInfo, data: memoryview) -> bool:
    return hashlib.md5(data, usedforsecurity=False).hexdigest() == info.version
