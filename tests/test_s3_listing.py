"""A listing is what the server says page by page, whatever else it is asked on the way."""

import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stager.sources.s3 import listing as s3_listing
from stager.sources.s3.listing import PAGES_MOST, RANGES, Ask, Contradiction, list_objects, split

Keys = list[str]


class Server:
    """Keys in order, in pages of a few. `after`: where it begins a listing behind a key."""

    def __init__(self, keys: Keys, page: int, after: Callable[[Keys, str], int] = bisect_right) -> None:
        self.keys, self.page, self.after = keys, page, after
        self.pages = self.ranges = 0
        self.told_folders = threading.Event()

    def ask(
        self, Delimiter: str = "", StartAfter: str = "", ContinuationToken: str | None = None
    ) -> Mapping[str, Any]:
        if Delimiter:
            folders = dict.fromkeys(key.partition("/")[0] for key in self.keys if "/" in key)
            self.told_folders.set()
            return {"CommonPrefixes": [{"Prefix": f"{name}/"} for name in folders]}
        self.pages += 1
        self.ranges += bool(StartAfter)
        if ContinuationToken:
            self.told_folders.wait(5)
            time.sleep(0.001)
        start = self.after(self.keys, StartAfter) if StartAfter else int(ContinuationToken or 0)
        end = start + self.page
        items = [{"Key": key, "ETag": "e", "Size": len(key)} for key in self.keys[start:end]]
        # Some servers give a token with the last page, too.
        return {"Contents": items, "IsTruncated": end < len(self.keys), "NextContinuationToken": str(end)}

    def listed(self) -> Keys:
        return [item["Key"] for item in list_objects(self.ask, "")]


names = st.text("ab-./", min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(st.sets(names, max_size=120), st.integers(1, 7))
def test_all_keys_come_once_and_in_order_whatever_their_folders(keys: set[str], page: int) -> None:
    in_order = sorted(keys)
    assert Server(in_order, page).listed() == in_order


IN_FOLDERS = [f"{number // 10:03}/{number:05}" for number in range(3000)]


@pytest.mark.parametrize(
    "after",
    [
        lambda keys, key: 0,  # it does not know what that is
        lambda keys, key: bisect_right(keys, key) + 1,
        lambda keys, key: max(0, bisect_right(keys, key) - 1),
        lambda keys, key: len(keys),
    ],
)
def test_a_server_that_begins_elsewhere_is_not_believed(after: Callable[[Keys, str], int]) -> None:
    server = Server(IN_FOLDERS, 100, after)
    assert server.listed() == IN_FOLDERS
    assert server.ranges > RANGES


def test_a_server_without_such_requests_is_asked_page_by_page() -> None:
    server = Server(IN_FOLDERS, 100)
    ask = server.ask

    def refuse(**where: Any) -> Mapping[str, Any]:
        server.told_folders.set()
        if where.keys() - {"ContinuationToken"}:
            raise OSError("not implemented")
        return ask(**where)

    assert [item["Key"] for item in list_objects(refuse, "")] == IN_FOLDERS
    assert server.pages == 30


Page = dict[str, Any]


def page_of(keys: Iterable[str], token: str | None = None, is_truncated: bool | None = None) -> Page:
    items = [{"Key": key, "ETag": "e", "Size": 1} for key in keys]
    more = token is not None if is_truncated is None else is_truncated
    return {"Contents": items, "IsTruncated": more} | ({"NextContinuationToken": token} if token else {})


def listing_of(pages: Mapping[str | None, Page], asked: list[str | None]) -> Ask:
    """A server that has these pages, by their tokens, and no others."""

    def ask(ContinuationToken: str | None = None, **where: Any) -> Mapping[str, Any]:
        if where:
            raise OSError("not implemented")
        asked.append(ContinuationToken)
        return pages[ContinuationToken]

    return ask


IN_CIRCLES: dict[str, tuple[dict[str | None, Page], str]] = {
    "the same page": ({None: page_of("a", "1"), "1": page_of("b", "1")}, "the same place"),
    "three pages": (
        {None: page_of("ab", "1"), "1": page_of("cd", "2"), "2": page_of("ef", "3"), "3": page_of("gh", "1")},
        "the same place",
    ),
    "other tokens": (
        {None: page_of("ab", "1"), "1": page_of("cd", "2"), "2": page_of("ab", "3"), "3": page_of("cd", "4")},
        "comes after",
    ),
    "in a folder": (
        {None: page_of(["x/a", "x/b"], "1"), "1": page_of(["x/c"], "2"), "2": page_of(["x/a"], "3")},
        "comes after",
    ),
    "one key": ({None: page_of("a", "1"), "1": page_of("a", "2")}, "comes after"),
    "no token": ({None: page_of("abc", "1"), "1": page_of("def", is_truncated=True)}, "does not say where"),
    "no token at first": ({None: page_of("abc", is_truncated=True)}, "does not say where"),
    "both orders in turn": (
        {
            None: page_of(["a/1"], "1"),
            "1": page_of(["a-b"], "2"),  # folder by folder
            "2": page_of(["c-d"], "3"),
            "3": page_of(["c/e"], "4"),  # and now by bytes
            "4": page_of(["z"]),
        },
        "comes after",
    ),
}


@pytest.mark.parametrize("name", IN_CIRCLES)
def test_a_listing_that_contradicts_itself_is_an_error_at_once(name: str) -> None:
    pages, why = IN_CIRCLES[name]
    asked: list[str | None] = []
    with pytest.raises(Contradiction, match=why):
        list(list_objects(listing_of(pages, asked), ""))
    assert len(asked) <= len(pages)


def test_pages_without_a_key_are_no_circle_unless_they_never_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_listing, "EMPTY_PAGES_MOST", 20)
    empty: dict[str | None, Page] = {str(number): page_of("", str(number + 1)) for number in range(1, 22)}
    some = {key: empty[key] for key in list(empty)[:19]} | {"20": page_of("z")}
    found = list_objects(listing_of({None: page_of("a", "1")} | some, []), "")
    assert [item["Key"] for item in found] == ["a", "z"]
    with pytest.raises(Contradiction, match="without a key"):
        list(list_objects(listing_of({None: page_of("a", "1")} | empty, []), ""))


def test_folder_by_folder_is_an_order_too() -> None:
    keys = ["a/1", "a/b/2", "a/b-c", "a-b", "a.c", "a0"]
    pages: dict[str | None, Page] = {
        str(at or "") or None: page_of([key], str(at + 1) if at + 1 < len(keys) else None)
        for at, key in enumerate(keys)
    }
    assert [item["Key"] for item in list_objects(listing_of(pages, []), "")] == keys


class LyingAhead(Server):
    """Ranges that were asked for ahead end too early, and say that this was all."""

    def ask(self, **where: Any) -> Mapping[str, Any]:
        told = super().ask(**where)
        if "StartAfter" not in where:
            return told
        return {"Contents": told["Contents"][: self.of_range], "IsTruncated": False}

    of_range = 1


@pytest.mark.parametrize("of_range", [1, 7, 50, 100])
def test_a_range_that_ends_before_the_page_it_begins_in_is_not_believed(of_range: int) -> None:
    server = LyingAhead(IN_FOLDERS, 100)
    server.of_range = of_range
    found = server.listed()
    assert server.ranges > 1
    assert found == IN_FOLDERS


def test_ranges_cost_few_requests_more() -> None:
    server = Server(IN_FOLDERS, 100)
    assert server.listed() == IN_FOLDERS
    assert server.ranges >= 5
    assert server.pages <= 30 * 1.5


def test_who_stops_early_leaves_no_thread() -> None:
    before = threading.active_count()
    coming = list_objects(Server(IN_FOLDERS, 100).ask, "")
    for _ in range(500):
        next(coming)
    coming.close()
    assert threading.active_count() == before


def test_a_marker_of_a_folder_is_no_obstacle() -> None:
    keys = sorted([*IN_FOLDERS, *(f"{number:03}/" for number in range(300))])
    server = Server(keys, 100)
    assert server.listed() == keys
    assert server.pages <= 33 * 1.5


def test_ranges_have_a_page_each_or_more_if_there_is_enough_for_all() -> None:
    def begins(folders: int) -> list[str]:
        page = [{"Key": f"train/{number // 10:05}/x{number}"} for number in range(1000)]
        return split([f"train/{number:05}/" for number in range(folders)], page, "train/")

    assert begins(50) == []
    assert begins(300) == ["train/00100/", "train/00190/", "train/00280/"]
    assert len(begins(10_000)) == pytest.approx(9900 / (0.9 * PAGES_MOST * 100), abs=1)
