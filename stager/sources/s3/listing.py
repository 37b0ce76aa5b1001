"""The objects below a prefix of a bucket: pages of them, several ranges side by side.

A page says where the next one begins, so they come one after the other: a million keys take minutes. But a
listing may begin behind any key. So its folders are asked for beside the first page, and if it turns out to
be a long one, groups of them are listed ahead. A range that was is taken only if it begins with the very
object that the one before found there, and goes on as it did: what the server says page by page is what
counts, whatever it makes of the rest.

A listing that cannot be true is an error, and never an end: what is listed no more would count as deleted.
"""

import re
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from html import unescape
from itertools import pairwise
from typing import Any, Final

from stager.reader.values import decode_key, encode_key
from stager.sources.keys import shown

Item = dict[str, Any]  # Key, ETag, Size
Ask = Callable[..., Mapping[str, Any]]  # for a page of the bucket and its prefix

RANGES: Final = 8  # that are listed ahead
PAGES_MOST: Final = 3  # of a range, before its turn comes
FILL: Final = 0.9  # of its pages: a folder more would often take one more
FOLDER_PAGES_MOST: Final = 32
EMPTY_PAGES_MOST: Final = 10_000  # in a row: versions that were deleted make some

# One item, tag by tag: there is one way to read it, so whatever is in it, it is read once.
_OTHERS: Final = r"(?:\s*<(?!Key>|ETag>|Size>)\w+>[^<]*</\w+>)*+\s*"
_ITEM: Final = re.compile(
    rf"<Contents>{_OTHERS}<Key>([^<]*)</Key>{_OTHERS}<ETag>([^<]*)</ETag>{_OTHERS}<Size>([0-9]{{1,18}})</Size>"
    rf"{_OTHERS}</Contents>"
)


class Contradiction(Exception):
    """What a listing says cannot be true."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Some pages that follow each other, and what to ask for the next; None: there is none."""

    items: list[Item]
    token: str | None


class _Course:
    """Where a listing has been: it must go on from there. Some servers list folder by folder."""

    def __init__(self) -> None:
        self._last: str | None = None
        self._orders: list[Callable[[str], bytes]] = [str.encode, _by_folder]  # that it may have
        self._asked: set[int] = set()  # tokens are long
        self._empty = 0

    def go_on(self, part: _Part, is_met: bool = False) -> _Part:
        """Raise if this part cannot be the next one. `is_met`: its first object was in the one before."""
        if part.items:
            first, last = part.items[0]["Key"], self._last
            if last is not None and not is_met:
                self._orders = [order for order in self._orders if order(first) > order(last)]
                if not self._orders:
                    raise Contradiction(f"{shown(first)} comes after {shown(last)}, on the next page")
            self._last = part.items[-1]["Key"]
        self._empty = 0 if part.items else self._empty + 1
        if self._empty >= EMPTY_PAGES_MOST:
            raise Contradiction(f"{self._empty:,} pages in a row are without a key")
        return part

    def asks(self, token: str | None) -> str | None:
        """This token, of the next page. Raise if that page was asked for before."""
        if hash(token) in self._asked:
            raise Contradiction("two pages say that it goes on at the same place")
        self._asked.add(hash(token))
        return token


def _by_folder(key: str) -> bytes:
    return key.encode().replace(b"/", b"\0")


def list_objects(ask: Ask, prefix: str) -> Iterator[Item]:
    """All objects, in the server's order. Raise Contradiction if that cannot be all of them."""
    course = _Course()
    is_over = threading.Event()
    pool = ThreadPoolExecutor(RANGES + 1, "list")  # and the second page
    try:
        folders: Future[list[str]] | None = pool.submit(_folders, ask, is_over)
        part = course.go_on(_page(ask))
        ahead = _Ahead(ask, pool, is_over, [], "")
        while True:
            taken, folder = None, ahead.folder
            for at, item in enumerate(part.items):
                key = item["Key"]
                # The folder's own marker, if there is one, is before what was asked for.
                if folder is not None and key.startswith(folder) and key != folder:
                    taken, folder = ahead.take(part, at), ahead.folder
                    if taken is not None:
                        break
                yield item
            if taken is None and part.token is None:
                return
            if taken is not None:
                part = course.go_on(taken, is_met=True)
                continue
            if folders is None:
                part = course.go_on(_page(ask, ContinuationToken=course.asks(part.token)))
                continue
            coming = pool.submit(_page, ask, ContinuationToken=course.asks(part.token))
            both: list[Future[Any]] = [folders, coming]
            wait(both, return_when=FIRST_COMPLETED)
            if folders.done():
                known = folders.result()
                ahead = _Ahead(ask, pool, is_over, split(known, part.items, prefix), max(known, default=""))
                folders = None
            part = course.go_on(coming.result())
    finally:
        is_over.set()
        pool.shutdown(cancel_futures=True)


def split(folders: Sequence[str], page: Sequence[Item], prefix: str) -> list[str]:
    """The folders behind a page at which ranges of about as many objects begin."""
    if not page:
        return []
    last = encode_key(page[-1]["Key"])
    left = [folder for folder in folders if encode_key(folder) > last]
    in_page = len({item["Key"][len(prefix) :].partition("/")[0] for item in page})
    pages = min(max(len(left) / in_page / RANGES, 1.0), PAGES_MOST)
    return left[:: max(1, int(FILL * pages * in_page))]


class _Ahead:
    """The ranges that are listed ahead: the next one first."""

    def __init__(
        self,
        ask: Ask,
        pool: ThreadPoolExecutor,
        is_over: threading.Event,
        begins: Sequence[str],
        last_folder: str,
    ) -> None:
        self._ask, self._pool, self._is_over, self._last_folder = ask, pool, is_over, last_folder
        self._to_come = pairwise([*begins, None])
        self._asked: deque[tuple[str, Future[_Part]]] = deque()
        for _ in range(RANGES):
            self._ask_next()

    @property
    def folder(self) -> str | None:
        """Where the next range begins."""
        return self._asked[0][0] if self._asked else None

    def take(self, part: _Part, at: int) -> _Part | None:
        """The next range, if it begins with what is in this part from there on. It is gone in any case."""
        _, asked = self._asked.popleft()
        self._ask_next()
        if asked.exception():
            return None
        found, rest = asked.result(), part.items[at:]
        shortest = min(len(found.items), len(rest))
        if not shortest or found.items[:shortest] != rest[:shortest]:
            return None
        return found if found.token is not None or self._may_end(found, part, rest) else None

    def _may_end(self, found: _Part, part: _Part, rest: list[Item]) -> bool:
        """Whether it is true that nothing follows a range: all that is known to follow must be in it."""
        if len(found.items) == len(rest):
            return part.token is None
        return len(found.items) > len(rest) and found.items[-1]["Key"] >= self._last_folder

    def _ask_next(self) -> None:
        begin, end = next(self._to_come, (None, None))
        if begin is not None:
            self._asked.append((begin, self._pool.submit(self._read, begin, end)))

    def _read(self, begin: str, end: str | None) -> _Part:
        course = _Course()
        part = course.go_on(_page(self._ask, StartAfter=begin))
        items = list(part.items)
        for _ in range(PAGES_MOST - 1):
            is_past = end is not None and any(item["Key"].startswith(end) for item in part.items)
            if is_past or part.token is None or self._is_over.is_set():
                break
            part = course.go_on(_page(self._ask, ContinuationToken=course.asks(part.token)))
            items += part.items
        return _Part(items, part.token)


def _page(ask: Ask, **where: str | None) -> _Part:
    told = ask(**where)
    return _Part(list(told.get("Contents", ())), _token(told))


def _token(told: Mapping[str, Any]) -> str | None:
    """What to ask for the next page; None: this is the last one."""
    if not told.get("IsTruncated"):
        return None
    token: str | None = told.get("NextContinuationToken")
    if not token:
        raise Contradiction("it goes on, and does not say where")
    return token


def _folders(ask: Ask, is_over: threading.Event) -> list[str]:
    """The folders right below the prefix. If they cannot be had, nothing is listed ahead."""
    found: list[str] = []
    where: dict[str, str] = {}
    for _ in range(FOLDER_PAGES_MOST):
        try:
            told = ask(Delimiter="/", **where)
            token = _token(told)
        except Exception:
            return []
        found += [folder["Prefix"] for folder in told.get("CommonPrefixes", ())]
        if not token or is_over.is_set():
            break
        where = {"ContinuationToken": token}
    return found


def take_items_first(events: Any) -> None:
    """Take the objects out of a listing before botocore parses it.

    It does so twice: one of its handlers, of before-parse.s3.*, looks for an error in every answer. What is
    registered for any service is called before that one; if it were not, a page would take longer, no more.
    """

    def take_items(**answer: Any) -> None:
        _take_items(**answer)

    events.register("before-parse.*.ListObjectsV2", take_items)


def _take_items(
    operation_model: Any, response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: object
) -> None:
    if operation_model.name != "ListObjectsV2":
        return
    body = decode_key(response_dict["body"])  # whatever bytes are in it: botocore says what is wrong
    begin, end = body.find("<Contents>"), body.rfind("</Contents>") + len("</Contents>")
    part = body[begin:end].replace("&quot;", '"')  # the etag's, in every item
    items, count = _ITEM.findall(part), part.count("<Contents>")
    if not items or len(items) != count or "<!" in body:  # botocore may know what this is
        return
    is_dense = part.count("</Contents><Contents>") == count - 1
    response_dict["body"] = encode_key(body[:begin] + body[end:] if is_dense else _ITEM.sub("", body))
    if "&" in part:
        items = [(unescape(key), unescape(etag), size) for key, etag, size in items]
    customized_response_dict["Contents"] = [
        {"Key": key, "ETag": etag, "Size": int(size)} for key, etag, size in items
    ]
