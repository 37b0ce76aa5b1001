"""docs/MESSY.md, row by row: what becomes of the folders, files and tables that people really have."""

import json
import re
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pytest

from images import IS_SIMD, Pixels
from messy import (
    CROP,
    DEPTHS,
    RESIZE,
    WEBP,
    Link,
    by_image_folder,
    by_pillow,
    failing_kinds,
    pixel_kinds,
    put,
    scan,
)
from messy_folders import FOLDERS, IMAGES, REFUSED, TABLES, Found
from running import Place
from sets import ask_catalog, manifest_at, staged
from stager.errors import UsageError
from stager.reader.samples.manifest import Manifest
from stager.reader.values import encode_key

PIXELS, FAILS = pixel_kinds(), failing_kinds()
LEFT_OUT: Final = {  # beside all that
    "top.jpg": PIXELS["plain"][1],
    "kinds/.hidden.jpg": PIXELS["plain"][1],
    "kinds/iphone.HEIC": b"",
    "linked": Link("deep"),
    "elsewhere": Link("/"),
}
TELLS: Final = "left out: 1 link that leads out, 1 image in no folder, 1 file that is no image: 1 .heic"
PAGE: Final = Path(__file__).parent.parent / "docs" / "MESSY.md"
ROW: Final = re.compile(r"\| .* \| (?P<gives>.*) \|(?P<image_folder>.*)\| `(?P<test>test_[^`]*)` \|")
# Of 255, in the mean: docs/DECODERS.md. pillow-simd, with which we compare, is a level off here and there.
TOLERANCE: Final = 0.15 if IS_SIMD else 0.05


class Prefetched(NamedTuple):
    place: Place
    told: dict[str, Any]
    stderr: str
    manifest: Manifest
    pixels: dict[str, Pixels]


@pytest.fixture(scope="module")
def prefetched(tmp_path_factory: pytest.TempPathFactory) -> Prefetched:
    """All kinds in one folder, and one real `stager prefetch` of it."""
    place = Place(tmp_path_factory.mktemp("messy")).configure("")
    kinds = {key: data for key, data, *_ in [*PIXELS.values(), *FAILS.values()]}
    source = put(place.root / "source", {**kinds, **LEFT_OUT})
    sizes = "--resize", str(RESIZE), "--crop", str(CROP)
    done = place.run("prefetch", str(source), *sizes, "--json")
    assert done.returncode == 3, done.stderr
    told = json.loads(done.stdout)
    name = told["dataset"]
    return Prefetched(place, told, done.stderr, manifest_at(place, name), staged(place, name))


def far(one: Pixels, other: Pixels) -> float:
    return float(np.abs(one.astype(int) - other).mean())


def test_all_kinds_are_staged_by_one_prefetch(prefetched: Prefetched) -> None:
    lost = 0 if WEBP else 2
    assert prefetched.told["staged"] == len(PIXELS) + 1 - lost  # one comes twice, by the link
    assert prefetched.told["failed"] == len(FAILS) + lost
    assert TELLS in prefetched.stderr
    tops = {key.split("/")[0] for key, *_ in [*PIXELS.values(), *FAILS.values()]} | {"linked"}
    assert prefetched.told["classes"] == sorted(tops)


@pytest.mark.parametrize("kind", PIXELS)
def test_pixels(kind: str, prefetched: Prefetched) -> None:
    key, data = PIXELS[kind]
    if not data:
        pytest.skip("Pillow has no WebP here")
    assert far(prefetched.pixels[key], by_pillow(data, DEPTHS.get(kind, 16))) < TOLERANCE
    manifest = prefetched.manifest
    (place,) = [place for place in range(len(manifest)) if manifest.key(place) == key]
    assert manifest.classes[manifest.labels[place]] == key.split("/")[0]
    is_like_image_folder = far(prefetched.pixels[key], by_image_folder(data)) < TOLERANCE
    assert ("other pixels" in cells()[f"test_pixels[{kind}]"]["image_folder"]) is not is_like_image_folder


@pytest.mark.parametrize("kind", FAILS)
def test_fails(kind: str, prefetched: Prefetched) -> None:
    key, _, reason = FAILS[kind]
    listed = dict(ask_catalog(prefetched.place, "SELECT key, reason FROM failures"))
    assert listed[encode_key(key)] == reason
    assert key not in prefetched.pixels
    assert cells()[f"test_fails[{kind}]"]["gives"].startswith(f"fails: `{reason}`")


@pytest.mark.parametrize("kind", FOLDERS)
def test_folder(kind: str, tmp_path: Path) -> None:
    folder = FOLDERS[kind]
    put(tmp_path, {"outside/1.jpg": PIXELS["plain"][1]})
    source = put(tmp_path / "source", folder.files)
    manifest, line = scan(source, tmp_path / "m", "folder", {}, {})
    assert (found_in(manifest), line) == (folder.found, folder.line)
    check_told(f"test_folder[{kind}]", folder.found, folder.line)


@pytest.mark.parametrize("kind", TABLES)
def test_table(kind: str, tmp_path: Path) -> None:
    table = TABLES[kind]
    source = put(tmp_path / "source", {**IMAGES, "t.csv": table.csv})
    recipe = {"path": table.path} if table.path else {}
    options = {"table": "t.csv", "label": "label"} | ({"split": table.split} if table.split else {})
    manifest, line = scan(source, tmp_path / "m", "table", recipe, options)
    assert (found_in(manifest), line) == (table.found, table.line)
    check_told(f"test_table[{kind}]", table.found, table.line)


@pytest.mark.parametrize("kind", REFUSED)
def test_refused(kind: str, tmp_path: Path) -> None:
    csv, said = REFUSED[kind]
    source = put(tmp_path / "source", {**IMAGES, "t.csv": csv})
    with pytest.raises(UsageError, match=said) as raised:
        scan(source, tmp_path / "m", "table", {}, {"table": "t.csv", "label": "label"})
    assert raised.value.hint
    assert f"`{said}`" in cells()[f"test_refused[{kind}]"]["gives"]


def found_in(manifest: Manifest) -> Found:
    return [
        (manifest.splits[manifest.split_of[at]], manifest.classes[manifest.labels[at]], manifest.key(at))
        for at in range(len(manifest))
    ]


def check_told(test: str, found: Found, line: str) -> None:
    """The row has every class, every split, and the line in full."""
    gives = cells()[test]["gives"]
    for name in {split for split, _, _ in found if split} | {label for _, label, _ in found}:
        assert f"`{name}`" in gives
    assert f"`{line}`" in gives if line else "left out:" not in gives


def cells() -> dict[str, dict[str, str]]:
    """The rows of the page, by their test."""
    rows = [row.groupdict() for line in PAGE.read_text().splitlines() if (row := ROW.fullmatch(line))]
    assert len(rows) == len({row["test"] for row in rows})
    return {row["test"]: row for row in rows}


def test_every_row_of_the_page_is_a_test_and_every_test_a_row() -> None:
    tests = {
        *(f"test_pixels[{kind}]" for kind in PIXELS),
        *(f"test_fails[{kind}]" for kind in FAILS),
        *(f"test_folder[{kind}]" for kind in FOLDERS),
        *(f"test_table[{kind}]" for kind in TABLES),
        *(f"test_refused[{kind}]" for kind in REFUSED),
        test_all_kinds_are_staged_by_one_prefetch.__name__,
    }
    assert set(cells()) == tests
