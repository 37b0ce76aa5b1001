"""docs/ARCHITECTURE.md tells of files that are there, and of as many on a sample's way as it says."""

import re
from pathlib import Path

import house

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/ARCHITECTURE.md").read_text()
PACKAGES = ("stager/", "service/", "clients/")


def files_of_the_way() -> list[str]:
    """Those of its table, in its order, but for those in parentheses, which were met before."""
    table = PAGE[PAGE.index("### Counted") : PAGE.index("| | at 599f516")]
    found: list[str] = []
    for row in re.findall(r"(?m)^\| [^|]+\| ([^|]+)\|", table):
        package = folder = ""
        for name, colon in re.findall(r"`([^`]+)`(:?)", re.sub(r"\([^)]*\)", "", row)):
            if colon:
                package = name if name.startswith(PACKAGES) else package
                folder = name if name.startswith(PACKAGES) else package + name
            else:
                found.append(f"{name if name.startswith(PACKAGES) else folder + name}.py")
    return found


def test_the_way_of_a_sample_passes_the_files_that_it_says_and_as_many() -> None:
    files = files_of_the_way()
    assert [name for name in files if not (ROOT / name).is_file()] == []
    said = re.search(r"\| Python files on the way, by this table \|[^|]*\| (\d+) \|", PAGE)
    assert said
    assert int(said[1]) == len(set(files))


def test_every_file_that_it_names_is_there() -> None:
    named = set(re.findall(r"`((?:[a-z_0-9]+/)+[a-z_0-9]+\.(?:py|c))`", PAGE))
    places = ("", "stager/", "clients/", "service/")
    assert named
    gone = [name for name in named if not any((ROOT / place / name).is_file() for place in places)]
    assert gone == []


def test_the_house_is_counted() -> None:
    rows, bare = house.told(ROOT)
    for name in rows:
        assert f"| {name} |" in PAGE
    assert 0 < len(bare) < int(rows["public functions"]) / 10, "a docstring adds to the name"
