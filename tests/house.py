"""Counts the house, as docs/ARCHITECTURE.md has it: `python tests/house.py [REVISION] [--bare]`."""

import ast
import io
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
PACKAGES: Final = ("stager", "service", "clients")
FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)


def public_functions(tree: ast.Module) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef, str]]:
    """Functions of the module, and methods of its public classes with the names of these."""
    for node in tree.body:
        if isinstance(node, FUNCTIONS) and not node.name.startswith("_"):
            yield node, ""
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            for inner in node.body:
                if isinstance(inner, FUNCTIONS) and not inner.name.startswith("_"):
                    yield inner, node.name


def methods(tree: ast.Module) -> dict[str, set[str]]:
    """The methods of every class, by its name."""
    return {
        node.name: {inner.name for inner in node.body if isinstance(inner, FUNCTIONS)}
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }


def bases(tree: ast.Module) -> dict[str, list[str]]:
    """The names of every class's bases, by its name."""
    return {
        node.name: [ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases]
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }


def has_none(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether it lacks a docstring: a stub lacks none, nor does an overload."""
    if ast.get_docstring(function) or any("overload" in ast.unparse(of) for of in function.decorator_list):
        return False
    (*_, last) = function.body
    return not (
        isinstance(last, ast.Expr) and isinstance(last.value, ast.Constant) and last.value.value is ...
    )


def told(root: Path) -> tuple[dict[str, str], list[str]]:
    """The rows of the table; and the functions without a docstring, by name."""
    paths = sorted(path for name in PACKAGES for path in (root / name).rglob("*.py"))
    trees = {path: ast.parse(path.read_text()) for path in paths}
    lines = {path: len(path.read_text().splitlines()) for path in paths}
    folders: dict[Path, int] = {}
    for path in paths:
        folders[path.parent] = folders.get(path.parent, 0) + (path.name != "__init__.py")
    protocols = {
        name: made
        for tree in trees.values()
        for name, made in methods(tree).items()
        if "Protocol" in bases(tree)[name]
    }
    promised = set().union(*protocols.values())
    inherited = {name: made for tree in trees.values() for name, made in methods(tree).items()}
    public, bare = 0, []
    for path, tree in trees.items():
        above = bases(tree)
        for function, owner in public_functions(tree):
            public += 1
            is_override = bool(owner) and (
                function.name in promised
                or any(function.name in inherited.get(base, ()) for base in above.get(owner, ()))
            )
            if has_none(function) and not is_override:
                bare.append(
                    f"{path.relative_to(root)}:{function.lineno} {owner}{'.' * bool(owner)}{function.name}"
                )
    fullest, longest = max(folders, key=lambda of: folders[of]), max(lines, key=lambda of: lines[of])
    counts = [count for count in folders.values() if count]
    rows = {
        "Python files of the three packages": str(len(paths)),
        "folders with Python files": str(len(counts)),
        "files a folder, median and most, without `__init__`": (
            f"{statistics.median(counts):g}, {max(counts)} (`{fullest.relative_to(root)}/`)"
        ),
        "folders with more than ten": ", ".join(
            f"`{of.relative_to(root)}` {count}" for of, count in sorted(folders.items()) if count > 10
        ),
        "lines of a file, median": f"{statistics.median(lines.values()):g}",
        "longest file": f"{max(lines.values())} (`{longest.relative_to(root)}`)",
        "public functions": str(public),
        "of these without a docstring": f"{len(bare)} ({len(bare) / public:.0%})",
    }
    return rows, bare


def main() -> None:
    revisions = [word for word in sys.argv[1:] if not word.startswith("-")]
    with tempfile.TemporaryDirectory() as folder:
        root = ROOT
        if revisions:
            packed = subprocess.check_output(["git", "archive", revisions[0], *PACKAGES], cwd=ROOT)
            with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
                tar.extractall(folder, filter="data")
            root = Path(folder)
        rows, bare = told(root)
    print("\n".join(f"| {name} | {value} |" for name, value in rows.items()))
    if "--bare" in sys.argv:
        print("\n".join(bare))


if __name__ == "__main__":
    main()
