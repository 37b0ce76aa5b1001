"""The benchmarks still run: what they measure is nobody's business here."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bench.report import target_table
from bench.rounds import Prepared
from bench.targets import judge
from stager.recipes.image import native

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def has_compiler() -> None:
    if not shutil.which("cc"):
        assert not os.environ.get("CI"), "there is no cc"
        pytest.skip("the S3 server of the bench is compiled: there is no cc")


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_the_bench_of_many_samples_runs_to_its_end(tmp_path: Path) -> None:
    run("bench.scale", "--samples", "10000", "--out", str(tmp_path / "SCALE.md"))
    told = (tmp_path / "SCALE.md").read_text()
    for row in ("scan of a directory", "scan of an S3 listing", "start of the service to READY"):
        assert row in told


def test_a_cold_epoch_of_the_bench_has_the_same_samples_as_the_source(tmp_path: Path) -> None:
    if not native.library:
        assert not os.environ.get("CI"), "stager/recipes/image/c/resize.c was not compiled"
        pytest.skip("the bench measures what stager has in C: it was not compiled")
    options = ["--quick", "--samples", "256", "--only", "cold", "--peers", "none"]
    told = json.loads(run("bench", *options, "--out", str(tmp_path), "--json"))
    rows = {row["who"]: row for row in told["rows"]}
    assert not [row["problem"] for row in rows.values() if row.get("problem")]
    assert rows["stager"]["figures"]["gets"] == [256]
    assert "same samples" in (tmp_path / "RESULTS.md").read_text()


def test_a_target_has_the_median_of_the_rounds_ratios_and_their_spread() -> None:
    ours, theirs = Prepared("tars", "stager", "stager"), Prepared("tars", "others", "webdataset")
    for mine, other in ((30, 10), (80, 20), (10, 5)):
        ours.add({"rate": mine})
        theirs.add({"rate": other})
    target = {"name": "warm", "scenario": "tars", "ours": "stager", "of_peers": True, "at_least": 3.0}
    verdict = judge(target, [ours, theirs])
    assert (verdict.value, verdict.spread, verdict.met, verdict.against) == (3.0, (2.0, 4.0), True, "others")
    assert "| warm (others) | at least 3 | 3 (2-4) | met |" in target_table([verdict])
    theirs.add({"rate": 10})  # in another round: then of the medians
    verdict = judge(target, [ours, theirs])
    assert (verdict.value, verdict.spread) == (3.0, None)
    assert "| at least 3 | 3 | met |" in target_table([verdict])


def test_the_bench_of_workloads_writes_its_page_with_targets_and_rows(tmp_path: Path) -> None:
    told = json.loads(run("bench.workloads", "--only", "memo", "--quick", "--json", "--out", str(tmp_path)))
    assert [row["problem"] for row in told["rows"]] == ["", "", ""]
    trained, first, later = (row["told"]["check"] for row in told["rows"])
    assert trained == first == later
    page = (tmp_path / "WORKLOADS.md").read_text()
    assert "memo: a kept forest is loaded in seconds" in page
    assert "| memo, a later process |" in page
