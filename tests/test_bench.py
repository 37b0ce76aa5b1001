"""The benchmarks still run: what they measure is nobody's business here."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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
    options = ["--quick", "--samples", "256", "--only", "cold", "--peers", "none"]
    told = json.loads(run("bench", *options, "--out", str(tmp_path), "--json"))
    rows = {row["who"]: row for row in told["rows"]}
    assert not [row["problem"] for row in rows.values() if row.get("problem")]
    assert rows["stager"]["figures"]["gets"] == [256]
    assert "same samples" in (tmp_path / "RESULTS.md").read_text()
