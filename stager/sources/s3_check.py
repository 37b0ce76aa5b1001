"""Are these the bytes that were listed? Shared by all S3 readers of one source."""

import hashlib
import logging
import re
import threading
import zlib
from base64 import b64encode
from collections.abc import Callable
from typing import Final

from stager.errors import SampleError, SourceBusy
from stager.model import ObjectInfo

log = logging.getLogger(__name__)

_MD5: Final = re.compile("[0-9a-f]{32}")


class EtagCheck:
    """Compares what came with what was listed: etag, length, and MD5 where the etag is one.

    An etag that looks like an MD5 need not be one (SSE-KMS). So a mismatch is read `again` by the reference
    reader: the same bytes once more prove that this source's etags are no MD5s, and we stop comparing them.
    """

    def __init__(self, source: str, again: Callable[[ObjectInfo], memoryview]) -> None:
        self.source = source
        self.again = again
        self.etags_are_md5 = True
        self._lock = threading.Lock()

    def answer(self, where: str, info: ObjectInfo, etag: str | None, data: memoryview) -> memoryview:
        """The data, if it is of the listed version and whole."""
        self.version(where, info, etag)
        if len(data) != info.size:
            raise SourceBusy(f"{where}: {len(data)} of {info.size} bytes came", hint="try again later")
        return data

    def version(self, where: str, info: ObjectInfo, etag: str | None) -> None:
        found = (etag or "none").strip('"')
        if found != info.version:
            raise SampleError("changed", f"{where}: etag is {found}, the listing said {info.version}")

    def bytes(self, where: str, info: ObjectInfo, crc32: str | None, data: memoryview) -> memoryview:
        """The data, unless a checksum shows that it was damaged: CRC32 if the server has it, else MD5.

        CRC32 takes a third of MD5's time, and it is there for objects that were uploaded in parts, too.
        """
        if crc32 is None or "-" in crc32:
            return self.md5(where, info, data)
        if b64encode(zlib.crc32(data).to_bytes(4, "big")).decode() != crc32:
            raise _damaged(where)
        return data

    def is_md5(self, info: ObjectInfo) -> bool:
        """Whether the listed version is, as far as we know, the MD5 of the bytes."""
        return self.etags_are_md5 and _MD5.fullmatch(info.version) is not None

    def md5(self, where: str, info: ObjectInfo, data: memoryview) -> memoryview:
        """The data, unless its MD5 shows that it was damaged on the way."""
        if not self.is_md5(info):
            return data
        if hashlib.md5(data, usedforsecurity=False).hexdigest() == info.version:
            return data
        if self.again(info) != data:
            raise _damaged(where)
        with self._lock:
            if self.etags_are_md5:
                log.warning("md5 check switched off source=%s cause=%s", self.source, "its etags are no MD5s")
            self.etags_are_md5 = False
        return data


def _damaged(where: str) -> SourceBusy:
    return SourceBusy(f"{where}: the bytes were damaged on the way", hint="check the network and its proxies")
