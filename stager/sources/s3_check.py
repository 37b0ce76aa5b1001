"""Are these the bytes that were listed? Shared by all S3 readers of one source."""

import hashlib
import logging
import re
import threading
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
        found = (etag or "none").strip('"')
        if found != info.version:
            raise SampleError("changed", f"{where}: etag is {found}, the listing said {info.version}")
        if len(data) != info.size:
            raise SourceBusy(f"{where}: {len(data)} of {info.size} bytes came", hint="try again later")
        return data

    def md5(self, where: str, info: ObjectInfo, data: memoryview) -> memoryview:
        """The data, unless its MD5 shows that it was damaged on the way."""
        if not self.etags_are_md5 or not _MD5.fullmatch(info.version):
            return data
        if hashlib.md5(data, usedforsecurity=False).hexdigest() == info.version:
            return data
        if self.again(info) != data:
            raise SourceBusy(
                f"{where}: the bytes were damaged on the way", hint="check the network and its proxies"
            )
        with self._lock:
            if self.etags_are_md5:
                log.warning("md5 check switched off source=%s cause=%s", self.source, "its etags are no MD5s")
            self.etags_are_md5 = False
        return data
