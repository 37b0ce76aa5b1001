"""The short way to read a page of a listing: what an XML parser says, in linear time, or not at all."""

import re
import time
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stager.sources.s3.listing import _take_items

BOUND_S = 5.0  # it takes milliseconds; what backtracks takes 40 s and more
LISTS = SimpleNamespace(name="ListObjectsV2")


def taken(body: str) -> tuple[list[dict[str, Any]] | None, str]:
    """The items that were taken out, or None, and what is left for botocore."""
    response: dict[str, Any] = {"body": body.encode()}
    own: dict[str, Any] = {}
    _take_items(LISTS, response, own)
    return own.get("Contents"), response["body"].decode()


def parsed(body: str) -> list[dict[str, Any]] | None:
    """What an XML parser says; None: this is no XML."""
    try:
        items = ElementTree.fromstring(body).findall("Contents")  # noqa: S314
    except ElementTree.ParseError:
        return None
    return [
        {
            "Key": item.findtext("Key"),
            "ETag": item.findtext("ETag"),
            "Size": int(item.findtext("Size") or -1),
        }
        for item in items
    ]


def listing(*items: str, between: str = "") -> str:
    return f"<ListBucketResult><IsTruncated>false</IsTruncated>{between.join(items)}</ListBucketResult>"


def contents(*parts: str) -> str:
    return f"<Contents>{''.join(parts)}</Contents>"


def tag(name: str, text: str) -> str:
    return f"<{name}>{escape(text)}</{name}>"


HOSTILE = {
    "no etag": lambda number: contents(tag("Key", f"a/{number}"), tag("Size", "1")),
    "no key": lambda number: contents(tag("ETag", "e"), tag("Size", "1")),
    "no size": lambda number: contents(tag("Key", f"a/{number}"), tag("ETag", "e")),
    "no end": lambda number: f"<Contents>{tag('Key', 'a')}{tag('ETag', 'e')}{tag('Size', '1')}",
    "only begins": lambda number: "<Contents>",
    "keys upon keys": lambda number: contents(tag("Key", "a") * 100),
    "other tags": lambda number: contents(tag("X", "") * 300, tag("Key", "a")),
    "spaces": lambda number: contents(" " * 1000, tag("Key", "a"), " " * 1000),
    "open tags": lambda number: contents("<X>" * 300),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_page_of_a_thousand_odd_items_takes_no_time(name: str) -> None:
    body = listing(*(HOSTILE[name](number) for number in range(1000)))
    began = time.perf_counter()
    items, left = taken(body)
    assert time.perf_counter() - began < BOUND_S
    assert (items, left) == (None, body)  # botocore's way


texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"], exclude_characters="￾￿"))
numbers = st.integers(0, 10**12).map(str)
others = st.lists(
    st.sampled_from([tag("LastModified", "2026"), "\n ", tag("StorageClass", "S"), tag("ChecksumType", "")]),
    max_size=3,
).map("".join)
items_as_aws_has_them = st.builds(
    lambda gaps, key, etag, size: contents(
        gaps[0], tag("Key", key), gaps[1], tag("ETag", etag), gaps[2], tag("Size", size), gaps[3]
    ),
    st.tuples(others, others, others, others),
    texts,
    texts,
    numbers,
)
parts = st.one_of(
    st.builds(tag, st.sampled_from(["Key", "ETag", "Size", "Owner", "Contents"]), st.one_of(texts, numbers)),
    st.sampled_from(["<Owner><Key>k</Key></Owner>", "<Key/>", "<!--", "-->", "<Contents>", "</Contents>"]),
)
odd_items = st.lists(parts, max_size=6).map(lambda found: contents(*found))


@settings(deadline=None)
@given(st.lists(items_as_aws_has_them, min_size=1), st.sampled_from(["", "\n "]))
def test_what_aws_says_is_read_as_an_xml_parser_reads_it(items: list[str], between: str) -> None:
    body = listing(*items, between=between)
    found, left = taken(body)
    assert found is not None
    assert [(item["Key"] or None, item["Size"]) for item in found] == [
        (item["Key"] or None, item["Size"]) for item in parsed(body) or ()
    ]
    assert [item["ETag"] or None for item in found] == [item["ETag"] or None for item in parsed(body) or ()]
    assert re.sub(r"\s", "", left) == listing()


@settings(deadline=None, max_examples=300)
@given(st.lists(st.one_of(items_as_aws_has_them, odd_items), max_size=5))
def test_whatever_is_taken_is_what_an_xml_parser_says(items: list[str]) -> None:
    body = listing(*items)
    found, left = taken(body)
    if found is None:
        assert left == body
        return
    expected = parsed(body)
    if expected is not None:
        none = [{**item, "Key": item["Key"] or "", "ETag": item["ETag"] or ""} for item in expected]
        assert found == none
    else:
        assert parsed(left) is None  # what is broken is left to botocore, who says so
