"""The objects below a prefix of a bucket: pages of them, several ranges side by side.

A page says where the next one begins, so they come one after the other: a million keys take minutes. But a
listing may begin behind any key. So its folders are asked for beside the first page, and if it turns out to
be a long one, groups of them are listed ahead. A range that was is taken only if it begins with the very
object that the one before found there: what the server says page by page is what counts, whatever it makes
of the rest.
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

from botocore import handlers
from botocore.exceptions import PaginationError

from stager.model import decode_key, encode_key

Item = dict[str, Any]  # Key, ETag, Size
Ask = Callable[..., Mapping[str, Any]]  # for a page of the bucket and its prefix

RANGES: Final = 8  # that are listed ahead
PAGES_MOST: Final = 3  # of a range, before its turn comes
FILL: Final = 0.9  # of its pages: a folder more would often take one more
FOLDER_PAGES_MOST: Final = 32

_ITEM: Final = re.compile(
    r"<Contents>.*?<Key>([^<]*)</Key>.*?<ETag>([^<]*)</ETag>.*?<Size>(\d+)</Size>.*?</Contents>", re.S
)


@dataclass(frozen=True, slots=True)
class _Part:
    """Some pages that follow each other, and what to ask for the next; None: there is none."""

    items: list[Item]
    token: str | None


def list_objects(ask: Ask, prefix: str) -> Iterator[Item]:
    """All objects, in the server's order."""
    is_over = threading.Event()
    pool = ThreadPoolExecutor(RANGES + 1, "list")  # and the second page
    try:
        folders: Future[list[str]] | None = pool.submit(_folders, ask, is_over)
        part = _page(ask)
        ahead = _Ahead(ask, pool, is_over, [])
        while True:
            taken, folder = None, ahead.folder
            for item in part.items:
                key = item["Key"]
                # The folder's own marker, if there is one, is before what was asked for.
                if folder is not None and key.startswith(folder) and key != folder:
                    taken, folder = ahead.take(item), ahead.folder
                    if taken is not None:
                        break
                yield item
            if taken is None and part.token is None:
                return
            if folders is None:
                part = taken or _page(ask, ContinuationToken=part.token)
                continue
            coming = pool.submit(_page, ask, ContinuationToken=part.token)
            both: list[Future[Any]] = [folders, coming]
            wait(both, return_when=FIRST_COMPLETED)
            if folders.done():
                ahead = _Ahead(ask, pool, is_over, split(folders.result(), part.items, prefix))
                folders = None
            part = coming.result()
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
        self, ask: Ask, pool: ThreadPoolExecutor, is_over: threading.Event, begins: Sequence[str]
    ) -> None:
        self._ask, self._pool, self._is_over = ask, pool, is_over
        self._to_come = pairwise([*begins, None])
        self._asked: deque[tuple[str, Future[_Part]]] = deque()
        for _ in range(RANGES):
            self._ask_next()

    @property
    def folder(self) -> str | None:
        """Where the next range begins."""
        return self._asked[0][0] if self._asked else None

    def take(self, item: Item) -> _Part | None:
        """The next range, if it begins with this object. It is gone in any case."""
        _, asked = self._asked.popleft()
        self._ask_next()
        part = None if asked.exception() else asked.result()
        return part if part is not None and part.items[:1] == [item] else None

    def _ask_next(self) -> None:
        begin, end = next(self._to_come, (None, None))
        if begin is not None:
            self._asked.append((begin, self._pool.submit(self._read, begin, end)))

    def _read(self, begin: str, end: str | None) -> _Part:
        part = _page(self._ask, StartAfter=begin)
        items = list(part.items)
        for _ in range(PAGES_MOST - 1):
            is_past = end is not None and any(item["Key"].startswith(end) for item in part.items)
            if is_past or part.token is None or self._is_over.is_set():
                break
            part = _page(self._ask, ContinuationToken=part.token)
            items += part.items
        return _Part(items, part.token)


def _page(ask: Ask, **where: str | None) -> _Part:
    told = ask(**where)
    return _Part(list(told.get("Contents", ())), _token(told, where))


def _token(told: Mapping[str, Any], where: Mapping[str, str | None]) -> str | None:
    """What to ask for the next page. Raise if it is this one again: such a listing never ends."""
    token: str | None = told.get("NextContinuationToken") if told.get("IsTruncated") else None
    if token and token == where.get("ContinuationToken"):
        raise PaginationError(message="The same next token was received twice")
    return token


def _folders(ask: Ask, is_over: threading.Event) -> list[str]:
    """The folders right below the prefix. If they cannot be had, nothing is listed ahead."""
    found: list[str] = []
    where: dict[str, str] = {}
    for _ in range(FOLDER_PAGES_MOST):
        try:
            told = ask(Delimiter="/", **where)
            token = _token(told, where)
        except Exception:
            return []
        found += [folder["Prefix"] for folder in told.get("CommonPrefixes", ())]
        if not token or is_over.is_set():
            break
        where = {"ContinuationToken": token}
    return found


def take_items_first(events: Any) -> None:
    """Take the objects out of a listing before botocore parses it.

    It does so twice: one of its handlers looks for an error in every answer, and is called before any that
    others can register. So it makes room for ours, and is called behind it.
    """
    for_errors = getattr(handlers, "_handle_200_error", None)

    def take_items(**answer: Any) -> None:
        _take_items(**answer)
        if for_errors is not None:
            for_errors(**answer)

    if for_errors is not None:
        events.unregister("before-parse.s3.*", for_errors)
    events.register_first("before-parse.s3.*", take_items)


def _take_items(
    operation_model: Any, response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: object
) -> None:
    if operation_model.name != "ListObjectsV2":
        return
    body = decode_key(response_dict["body"])  # whatever bytes are in it: botocore says what is wrong
    begin, end = body.find("<Contents>"), body.rfind("</Contents>") + len("</Contents>")
    part = body[begin:end].replace("&quot;", '"')  # the etag's, in every item
    items, count = _ITEM.findall(part), part.count("<Contents>")
    if begin < 0 or len(items) != count:  # botocore may know what this is
        return
    is_dense = part.count("</Contents><Contents>") == count - 1
    response_dict["body"] = encode_key(body[:begin] + body[end:] if is_dense else _ITEM.sub("", body))
    if "&" in part:
        items = [(unescape(key), unescape(etag), size) for key, etag, size in items]
    customized_response_dict["Contents"] = [
        {"Key": key, "ETag": etag, "Size": int(size)} for key, etag, size in items
    ]
