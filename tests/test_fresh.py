"""A short run of `make fresh`, which changes 10,000 files for ten minutes. STAGER_SEED: another one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from fresh import ABSENT, fits

SECONDS = 20  # and as much again, at most, until all have started and ended
SEED = int(os.environ.get("STAGER_SEED", "3"))


def test_every_epoch_is_of_one_version_and_only_what_changed_is_fetched(tmp_path: Path) -> None:
    program = Path(__file__).parent / "fresh.py"
    (tmp_path / "fresh").mkdir()
    arguments = ["--seconds", str(SECONDS), "--seed", str(SEED), "--files", "400"]
    done = subprocess.run(
        [sys.executable, program, *arguments, "--root", str(tmp_path / "fresh")],
        capture_output=True, text=True, timeout=170, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    counts = json.loads(done.stdout.partition("\n")[2])
    assert counts["failures"] == 0
    assert set(counts["epochs"]) == {"plain", "loader"}, counts
    assert counts["versions_read"] > 1, counts


def test_the_judge_knows_a_hole_a_mixture_and_a_wrong_label() -> None:
    states = [np.array(state, np.int8) for state in ([0, 1, ABSENT], [0, ABSENT, 1], [ABSENT, ABSENT, 1])]

    def judged(seen: list[int], labels: list[int]) -> int | None:
        return fits(states, np.array(seen), np.array(labels, np.int8), 0)

    assert judged([1, 1, 0], [0, 1, ABSENT]) == 0
    assert judged([1, 0, 1], [0, ABSENT, 1]) == 0
    assert judged([1, 1, 1], [0, 1, 1]) == 1, "a scan that a burst met"
    assert judged([1, 0, 0], [0, ABSENT, ABSENT]) == 1, "likewise"
    assert judged([1, 1, 0], [1, 1, ABSENT]) is None, "a wrong label"
    assert judged([2, 1, 0], [0, 1, ABSENT]) is None, "twice"
    assert judged([0, 1, 1], [ABSENT, 1, 1]) == 2
