"""A listing is what the server says page by page, whatever else it is asked on the way."""

import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from botocore.exceptions import PaginationError
from hypothesis import given, settings
from hypothesis import strategies as st

from stager.sources.s3_listing import PAGES_MOST, RANGES, list_objects, split

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


def test_a_server_that_answers_the_same_page_for_ever_is_given_up() -> None:
    page = {"Contents": [{"Key": "a"}], "IsTruncated": True, "NextContinuationToken": "1"}
    with pytest.raises(PaginationError):
        list(list_objects(lambda **where: page, ""))


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
