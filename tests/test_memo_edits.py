"""Ten edits of a program, each run by a process of its own: is the result loaded or computed, and why."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from making import image_folder, jpeg
from running import Place
from stager.reader.memo.store import MemoStore
from stager_client.memo.keep import FIRST

NAME = "work.make.train"
FILES = {
    "helpers.py": """
RATE = 2.0
def norm(x):
    return x * RATE
""",
    "work.py": """
import lib
from helpers import norm
from stager_client.memo import memo
DEPTH = 3
def make(power):
    def train(X, table, data, seed=0, rounds=10):
        total = norm(X).sum() * DEPTH * lib.factor() + power * rounds
        return {"total": total, "rows": len(table.read_text()), "samples": len(data)}
    return train
train = memo(make(2))
""",
    "run.py": """
import json
from pathlib import Path
import numpy as np
import work
from stager.reader.samples.subset import Subset
from stager_client.samples import StagedSamples
data = StagedSamples("photos", Subset(), None, 30.0, False)
for _ in range(2):
    result = work.train(np.arange(6, dtype="float32"), Path("folds.csv"), data, seed=1)
assert result["samples"] == len(data) and result["rows"] == len(Path("folds.csv").read_text())
print(json.dumps([work.train.counts.computed, work.train.counts.loaded]))
""",
    "folds.csv": "a,1\nb,2\n",
    "site-packages/lib/__init__.py": "def factor():\n    return 1\n",
    "site-packages/lib-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: lib\nVersion: 1.0\n",
}


def edit(file: str, old: str, new: str) -> Callable[[Path, Place], None]:
    def act(folder: Path, place: Place) -> None:
        text = (folder / file).read_text()
        assert text.count(old) == 1
        (folder / file).write_text(text.replace(old, new))

    return act


def nothing(folder: Path, place: Place) -> None:
    """What decides nothing: a comment, lines that moved, a docstring, a file that was touched."""
    work = (folder / "work.py").read_text().replace("    def train(", "    # seven trees\n\n    def train(")
    work = work.replace("def make(power):\n", 'def make(power):\n    """Makes."""\n')
    (folder / "work.py").write_text(work)
    os.utime(folder / "folds.csv", ns=(0, 0))


def upgrade(folder: Path, place: Place) -> None:
    about = folder / "site-packages/lib-1.0.dist-info"
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: lib\nVersion: 1.1\n")
    about.rename(folder / "site-packages/lib-1.1.dist-info")


def add_photo(folder: Path, place: Place) -> None:
    (place.root / "photos/class000/more.jpg").write_bytes(jpeg(77))
    assert place.json("prefetch", "photos")["staged"] == 1


# What is done, and what is told of it. The data set's version is the last, since it stays.
EDITS: dict[str, tuple[Callable[[Path, Place], None], list[str]]] = {
    "an argument": (edit("run.py", "seed=1", "seed=2"), ["argument seed: 1 -> 2"]),
    "a constant": (edit("work.py", "DEPTH = 3", "DEPTH = 4"), ["the constant DEPTH of work changed"]),
    "a helper in another file": (
        edit("helpers.py", "x * RATE", "x / RATE"),
        ["helpers.norm changed (line 3)"],
    ),
    "a closure value": (
        edit("work.py", "make(2)", "make(5)"),
        ["the closure's power of work.make.train changed (line 7)"],
    ),
    "a library's version": (upgrade, ["lib 1.0 -> 1.1"]),
    "a file's content": (
        edit("folds.csv", "b,2", "b,3"),
        ["argument table: the content of the file folds.csv changed"],
    ),
    "a default argument": (
        edit("work.py", "rounds=10", "rounds=20"),
        ["the default of rounds of work.make.train changed (line 7)"],
    ),
    "a dtype": (edit("run.py", '"float32"', '"float64"'), ["argument X: dtype float32 -> float64"]),
    "nothing at all": (nothing, []),
    "the data set's version": (add_photo, ["argument data: the data set photos has another version"]),
}


def run(folder: Path, place: Place) -> list[int]:
    """Counts of the program: computed, loaded."""
    done = subprocess.run(
        [sys.executable, "-B", "-W", "error", "run.py"],
        cwd=folder, env={**place.env(), "PYTHONPATH": str(folder / "site-packages")},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A program that has run once."""
    root = tmp_path_factory.mktemp("edits")
    image_folder(root / "photos", 1, 3)
    place = Place(root).configure(f'[datasets.photos]\nsource = "{root}/photos"\nrecipe = {{ crop = 32 }}\n')
    assert place.json("prefetch", "photos")["staged"] == 3
    for name, text in FILES.items():
        (root / "program" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "program" / name).write_text(text)
    assert run(root / "program", place) == [1, 1]
    return place


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_has_the_right_verdict_and_the_right_words(name: str, place: Place, tmp_path: Path) -> None:
    act, told = EDITS[name]
    folder = tmp_path / "program"
    shutil.copytree(place.root / "program", folder)
    act(folder, place)
    before = set(MemoStore(place.cache).keys(NAME))
    assert run(folder, place) == ([1, 1] if told else [0, 2])
    new = set(MemoStore(place.cache).keys(NAME)) - before
    records = [record for record in MemoStore(place.cache).records(NAME) if record.digest in new]
    assert [list(record.why) for record in records] == ([told] if told else [])


def test_the_command_tells_why_lists_and_evicts(place: Place) -> None:
    told = place.json("why", "memo", NAME)
    assert told["results"][-1]["why"] == [FIRST]
    (row,) = place.json("ls", "memo")
    assert row["results"] == len(told["results"])
    assert row["bytes"] > 0
    shown = place.run("why", "memo", NAME).stdout
    assert all(why in shown for result in told["results"] for why in result["why"])
    assert f"{row['results']} results of 1 function" in place.run("ls").stdout
    assert place.json("evict", "memo", NAME) == {
        "name": NAME, "results": row["results"], "bytes": row["bytes"],
    }  # fmt: skip
    assert place.json("ls", "memo") == []
    assert run(place.root / "program", place) == [1, 1]
    last = place.json("why", "memo", NAME)["results"][0]
    assert last["is_kept"]
    assert last["why"][0].startswith("it was evicted at ")
    assert last["why"][0].endswith(": by stager evict")
    refused = place.run("why", "memo", "work.make.trian")
    assert refused.returncode == 2
    assert f"did you mean '{NAME}'?" in refused.stderr
    assert place.run("evict", "memo").returncode == 2


def test_the_example_trains_a_forest_for_each_fold_once_and_says_what_changed(tmp_path: Path) -> None:
    place = Place(tmp_path).configure("")
    example = Path(__file__).parent.parent / "examples/memo_folds.py"
    script = tmp_path / "memo_folds.py"
    script.write_text(example.read_text())

    def accuracies(counts: str) -> list[str]:
        command = [sys.executable, str(script), "2"]
        told = subprocess.check_output(command, cwd=tmp_path, env=place.env(), text=True, timeout=60)
        assert told.splitlines()[2].endswith(f"Counts({counts}, unloadable=0, unkept=0)")
        return [line.split(",")[0] for line in told.splitlines()]

    assert accuracies("loaded=0, computed=3") == accuracies("loaded=3, computed=0")
    script.write_text(example.read_text().replace("TRIED = 4", "TRIED = 5"))
    accuracies("loaded=0, computed=3")
    whys = [result["why"] for result in place.json("why", "memo", "memo_folds.train")["results"]]
    assert whys[:3] == [["the constant TRIED of memo_folds changed"]] * 3
    assert whys[3:] == [["argument without: 2 -> 3"], ["argument without: 1 -> 2"], [FIRST]]
