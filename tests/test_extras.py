"""What errors and pages tell to install is there. `make extras` asks pip whether it can be installed."""

import re
from pathlib import Path

import pytest

from extras import ROOT, known_extras

NAMED = re.compile(r"(?:\bstager|'\.)\[([a-z, ]+)\]")
PLACES = (
    "stager/**/*.py",
    "service/**/*.py",
    "clients/**/*.py",
    "examples/**/*.py",
    "docs/*.md",
    "systemd/*.md",
)
FILES = sorted(
    path
    for pattern in (*PLACES, "*.md", "Makefile", "pyproject.toml")
    for path in ROOT.glob(pattern)
    if NAMED.search(path.read_text())
)


def named(text: str) -> set[str]:
    return {extra.strip() for extras in NAMED.findall(text) for extra in extras.split(",")}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_extra_that_is_named_exists(path: Path) -> None:
    assert named(path.read_text()) <= known_extras()


def test_names_are_seen_in_errors_pages_and_the_makefile() -> None:
    assert named("pip install 'stager[service, torch]' or '.[dev]', not keys[a] or stager.toml") == {
        "service",
        "torch",
        "dev",
    }
    assert {path.suffix for path in FILES} == {".py", ".md", ".toml", ""}
