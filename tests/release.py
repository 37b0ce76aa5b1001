"""Whether this commit is the release that it is to be: `make release VERSION=0.1.0`.

One version is in pyproject.toml, in stager.__version__ and on top of CHANGELOG.md, with its day; nothing is
uncommitted, and the tag is not taken. CONTRIBUTING.md has the steps around it.
"""

import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSION = re.compile(r"\d+\.\d+\.\d+")
HEADING = re.compile(r"(?m)^## (.*)")


@dataclass(frozen=True, slots=True)
class Commit:
    """What the files and the repository say."""

    packaged: str  # the version in pyproject.toml
    imported: str  # and in stager/__init__.py
    heading: str  # the first of CHANGELOG.md
    uncommitted: tuple[str, ...]
    tags: frozenset[str]


def problems(version: str, commit: Commit) -> list[str]:
    """What keeps this commit from being that version."""
    if not VERSION.fullmatch(version):
        return [f"{version!r} is no version: say VERSION=1.2.3"]
    found = []
    if commit.packaged != version:
        found.append(f"pyproject.toml says {commit.packaged}")
    if commit.imported != version:
        found.append(f"stager/__init__.py says {commit.imported}")
    if not re.fullmatch(rf"{re.escape(version)} \(\d{{4}}-\d\d-\d\d\)", commit.heading):
        found.append(f"CHANGELOG.md begins with {commit.heading!r}: use '{version} (its day, as 2026-01-31)'")
    if f"v{version}" in commit.tags:
        found.append(f"the tag v{version} is there already")
    found += [f"not committed: {path}" for path in commit.uncommitted]
    return found


def look(root: Path) -> Commit:
    """The commit of a checkout."""
    imported = re.search(r'(?m)^__version__ = "(.*)"', (root / "stager/__init__.py").read_text())
    heading = HEADING.search((root / "CHANGELOG.md").read_text())
    return Commit(
        packaged=tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"],
        imported=imported[1] if imported else "nothing",
        heading=heading[1] if heading else "nothing",
        uncommitted=tuple(_git(root, "status", "--porcelain")),
        tags=frozenset(_git(root, "tag")),
    )


def _git(root: Path, *arguments: str) -> list[str]:
    return subprocess.run(
        ["git", *arguments], cwd=root, capture_output=True, text=True, check=True
    ).stdout.splitlines()


def main() -> None:
    found = problems(sys.argv[1] if len(sys.argv) > 1 else "", look(ROOT))
    for problem in found:
        print(f"release: {problem}", file=sys.stderr)
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
