"""The docs say what the source does: each error has a row with a cure, and examples run as they are."""

import ast
import os
import re
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from making import image_folder, jpeg
from running import Place
from s3server import S3Server
from stager.errors import KINDS, REASONS
from stager.owner.meter import MISS_REASONS
from stager.sources.s3.errors import _QUEUE_TABLE, _TABLE

ROOT: Final = Path(__file__).resolve().parent.parent
EXAMPLE: Final = re.compile(r"```python\n(.*?)```\n(?:```\n(.*?)```)?", re.DOTALL)  # and what it prints
MORE: Final = """
[datasets.imagenet]
source = "/mnt/lab/imagenet"
[datasets.scroll]
source = "/mnt/lab/scroll"
layout = "table"
table = "rows.csv"
[datasets.scroll.recipe.image]
kind = "array"
path = "{image}"
dtype = "uint8"
shape = [80, 144, 144]
[datasets.scroll.recipe.mask]
kind = "array"
path = "{mask}"
dtype = "uint8"
shape = [80, 144, 144]
"""
PACKAGES: Final = ("stager", "service/stagerd", "clients/stager_client")


def rows(heading: str) -> list[list[str]]:
    """The cells of the first table below a heading of docs/ERRORS.md, without its head."""
    text = (ROOT / "docs/ERRORS.md").read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("| ")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def code(cell: str) -> list[str]:
    """What is in backticks."""
    return re.findall(r"`([^`]+)`", cell)


def errors_of_the_source() -> dict[str, tuple[str, int]]:
    """For each class of ours, which class it is below and its exit code; also those outside of errors.py."""
    found = {name: (kind.__mro__[1].__name__, kind.exit_code) for name, kind in KINDS.items()}
    classes = (
        node
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and node.name not in KINDS
    )
    for node in classes:
        for base in node.bases:
            if isinstance(base, ast.Name) and base.id in found:
                found[node.name] = base.id, found[base.id][1]
    return found


def test_every_error_has_a_row_with_its_exit_code_and_a_cure_and_no_row_is_without_an_error() -> None:
    told, above = {}, {-1: "Exception"}
    for name, exit_code, means, cure in rows("Kinds"):
        assert all((means, cure)), f"{name} has no meaning or no cure"
        depth = name.count("- ")
        above[depth] = code(name)[0]
        told[code(name)[0]] = (above[depth - 1], int(exit_code))
    assert told == errors_of_the_source()


def test_every_reason_of_a_failed_sample_has_a_row_and_no_row_is_without_a_reason() -> None:
    told = {code(reason)[0]: again == "yes" for reason, again, means, cure in rows("Failed samples") if cure}
    assert told == REASONS


def test_every_verdict_on_s3_has_a_row_that_says_what_stager_says_and_no_row_is_without_a_verdict() -> None:
    told = {
        " ".join(code(names)): (what, *code(error), "".join(code(reason)))
        for names, what, error, reason, cure in rows("S3")
        if cure
    }
    assert told == {
        names: (verdict.what.format(endpoint="ENDPOINT"), verdict.error.__name__, verdict.reason)
        for names, verdict in _TABLE.items()
    }


def test_every_verdict_on_a_queue_has_a_row_that_says_what_stager_says_and_no_row_is_without_a_verdict() -> (
    None
):
    told = {
        " ".join(code(names)): (what, *code(error))
        for names, what, error, cure in rows("Queues of events")
        if cure
    }
    known = _QUEUE_TABLE.items()
    assert told == {names: (verdict.what, verdict.error.__name__) for names, verdict in known}


def test_every_reason_of_a_miss_has_a_row_and_no_row_is_without_a_reason() -> None:
    assert tuple(code(reason)[0] for reason, means, cure in rows("Misses") if cure) == MISS_REASONS


def save(path: Path, array: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, array)


def fill(lab: Path) -> None:
    """The sources of docs/CONFIG.md's data sets, and of two more that docs/CLIENT.md reads."""
    image_folder(lab / "imagenet", 100, 2)
    for at in range(40):
        (lab / "wounds/photos").mkdir(parents=True, exist_ok=True)
        (lab / f"wounds/photos/{at}.jpg").write_bytes(jpeg(at))
        save(lab / f"wounds/depth/{at}.npy", np.full((64, 64), at, np.float32))
        save(lab / f"clips/ann/{at}.npy", np.arange(32_000 + at, dtype=np.int16))
    table = [f"{at}.jpg,{at}.npy,{'early' if at % 3 else 'late'},{at % 4},{30 + at}" for at in range(40)]
    (lab / "wounds/samples.csv").write_text("\n".join(["photo,depth,phase,fold,age", *table]))
    save(lab / "features/part0.npy", np.ones((6, 80), np.float32))
    rows_of_part = [f"part0.npy,{at},ann" for at in range(6)]
    (lab / "features/rows.csv").write_text("\n".join(["file,row,speaker", *rows_of_part]))
    for name in ("image", "mask"):
        save(lab / f"scroll/{name}.npy", np.zeros((80, 144, 144), np.uint8))
    (lab / "scroll/rows.csv").write_text("image,mask\nimage.npy,mask.npy\n")


def test_the_data_sets_of_config_md_are_staged_and_the_python_of_client_md_runs_and_prints_what_it_says(
    tmp_path: Path,
) -> None:
    pytest.importorskip("torch")
    fill(tmp_path / "lab")
    blocks = re.findall(r"```toml\n(.*?)```", (ROOT / "docs/CONFIG.md").read_text(), re.DOTALL)
    tables = "".join(block for block in blocks if "/mnt/lab" in block) + MORE
    place = Place(tmp_path).configure(tables.replace("/mnt/lab", str(tmp_path / "lab")))
    for name in ("wounds", "speech", "features", "imagenet", "scroll"):
        told = place.json("prefetch", name)
        assert told["staged"] == told["wanted"] > 0, told
    examples = EXAMPLE.findall((ROOT / "docs/CLIENT.md").read_text())
    assert len(examples) > 4
    done = place.python("".join(code for code, _ in examples))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "".join(printed for _, printed in examples)


def newcomer(home: Path) -> dict[str, str]:
    """The environment of a user who has nothing of stager's yet, but its command."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("STAGER_")}
    path = f"{sysconfig.get_path('scripts')}:{kept['PATH']}"
    (home / "run").mkdir(exist_ok=True)  # or root's socket would be the machine's
    return {**kept, "HOME": str(home), "XDG_RUNTIME_DIR": str(home / "run"), "PATH": path}


def test_the_quick_start_of_the_readme_works_when_it_is_pasted_and_prints_what_it_says(
    tmp_path: Path,
) -> None:
    pytest.importorskip("torch")
    start = (ROOT / "README.md").read_text().split("\n## A local folder\n")[1].split("\n## ")[0]
    make, install, command = re.findall(r"```sh\n(.*?)```", start, re.DOTALL)[0].splitlines()
    assert make.startswith("python3 -m venv")
    assert install.startswith("pip install")
    image_folder(tmp_path / "photos", 3, 20)
    environ = newcomer(tmp_path)

    def printed(*arguments: str) -> str:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120, check=True,
        ).stdout  # fmt: skip

    def masked(text: str) -> str:
        """Without the home directory, the digits of a path, and how long it took."""
        text = text.replace(str(tmp_path), "/home/ann")
        return re.sub(r"photos-[0-9a-f]{6}", "photos-", re.sub(r"B in .*", "B in", text))

    program, *_ = shlex.split(command)
    assert program == "stager"
    staged = re.findall(r"```\n(photos-.*?)```", start, re.DOTALL)[0]
    assert masked(printed("-m", *shlex.split(command))) == masked(staged)
    ((example, shown),) = EXAMPLE.findall(start)
    assert printed("-c", example) == shown


def test_the_s3_part_of_the_readme_works_when_it_is_pasted(tmp_path: Path, s3: S3Server) -> None:
    pytest.importorskip("torch")
    part = (ROOT / "README.md").read_text().split("\n## S3\n")[1].split("\n## ")[0]
    (config,), (commands,) = (re.findall(rf"```{kind}\n(.*?)```", part, re.DOTALL) for kind in ("toml", "sh"))
    (opened,) = re.findall(r"`(StagedDataset\(.*?\))`", part)
    for at in range(110):
        s3.client().put_object(Bucket="data", Key=f"imagenet/train/n{at:08d}/{at}.JPEG", Body=jpeg(at))
    for written, meant in (('"200GB"', '"2GB"\nreserve = "1MB"'), ("http://127.0.0.1:9000", s3.endpoint_url)):
        assert written in config
        config = config.replace(written, meant)
    (tmp_path / "stager.toml").write_text(config)
    assert commands.count("=...") == 2
    pasted = commands.replace("=...", f"={s3.access_key}", 1).replace("=...", f"={s3.secret_key}")
    program = f"from stager_client.torch import StagedDataset; data = {opened}; print(len(data))"
    done = subprocess.run(
        ["sh", "-c", f"{pasted}\npython -c {shlex.quote(program)}\nkill $!\nwait $!"],
        cwd=tmp_path, env=newcomer(tmp_path), capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert "100 staged, 0 already there, 0 failed, of 100" in done.stdout, done.stderr
    assert done.stdout.endswith("\n100\n"), done.stderr
    assert "service ready" in (tmp_path / "serve.log").read_text()
