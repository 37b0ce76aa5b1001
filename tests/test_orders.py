"""Two trainings, and patches: what is kept of them by real processes, against LRU and the optimum."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
POINTS_OFF_MAX = 10.0  # a cache for 192 samples is too small for less: a part of it is staged ahead


@pytest.mark.parametrize(("kind", "epochs"), [("two", "3"), ("patches", "2")])
def test_what_is_kept_of_uneven_reads_is_near_the_optimum_and_far_above_lru(kind: str, epochs: str) -> None:
    sizes = ("--samples", "400", "--part", "0.4", "--side", "144", "--epochs", epochs, "--pause", "0.02")
    done = subprocess.run(
        [sys.executable, "-m", "bench.orders", "--only", kind, *sizes, "--json"],
        cwd=ROOT, capture_output=True, text=True, timeout=150, check=True,
    )  # fmt: skip
    (row,) = json.loads(done.stdout)
    assert row["lru"] <= row["optimum"]
    assert row["stager"] > row["lru"] + 0.5 * (row["optimum"] - row["lru"]), row
    assert row["points_off"] <= POINTS_OFF_MAX, row
