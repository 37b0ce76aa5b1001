"""The rules of the house that a person would forget: who imports whom, and what is never used."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import stager

ROOT = Path(__file__).parent.parent
FILE_LINES_MAX = 400

# Where each package is, and how its files are called when they are imported.
PACKAGES = {"stager": ROOT, "stagerd": ROOT / "service", "stager_client": ROOT / "clients"}
OUR_FILES = sorted(path for name, root in PACKAGES.items() for path in (root / name).rglob("*.py"))
OTHER_FILES = sorted(path for name in ("bench", "examples") for path in (ROOT / name).rglob("*.py"))

# The arrows. A package may import itself and these, and what is under them. There is no default: a module
# that stands alone and a package each need a line.
VALUES = {"stager.errors", "stager.reader"}
KINDS = {*VALUES, "stager.interfaces", "stager.npy"}
PROCESSES = {*KINDS, "stager.functions"}
CATALOG = {*VALUES, "stager.atomic", "stager.clock"}
HEAT = {"stager.errors", "stager.reader", "stager.atomic"}
CACHE = {
    *CATALOG,
    *KINDS,
    "stager.mounts",
    "stager.scan",
    "stager.catalog",
    "stager.config",
    "stager.timetable",
    "stager.recipes",
    "stager.shards",
    "stager.functions",
    "stager.heat",
}
SESSIONS = {*CACHE, "stager.cache"}
EVICTION = {*SESSIONS, "stager.sessions"}
DISPATCH = {*EVICTION, "stager.worker.messages", "stager.lines"}
JOBS = {*DISPATCH, "stager.dispatch"}
# What a service has of the watch: not its helper, which reads sources.
WATCH = {f"stager.watch.{name}" for name in ("hint", "interval", "messages", "process", "watched")}
OWNER = {*JOBS, "stager.eviction", "stager.jobs", *WATCH}
MAY_IMPORT: dict[str, set[str]] = {
    "stager": set(),
    "stager.errors": set(),
    "stager.atomic": set(),
    "stager.lines": set(),
    "stager.parent": set(),
    "stager.clock": set(),
    "stager.mounts": {"stager.errors"},
    "stager.reader": {"stager.errors"},
    "stager.interfaces": VALUES,
    "stager.npy": {"stager.errors"},
    "stager.timetable": VALUES,
    "stager.sources": KINDS,
    "stager.layouts": KINDS,
    "stager.functions": {*KINDS, "stager.parent"},
    "stager.recipes": PROCESSES,
    "stager.shards": KINDS,
    "stager.config": {
        *(*KINDS, "stager.layouts", "stager.recipes", "stager.sources"),
        *("stager.mounts", "stager.timetable", "stager.watch.interval"),
    },
    "stager.catalog": CATALOG,
    "stager.scan": KINDS,
    "stager.heat": HEAT,
    "stager.watch": {*VALUES, "stager.interfaces", "stager.lines", "stager.mounts", "stager.sources"},
    "stager.cache": CACHE,
    "stager.sessions": SESSIONS,
    "stager.eviction": EVICTION,
    "stager.dispatch": DISPATCH,
    "stager.jobs": JOBS,
    "stager.worker": {
        *(*SESSIONS, "stager.functions", "stager.lines", "stager.parent", "stager.sources", "stager.layouts"),
    }
    - {"stager.catalog"},
    "stager.owner": OWNER,
    "stager.check": {
        *KINDS,
        "stager.mounts",
        "stager.sources",
        "stager.layouts",
        "stager.recipes",
        "stager.worker",
    },
    "stager.cli": {*OWNER, "stager.owner", "stager.check"},
    "stager.__main__": {"stager.cli", "stager.errors"},
    "stagerd": {*OWNER, "stager.owner", "stager.layouts"},
    "stager_client": VALUES,
}
FILES_MAX = 11  # of a folder

# What is used in these places only. A folder ends in a slash.
SERVICE, CLI, SOURCES = "service/stagerd/", "stager/cli/", "stager/sources/"
RECIPES, CLIENTS = "stager/recipes/", "clients/stager_client/"
THREADS = (
    *(
        "stager/worker/build.py",
        "stager/worker/listing.py",
        "stager/worker/pools.py",
        "stager/worker/__main__.py",
        "stager/dispatch/pool.py",
        "stager/mounts.py",
        "stager/owner/loop.py",
    ),
    *(
        "stager/owner/readers.py",
        "stager/dispatch/sync.py",
        "stager/sessions/waiting.py",
        "stager/dispatch/events.py",
        "service/stagerd/daemon.py",
        "service/stagerd/reload.py",
    ),
    *(
        f"clients/stager_client/{name}.py"
        for name in (
            "batches/ahead",
            "batches/assembly",
            "batches/buffers",
            "batches/loader",
            "samples",
            "reading/session",
        )
    ),
    # no threads of their own, but locks
    *("stager/layouts/volume/opener.py", "stager/layouts/volume/formats/tiff/decode.py"),
    *("stager/reader/shards/file.py", "stager/shards/slabs.py", "stager/recipes/image/selftest.py"),
    "stager/worker/priority.py",
    "stager/layouts/packed/row_groups.py",
    *("clients/stager_client/memo/locks.py", "clients/stager_client/reading/disk.py"),
    *(CLI, SOURCES, "stager/functions/"),
    *("stager/watch/process.py", "stager/watch/helper/"),
)
ONLY_IN: dict[str, tuple[str, ...]] = {
    "asyncio": (SERVICE,),
    "awscrt": (SOURCES,),
    "boto3": (SOURCES,),
    "botocore": (SOURCES,),
    "concurrent": THREADS,
    "cv2": ("clients/stager_client/augment/transforms.py",),
    "fastapi": (SERVICE,),
    "isal": (RECIPES,),
    "multiprocessing": THREADS,
    "PIL": (RECIPES,),
    "pycurl": (SOURCES,),
    "rich": (CLI,),
    "simplejpeg": (RECIPES, "stager/reader/encodings.py"),
    "soundfile": (RECIPES,),
    "soxr": (RECIPES,),
    "sqlite3": ("stager/catalog/", "stager/cache/start/upgrade.py"),
    "starlette": (SERVICE,),
    "subprocess": THREADS,
    "tensorflow": ("clients/stager_client/tensorflow.py",),
    "threading": THREADS,
    "torch": (
        "stager/recipes/image/pixels/resize.py",
        *(f"{CLIENTS}{name}.py" for name in ("torch", "augment/torch", "batches/torch", "voxceleb")),
    ),
    "typer": (CLI,),
    "uvicorn": (SERVICE,),
    "imagecodecs": ("stager/layouts/volume/formats/tiff/",),
    "nibabel": ("stager/layouts/volume/formats/nifti.py",),
    "tifffile": ("stager/layouts/volume/formats/tiff/",),
    "watchdog": ("stager/watch/helper/",),
    "zarr": ("stager/layouts/volume/",),
}

# Ways in which data becomes code.
NEVER_IMPORTED = {"cloudpickle", "dill", "marshal", "pickle", "shelve"}
MAY_PICKLE = "clients/stager_client/memo/pickled.py"  # for callers who say so, and only what they wrote
NEVER_CALLED = {
    "eval",
    "exec",
    "__import__",
    "os.system",
    "os.popen",
    "torch.load",
    "yaml.load",
    "yaml.unsafe_load",
}
NEVER_TRUE = {"shell", "allow_pickle"}

# What a training process must not pay for, or must not have at all, when it imports the client.
NOT_IN_A_READER = {
    *("boto3", "botocore", "cv2", "fastapi", "PIL", "pycurl", "rich", "tensorflow", "torch", "typer"),
    *("soundfile", "soxr"),
}


def name_of(path: Path) -> str:
    """How a file is shown: its path in the repository."""
    return path.relative_to(ROOT).as_posix()


def module_of(path: Path) -> str:
    package = next(name for name, root in PACKAGES.items() if path.is_relative_to(root / name))
    parts = path.relative_to(PACKAGES[package]).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), name_of(path))


def imports(path: Path) -> Iterator[str]:
    """Each module a file imports, wherever in it. `from a import b` gives a.b, since b may be a module."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)}:{node.lineno}: imports are absolute here"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def under(module: str, parent: str) -> bool:
    return module == parent or module.startswith(f"{parent}.")


def layer_of(module: str) -> str:
    """The line of MAY_IMPORT a module of ours stands in: its first two parts, or its distribution."""
    two = ".".join(module.split(".")[:2])
    return two if module.startswith("stager.") else module.split(".", 1)[0]


@pytest.mark.parametrize("path", OUR_FILES, ids=name_of)
def test_imports_point_one_way(path: Path) -> None:
    layer = layer_of(module_of(path))
    allowed = {layer, *MAY_IMPORT[layer]}
    for module in imports(path):
        if module.split(".", 1)[0] not in PACKAGES or under(module, "stager.__version__"):
            continue
        assert any(under(module, parent) for parent in allowed), f"{name_of(path)} may not import {module}"


def test_every_package_has_its_arrows_and_no_arrow_is_left_over() -> None:
    assert {layer_of(module_of(path)) for path in OUR_FILES} == set(MAY_IMPORT)


def test_arrows_go_round_in_no_circle() -> None:
    def below(layer: str, seen: tuple[str, ...] = ()) -> None:
        assert layer not in seen, f"a circle: {' -> '.join((*seen, layer))}"
        for parent in MAY_IMPORT.get(layer, ()):
            below(parent, (*seen, layer))

    for layer in MAY_IMPORT:
        below(layer)


def test_folders_stay_small() -> None:
    folders = Counter(path.parent for path in OUR_FILES if path.name != "__init__.py")
    for folder, files in folders.items():
        assert files <= FILES_MAX, f"{name_of(folder)} has {files} files: a folder a noun"


def test_a_client_loads_nothing_of_stager_but_the_reader_and_the_errors() -> None:
    code = "import stager_client, sys; print(*(name for name in sys.modules if name.startswith('stager.')))"
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    loaded = {layer_of(module) for module in told.stdout.split()}
    assert loaded == {"stager.errors", "stager.reader"}


@pytest.mark.parametrize("path", OUR_FILES, ids=name_of)
def test_libraries_stay_in_their_places(path: Path) -> None:
    for module in imports(path):
        places = ONLY_IN.get(module.split(".", 1)[0])
        here = name_of(path)
        assert places is None or any(
            here.startswith(place) if place.endswith("/") else here == place for place in places
        ), f"{here} may not import {module}: only {', '.join(places)}"


@pytest.mark.parametrize("path", OUR_FILES + OTHER_FILES, ids=name_of)
def test_data_never_becomes_code(path: Path) -> None:
    for module in imports(path):
        is_allowed = module == "pickle" and name_of(path) == MAY_PICKLE
        assert is_allowed or module.split(".", 1)[0] not in NEVER_IMPORTED, (
            f"{name_of(path)} imports {module}"
        )
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Call):
            where = f"{name_of(path)}:{node.lineno}"
            called = ast.unparse(node.func)
            assert called not in NEVER_CALLED, f"{where}: {called}()"
            for keyword in node.keywords:
                off = isinstance(keyword.value, ast.Constant) and not keyword.value.value
                assert keyword.arg not in NEVER_TRUE or off, f"{where}: {keyword.arg}= must be False"


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from pickle import loads",
        "eval('1')",
        "os.system('ls')",
        "f(shell=True)",
        "f(shell=x)",
    ],
)
def test_the_rule_about_code_sees_through(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    path = tmp_path / "bad.py"
    path.write_text(f"def f():\n    {line}\n")
    with pytest.raises(AssertionError, match=r"bad\.py"):
        test_data_never_becomes_code(path)


@pytest.mark.parametrize("path", OUR_FILES, ids=name_of)
def test_files_stay_short(path: Path) -> None:
    lines = len(path.read_text().splitlines())
    assert lines <= FILE_LINES_MAX, f"{name_of(path)} has {lines} lines: split it by noun"


KNOWS_IMAGES = re.compile(r".{0,60}(?:image(?!net|folder|s/\{)|jpeg|pixel).{0,60}", re.IGNORECASE)
MAY_KNOW_IMAGES = (
    "stager/recipes/image/",
    "clients/stager_client/augment/",
    "stager/layouts/volume/formats/tiff/",  # tifffile names the sides of a page, and a compression
    "stager/layouts/table/json.py",  # how COCO's file calls what it has
    "stager/recipes/__init__.py",  # which registers it, as it does all others
    "stager/reader/encodings.py",  # how a field is decoded that was stored as JPEG
    "stager/errors.py",  # what a reason was called before
)


@pytest.mark.parametrize("path", OUR_FILES, ids=name_of)
def test_nothing_but_its_recipe_and_the_augmentations_knows_what_an_image_is(path: Path) -> None:
    if not name_of(path).startswith(MAY_KNOW_IMAGES):
        found = KNOWS_IMAGES.search(code_of(path))
        assert found is None, f"{name_of(path)} knows of images: {found[0] if found else ''}"


def code_of(path: Path) -> str:
    """A file without its comments and docstrings, which may have examples."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            body[0] = ast.Pass()
    return ast.unparse(tree)


def test_one_version_is_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    newest = re.search(r"(?m)^## (\S+)", (ROOT / "CHANGELOG.md").read_text())
    assert newest is not None
    assert project["version"] == stager.__version__ == newest[1]


CLIENT_MODULES = [module_of(path) for path in OUR_FILES if "stager_client" in path.parts]
# In a fork for each: none sees what another has imported, and what all may have is imported once.
IMPORTING = """
import importlib, json, os, sys
import lmdb, numpy, pyarrow.compute, xxhash
for module in sys.argv[1:]:
    if os.fork() == 0:
        code = 1
        try:
            importlib.import_module(module)
            print(json.dumps([module, sorted({name.split(".")[0] for name in sys.modules})]), flush=True)
            code = 0
        finally:
            os._exit(code)
    assert os.wait()[1] == 0, module
"""


@pytest.fixture(scope="module")
def imported() -> dict[str, set[str]]:
    """What each module of the client brings along."""
    modules = [module for module in CLIENT_MODULES if not module.endswith(".tensorflow")]
    told = subprocess.run(
        [sys.executable, "-c", IMPORTING, *modules],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    return {module: set(names) for module, names in map(json.loads, told.stdout.splitlines())}


@pytest.mark.parametrize("module", CLIENT_MODULES)
def test_a_reader_imports_little(module: str, imported: dict[str, set[str]]) -> None:
    framework = module.rsplit(".", 1)[-1]  # stager_client.torch has torch
    if framework == "tensorflow":
        pytest.skip("TensorFlow brings rich and PIL along; test_tensorflow.py looks at the rest")
    assert {"stager_client"} <= imported[module]
    assert NOT_IN_A_READER & imported[module] <= {framework}
