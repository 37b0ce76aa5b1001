"""A short stress of real processes; `make stress` runs it for half an hour. STAGER_SEED chooses another."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

SECONDS = 40  # and as much again, at most, until all have started and ended
SEED = int(os.environ.get("STAGER_SEED", "3"))


def test_readers_see_the_version_they_opened_whatever_others_do(tmp_path: Path) -> None:
    stress = Path(__file__).parent / "stress.py"
    arguments = ["--seconds", str(SECONDS), "--seed", str(SEED), "--root", str(tmp_path / "stress")]
    (tmp_path / "stress").mkdir()
    done = subprocess.run(
        [sys.executable, stress, *arguments], capture_output=True, text=True, timeout=170, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    counts = json.loads(done.stdout.partition("\n")[2])
    assert (counts["wrong"], counts["late"], counts["failures"]) == (0, 0, 0)
    assert all(count > 0 for count in counts["samples"].values()), counts  # each kind of reader read
