"""The recipes that keep what they get: the contract of recipes, for each."""

from collections.abc import Mapping

import numpy as np
import pytest

from recipe_contract import Given, RecipeContract
from stager.recipes import open_recipe


def given(*texts: bytes) -> Mapping[str, Given]:
    return {repr(text): ([memoryview(text)], ()) for text in texts}


class TestBytes(RecipeContract):
    spec = {"kind": "bytes"}
    other = {"kind": "text"}

    def good(self) -> Mapping[str, Given]:
        return given(b"\x00", bytes(range(256)), b"\xff\xfe")

    def bad(self) -> Mapping[str, Given]:
        return {}  # any bytes are bytes


class TestText(RecipeContract):
    spec = {"kind": "text"}
    other = {"kind": "json"}

    def good(self) -> Mapping[str, Given]:
        return given(b"a", "größer als 2".encode(), b"\n")

    def bad(self) -> Mapping[str, Given]:
        return given(b"\xff", "ä".encode()[:1], "ä".encode("utf-16"))


class TestJson(RecipeContract):
    spec = {"kind": "json"}
    other = {"kind": "bytes"}

    def good(self) -> Mapping[str, Given]:
        return given(b"{}", b'[1, 2.5, "\\u00e4", null]', b" 3 ")

    def bad(self) -> Mapping[str, Given]:
        return given(b"", b"{", b"{}{}", b"\xff", b"[" * 100_000)


@pytest.mark.parametrize("kind", ["bytes", "text", "json"])
def test_not_one_byte_changes(kind: str) -> None:
    raw = ' {"a": [1, "ä"]} \n'.encode()
    (array,) = open_recipe({"kind": kind}).prepare([memoryview(raw)], ()).values()
    assert array.tobytes() == raw
    assert array.dtype == np.uint8
