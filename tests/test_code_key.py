"""The key of a person's function: the same for the same code, and each change told by name and line."""

import json
import subprocess
import sys
import textwrap
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from stager.errors import UsageError
from stager.reader.code.key import CodeKey, changes, key_of
from stager.reader.code.packages import owner_of, version_of

HELPERS = '''
RATE = 2.0
NAMES = frozenset({"a", "b", "c"})
OPTIONS = {"low": 1, "tags": {"x", "y"}}
def clip(x, low=0.0, *, high=1.0):
    """Between the two."""
    return max(low, min(x, high))
def norm(x):
    return clip(x) * RATE
'''
PREPROCESS = """
import math
import numpy as np
import helpers
from helpers import norm
WEIGHTS = np.arange(6, dtype="float32")
class Model:
    scale = 3
    def __init__(self, rate):
        self.rate = rate
    @property
    def double(self):
        return self.rate * 2
    def apply(self, x):
        return x * self.rate * self.scale
MODEL = Model(0.5)
def make(power):
    def raised(x):
        return norm(x) ** power
    return raised
RAISED = make(3)
def loop(n):
    return n if n == 0 else loop(n - 1)
def prepare(index, seed=0):
    from helpers import OPTIONS as options
    total = sum(norm(x) + helpers.clip(x) for x in WEIGHTS)
    return MODEL.apply(total) + RAISED(index) + math.sqrt(options["low"]) + loop(3) + np.sum(WEIGHTS)
"""
TELL = """
import json, sys
sys.path.insert(0, sys.argv[1])
from stager.reader.code.key import key_of
import preprocess
print(json.dumps(key_of(preprocess.prepare).to_json()))
"""


def key_in(folder: Path, seed: str = "0") -> CodeKey:
    """The key that another process finds."""
    told = subprocess.run(
        [sys.executable, "-B", "-c", TELL, str(folder)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parent.parent)},
    )
    assert told.returncode == 0, told.stderr
    return CodeKey.from_json(json.loads(told.stdout))


def write(folder: Path, helpers: str = HELPERS, preprocess: str = PREPROCESS) -> Path:
    folder.mkdir()
    (folder / "helpers.py").write_text(helpers)
    (folder / "preprocess.py").write_text(preprocess)
    return folder


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> CodeKey:
    return key_in(write(tmp_path_factory.mktemp("code") / "before"))


def test_another_process_and_another_folder_find_the_same_key(before: CodeKey, tmp_path: Path) -> None:
    again = key_in(write(tmp_path / "elsewhere"), seed="12345")
    assert again == before
    assert again.digest == before.digest


EDITS = {
    "a helper": ("return clip(x) * RATE", "return clip(x) / RATE", ["helpers.norm changed (line 8)"]),
    "a helper of a helper": ("max(low, min", "min(low, min", ["helpers.clip changed (line 5)"]),
    "a constant": ("RATE = 2.0", "RATE = 3.0", ["the constant RATE of helpers changed"]),
    "a default": ("low=0.0", "low=0.5", ["the default of low of helpers.clip changed (line 5)"]),
    "a default by name": ("high=1.0", "high=2.0", ["the default of high of helpers.clip changed (line 5)"]),
    "what an import inside takes": ('"low": 1', '"low": 4', ["the constant OPTIONS of helpers changed"]),
    "an array": ("arange(6,", "arange(7,", ["the constant WEIGHTS of preprocess changed"]),
    "an array's dtype": ('"float32"', '"float64"', ["the constant WEIGHTS of preprocess changed"]),
    "a closure": ("make(3)", "make(2)", ["the closure's power of preprocess.make.raised changed (line 18)"]),
    "an inner function": ("** power", "+ power", ["preprocess.make.raised changed (line 18)"]),
    "a method": ("x * self.rate *", "x - self.rate *", ["preprocess.Model.apply changed (line 14)"]),
    "a property": ("self.rate * 2", "self.rate * 4", ["preprocess.Model.double changed (line 11)"]),
    "a class": ("scale = 3", "scale = 4", ["the constant scale of preprocess.Model changed"]),
    "an object": ("Model(0.5)", "Model(0.6)", ["the constant MODEL of preprocess changed"]),
    "itself": ("total) + RAISED", "total) - RAISED", ["preprocess.prepare changed (line 24)"]),
    "what recurs": ("loop(n - 1)", "loop(n - 2)", ["preprocess.loop changed (line 22)"]),
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_change_is_told_by_name_and_line(edit: str, before: CodeKey, tmp_path: Path) -> None:
    old, new, told = EDITS[edit]
    assert (HELPERS + PREPROCESS).count(old) == 1
    after = key_in(write(tmp_path / "after", HELPERS.replace(old, new), PREPROCESS.replace(old, new)))
    assert changes(before, after) == told
    assert after.digest != before.digest


def test_what_decides_nothing_changes_nothing(before: CodeKey, tmp_path: Path) -> None:
    helpers = "# a comment\n\n" + HELPERS.replace("Between the two.", "Both ends belong to it.")
    helpers += "\ndef unused():\n    return 1\n"
    preprocess = '"""A docstring."""\n' + PREPROCESS.replace(
        "def loop(n):\n", 'def loop(n):\n    """How it counts.\n\n    At length."""\n'
    )
    after = key_in(write(tmp_path / "after", helpers, preprocess))
    assert changes(before, after) == []
    assert after.digest == before.digest
    assert after.lines["helpers.norm"] == before.lines["helpers.norm"] + 2


def test_another_helper_under_the_same_name_is_told(before: CodeKey, tmp_path: Path) -> None:
    other = PREPROCESS.replace("from helpers import norm", "from helpers import clip as norm")
    after = key_in(write(tmp_path / "after", preprocess=other))
    told = changes(before, after)
    assert "helpers.norm is no longer used" in told
    assert "preprocess.prepare changed (line 24)" in told


def test_packages_count_by_their_versions(before: CodeKey) -> None:
    import numpy as np

    assert before.parts["numpy"] == f"version {np.__version__}"
    after = CodeKey(before.name, {**before.parts, "numpy": "version 9.9"}, before.lines)
    assert changes(before, after) == [f"numpy {np.__version__} -> 9.9"]


def test_another_python_is_told_alone(before: CodeKey) -> None:
    parts = {name: f"{told}0" if told.startswith("code ") else told for name, told in before.parts.items()}
    after = CodeKey(before.name, {**parts, "Python": "version 9.1"}, before.lines)
    assert changes(before, after) == [f"Python {sys.version_info[0]}.{sys.version_info[1]} -> 9.1"]


def made(code: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str = "theirs") -> Any:
    """The function f of a module with this code."""
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(code))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, name, raising=False)
    return import_module(name).f


REFUSED = {
    "an open file": (
        "import sys\nLOG = sys.__stderr__\ndef f(): return LOG",
        "the constant LOG of theirs is a _io.Text",
    ),
    "a generator": (
        "G = (x for x in [1])\ndef f(): return next(G)",
        "the constant G of theirs is a builtins.gen",
    ),
    "a lock": (
        "import threading\nL = threading.Lock()\ndef f():\n  with L: pass",
        "the constant L of theirs",
    ),
    "a random state": (
        "import random\nR = random.Random(1)\ndef f(): return R.random()",
        "the constant R of",
    ),
    "NumPy's random state": (
        "import numpy as np\nR = np.random.default_rng()\ndef f(): return R.random()",
        "the constant R of theirs is a numpy.random",
    ),
    "a whole module": ("import others\ndef f(): return getattr(others, 'x')", "is the whole module others"),
    "what a closure holds": (
        "def make(x):\n  return lambda: x\nf = make(y for y in [])",
        "the closure's x of theirs.make.<lambda> is a builtins.generator",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_has_no_key_is_refused(what: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code, message = REFUSED[what]
    (tmp_path / "others.py").write_text("x = 1")
    with pytest.raises(UsageError, match=message) as told:
        key_of(made(code, monkeypatch, tmp_path))
    assert told.value.hint


def installed(folder: Path, monkeypatch: pytest.MonkeyPatch, version: str, url: str = "") -> Any:
    """The function of a module that uses a package, as pip installs it. No version: it was copied."""
    place = folder / "site-packages"
    (place / "theirpackage").mkdir(parents=True)
    (place / "theirpackage" / "__init__.py").write_text("def scale(x): return x * 2")
    if version:
        told = place / f"theirpackage-{version}.dist-info"
        told.mkdir()
        (told / "METADATA").write_text(f"Metadata-Version: 2.1\nName: theirpackage\nVersion: {version}\n")
        if url:
            (told / "direct_url.json").write_text(url)
    monkeypatch.syspath_prepend(str(place))
    monkeypatch.delitem(sys.modules, "theirpackage", raising=False)
    owner_of.cache_clear()
    version_of.cache_clear()
    return made("import theirpackage\ndef f(x): return theirpackage.scale(x)", monkeypatch, folder)


def test_an_installed_package_is_known_by_its_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert key_of(installed(tmp_path, monkeypatch, "1.2.3")).parts["theirpackage"] == "version 1.2.3"


def test_an_own_package_is_known_by_its_code_though_it_is_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url = '{"url": "file:///home/me/theirpackage", "dir_info": {}}'
    parts = key_of(installed(tmp_path, monkeypatch, "1.2.3", url)).parts
    assert parts["theirpackage.scale"].startswith("code ")
    assert "theirpackage" not in parts


def test_a_package_without_a_version_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="theirpackage has no version") as told:
        key_of(installed(tmp_path, monkeypatch, ""))
    assert told.value.hint


KEPT = """
import collections, contextlib, dataclasses, enum, functools, logging, operator, re
from pathlib import Path
from typing import NamedTuple
log = logging.getLogger("theirs")
class Colour(enum.Enum):
    RED = 1
    BLUE = 2
class Point(NamedTuple):
    x: int
    y: int = 0
@dataclasses.dataclass(frozen=True)
class Config:
    rate: float = 2.0
    tags: list = dataclasses.field(default_factory=list)
CONFIG = Config()
PATTERN = re.compile("a+")
PLACE = Path("/data")
HALF = functools.partial(pow, 2)
FIRST = operator.itemgetter(0)
COUNTS = collections.Counter("abc")
RING = []
RING.append(RING)
@functools.lru_cache
def cached(x):
    return x * 7
def wrap(k):
    def outer(function):
        @functools.wraps(function)
        def inner(*args):
            return function(*args) * k
        return inner
    return outer
@wrap(5)
def wrapped(x):
    return x
@contextlib.contextmanager
def held():
    yield 1
def f(x):
    import json as j, os.path as p
    with held():
        log.info("x")
        def g(y): return j.dumps(p.join(str(y), str(PLACE)))
    kept = CONFIG.rate, PATTERN, HALF(3), FIRST, COUNTS, RING
    return (g(x), Colour.RED, Point(1), kept, cached(1), wrapped(2))
"""


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("x * 7", "x * 8", ["theirs.cached changed (line 24)"]),
        ("@wrap(5)", "@wrap(6)", ["the closure's k of theirs.wrap.outer.inner changed (line 29)"]),
        ("yield 1", "yield 2", ["theirs.held changed (line 37)"]),
        ("BLUE = 2", "BLUE = 3", ["theirs.Colour changed"]),
        ("rate: float = 2.0", "rate: float = 3.0", ["rate"]),
        ("y: int = 0", "y: int = 1", ["theirs.Point"]),
        ('"a+"', '"b+"', ["the constant PATTERN of theirs changed"]),
        ("(pow, 2)", "(pow, 3)", ["the constant HALF of theirs changed"]),
        ('Counter("abc")', 'Counter("abd")', ["the constant COUNTS of theirs changed"]),
        ('"/data"', '"/other"', ["the constant PLACE of theirs changed"]),
    ],
)
def test_what_python_programs_are_made_of_has_a_key(
    old: str, new: str, told: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert KEPT.count(old) == 1
    first, again, other = (tmp_path / name for name in ("first", "again", "other"))
    keys = []
    for folder, code in ((first, KEPT), (again, KEPT), (other, KEPT.replace(old, new))):
        folder.mkdir()
        with monkeypatch.context() as patch:
            keys.append(key_of(made(code, patch, folder)))
    assert keys[0] == keys[1]
    found = changes(keys[0], keys[2])
    assert all(any(sentence in line for line in found) for sentence in told), found
    assert keys[2].digest != keys[0].digest


def test_methods_partials_and_objects_have_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from functools import partial

    f = made("def f(x, y=1): return x * y", monkeypatch, tmp_path)
    assert key_of(partial(f, 3)).digest != key_of(partial(f, 4)).digest
    assert changes(key_of(partial(f, 3)), key_of(partial(f, 4))) == ["what f is bound to changed"]
    assert "what f is bound to is used now" not in changes(key_of(f), key_of(f))
    assert key_of(max).digest != key_of(min).digest


def test_the_key_of_two_functions_that_call_each_other_is_not_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code = "def g(n): return f(n)\ndef f(n): return g(n)\n"
    f = made(code, monkeypatch, tmp_path)
    assert key_of(f).parts == key_of(f.__globals__["g"]).parts
    assert key_of(f).digest != key_of(f.__globals__["g"]).digest


def test_a_script_has_the_key_that_its_import_has(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "from stager.reader.code.key import key_of\n"
        "def norm(x): return x * 2\n"
        "def f(x): return norm(x)\n"
        "print(key_of(f).digest)\n"
    )
    environment = {"PYTHONPATH": str(Path(__file__).parent.parent)}
    run = [[sys.executable, "-B", "train.py"], [sys.executable, "-B", "-c", "import train"]]
    told = [
        subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, timeout=60, check=True
        ).stdout
        for command in run
    ]
    assert told[0] == told[1] != b""


FOREIGN = """
import pickle, sys
import pyarrow, torch
from stager.reader.code.key import key_of
class Model:
    weights = torch.arange(6.0)[::2]
    half = torch.ones(3, dtype=torch.bfloat16)
    names = pyarrow.table({"name": ["a", None]})
def f():
    return Model.weights, Model.half, Model.names
before = key_of(f).digest
pickle.dumps(Model())
assert key_of(f).digest == before
print(before)
Model.weights[1] = 7
assert key_of(f).digest != before
"""


def test_tensors_and_tables_have_one_key_in_all_processes(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "foreign.py"
    script.write_text(FOREIGN)
    told = [subprocess.check_output([sys.executable, str(script)], text=True, timeout=60) for _ in range(2)]
    assert told[0] == told[1] != ""
