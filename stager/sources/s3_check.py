"""Are these the bytes that were listed? Shared by all S3 readers of one source."""

import base64
import hashlib
import logging
import re
import threading
from collections.abc import Callable, Mapping
from typing import Final

from awscrt import checksums

from stager.errors import SampleError, SourceBusy
from stager.model import ObjectInfo
from stager.sources.keys import shown

log = logging.getLogger(__name__)

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


class ObjectCheck:
    """Compares what came with what was listed: version, length, and the strongest sum there is of the bytes.

    That is the checksum the server keeps of the whole object, else the MD5, where the etag is one. An etag
    that looks like an MD5 need not be one (SSE-KMS). So a mismatch is read `again` by the reference reader:
    the same bytes once more prove that this source's etags are no MD5s, and we stop comparing them.
    """

    def __init__(self, source: str, read_again: Callable[[ObjectInfo], memoryview]) -> None:
        self.source = source
        self.read_again = read_again
        self.etags_are_md5 = True
        self._lock = threading.Lock()

    def where(self, info: ObjectInfo) -> str:
        return shown(self.source + info.key)

    def answer(self, info: ObjectInfo, etag: str | None, came: int, asked: int) -> None:
        """Raise if this is an answer of another version, or not all of what was asked for."""
        found = (etag or "none").strip('"')
        if found != info.version:
            where = self.where(info)
            raise SampleError("changed", f"{where}: etag is {found}, the listing said {info.version}")
        if came != asked:
            raise SourceBusy(f"{self.where(info)}: {came} of {asked} bytes came", hint="try again later")

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

    def md5(self, info: ObjectInfo, data: memoryview) -> bool:
        """Whether the MD5 is that of the etag, or there is none to compare with."""
        if not self.etags_are_md5 or not _MD5.fullmatch(info.version):
            return True
        return hashlib.md5(data, usedforsecurity=False).hexdigest() == info.version

    def again(self, info: ObjectInfo, data: memoryview) -> memoryview:
        """The MD5 is another one: the data all the same, if they come alike a second time."""
        if self.read_again(info) != data:
            raise self._damaged(info)
        with self._lock:
            if self.etags_are_md5:
                log.warning("md5 check switched off source=%s cause=%s", self.source, "its etags are no MD5s")
            self.etags_are_md5 = False
        return data

    def _damaged(self, info: ObjectInfo) -> SourceBusy:
        return SourceBusy(f"{self.where(info)}: the bytes were damaged on the way", hint=_DAMAGED_HINT)
