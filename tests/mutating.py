"""Seeded bugs, one after the other, in a copy: each must be caught by its gate. The list is in mutants.py.

    python tests/mutating.py [-k PART OF A NAME] [--quick]

Exit code 1 if a mutant survives, or its code has moved, or a gate fails without any mutant.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import cache_from_source
from pathlib import Path
from typing import Final

from mutants import MUTANTS, Mutant

ROOT: Final = Path(__file__).parent.parent
COPIED: Final = ("stager", "service", "clients", "tests", "pyproject.toml")
GATE_S: Final = 150.0
LAST_CHARS: Final = 1500  # of what pytest said
CAUGHT: Final = "caught"
NOT_TRIED: Final = "not tried"


def why_it_does_not_apply(mutant: Mutant, root: Path = ROOT) -> str:
    """'' if a mutant's code is where it was."""
    path = root / mutant.file
    count = path.read_text().count(mutant.old) if path.exists() else 0
    if count == 1 and mutant.old != mutant.new:
        return ""
    return f"{mutant.name!r}: its code is {count} times in {mutant.file}: it has moved, write the mutant anew"


class Copy:
    """The packages and their tests in a directory of their own."""

    def __init__(self, root: Path) -> None:
        self.root = root / "copy"
        self._temporary = root / "t"
        self.root.mkdir()
        for name in COPIED:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
            copy(ROOT / name, self.root / name)

    @contextmanager
    def mutated(self, mutant: Mutant) -> Iterator[None]:
        """The copy, with this bug in it."""
        path = self.root / mutant.file
        before = path.read_text()
        built = {made: made.read_bytes() for made in self._libraries()}
        try:
            self._write(path, before.replace(mutant.old, mutant.new))
            if path.suffix == ".c":
                self._compile(path)
            yield
        finally:
            self._write(path, before)
            for made in self._libraries():
                made.unlink()
            for made, code in built.items():
                made.write_bytes(code)

    def _libraries(self) -> list[Path]:
        return list((self.root / "stager").rglob("*.so"))

    @staticmethod
    def _write(path: Path, text: str) -> None:
        path.write_text(text)
        if path.suffix == ".py":  # what was compiled may be as long and of the same second
            Path(cache_from_source(str(path))).unlink(missing_ok=True)

    def _compile(self, path: Path) -> None:
        """Make the library anew that a source is of, without JPEGs, and have it be the only one there."""
        package = path.parent.parent
        name = ".".join(package.relative_to(self.root).parts)
        settings = tomllib.loads((self.root / "pyproject.toml").read_text())["tool"]["setuptools"]
        (sources,) = [m["sources"] for m in settings["ext-modules"] if m["name"] == f"{name}._native"]
        for library in package.glob("*.so"):
            library.unlink()
        made = package / f"_native{EXTENSION_SUFFIXES[0]}"
        command = ["cc", "-O2", "-shared", "-fPIC", *sources, "-lm", "-o", str(made)]
        subprocess.run(command, cwd=self.root, check=True, timeout=GATE_S)

    def run(self, tests: Iterable[str]) -> tuple[int, str]:
        """Run tests on the copy, up to the first that fails: pytest's exit code, and what it says."""
        own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        places = [self.root, *(self.root / name for name in ("service", "clients", "tests"))]
        own |= {"PYTHONPATH": os.pathsep.join(map(str, places)), "COLUMNS": "400"}
        options = ["-x", "-q", "-rfE", "--tb=line", "-p", "no:cacheprovider", "-p", "no:xdist"]
        options += [f"--basetemp={self._temporary}", f"--timeout={GATE_S:.0f}"]
        child = subprocess.Popen(
            [sys.executable, "-m", "pytest", *options, *tests],
            cwd=self.root, env=own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )  # fmt: skip
        try:
            told, _ = child.communicate(timeout=2 * GATE_S)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            told = child.communicate()[0] + "\nit hangs"
        return child.returncode, told


def verdict(copy: Copy, mutant: Mutant) -> str:
    """CAUGHT, or what became of a mutant instead."""
    with copy.mutated(mutant):
        code, told = copy.run(mutant.tests)
    if code == 0:
        return "survived" if " skipped" not in told else f"{NOT_TRIED}: {told.strip()[-LAST_CHARS:]}"
    if code > 1:  # no test was run: most likely the mutant is no Python
        return f"broken: {told.strip()[-LAST_CHARS:]}"
    failed = re.findall(r"(?m)^FAILED .*? - (.*)", told) if code == 1 else [f"signal {-code}"]
    if not any(re.search(mutant.error, error) for error in failed):
        return f"failed by something else than {mutant.error!r}: {told.strip()[-LAST_CHARS:]}"
    return CAUGHT


@contextmanager
def copied() -> Iterator[Copy]:
    """A copy, for as long as it is needed. Its path is short: sockets have their place in it."""
    root = Path(tempfile.mkdtemp(prefix="mutants-"))
    try:
        yield Copy(root)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def gates_that_fail(copy: Copy, mutants: Iterable[Mutant]) -> str:
    """What gates say without any mutant; '' if all pass."""
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    code, told = copy.run(tests)
    return "" if code == 0 else told


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-k", default="", metavar="PART", help="those with this in their names")
    parser.add_argument("--quick", action="store_true", help="without those whose gates take long")
    options = parser.parse_args()
    chosen = [m for m in MUTANTS if options.k in m.name and not (options.quick and m.is_slow)]
    moved = [why for mutant in chosen if (why := why_it_does_not_apply(mutant))]
    print("\n".join(moved), end="\n" if moved else "")
    left = []
    with copied() as copy:
        if told := gates_that_fail(copy, chosen):
            sys.exit(f"a gate fails without any mutant:\n{told}")
        for mutant in chosen:
            if why_it_does_not_apply(mutant):
                continue
            began = time.monotonic()
            became = verdict(copy, mutant)
            seconds = time.monotonic() - began
            gate = mutant.gate.rpartition("/")[2].replace(".py::test_", ": ").replace("_", " ")
            print(f"{mutant.name} | {gate} | {became} | {seconds:.1f} s", flush=True)
            left += [mutant] if became != CAUGHT else []
    print(f"{len(chosen)} mutants, {len(chosen) - len(left) - len(moved)} caught")
    sys.exit(bool(left or moved))


if __name__ == "__main__":
    main()
