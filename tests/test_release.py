"""A release is one version in every place, and nothing else gets a tag."""

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from release import Commit, look, problems

READY = Commit("1.2.3", "1.2.3", "1.2.3 (2026-11-18)", (), frozenset({"v1.2.2"}))


def test_one_version_in_every_place_is_ready() -> None:
    assert problems("1.2.3", READY) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"packaged": "1.2.2"}, "pyproject.toml says 1.2.2"),
        ({"imported": "1.2.2"}, "stager/__init__.py says 1.2.2"),
        ({"heading": "1.2.3 (unreleased)"}, "CHANGELOG.md begins with '1.2.3 (unreleased)'"),
        ({"heading": "Unreleased"}, "CHANGELOG.md begins with 'Unreleased'"),
        ({"heading": "1.2.30 (2026-11-18)"}, "CHANGELOG.md begins with '1.2.30 (2026-11-18)'"),
        ({"uncommitted": ("?? new.py",)}, "not committed: ?? new.py"),
        ({"tags": frozenset({"v1.2.3"})}, "the tag v1.2.3 is there already"),
    ],
)
def test_whatever_disagrees_is_told(change: dict[str, Any], said: str) -> None:
    (problem,) = problems("1.2.3", replace(READY, **change))
    assert problem.startswith(said)


@pytest.mark.parametrize("version", ["", "1.2", "v1.2.3", "1.2.3; rm"])
def test_only_three_numbers_are_a_version(version: str) -> None:
    assert len(problems(version, READY)) == 1


def test_a_checkout_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / "stager").mkdir()
    (tmp_path / "stager/__init__.py").write_text('__version__ = "1.2.3"\n')
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.3"\n')
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 1.2.3 (2026-11-18)\n\n## 1.2.2 (2026-01-01)\n")

    def git(*arguments: str) -> None:
        names = ("-c", "user.name=Ann", "-c", "user.email=ann@localhost")
        subprocess.run(["git", *names, *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    git("add", ".")
    git("commit", "-m", "all")
    git("tag", "v1.2.2")
    assert look(tmp_path) == READY
    (tmp_path / "new.py").touch()
    git("tag", "v1.2.3")
    assert problems("1.2.3", look(tmp_path)) == [
        "the tag v1.2.3 is there already",
        "not committed: ?? new.py",
    ]
