"""Generated samples, end to end: real processes, a real function, and all that it can do wrong."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from functions import generated, write_functions
from running import Place
from stager_client.numpy import StagedArrays

ROOT = Path(__file__).parent.parent
BAD = {
    17: "ValueError: the angle is 400 (simulator.py, line 36)",
    18: "pose: it is float32[3, 6], the recipe says float32[25, 6]",
    19: "pose: it is float64[25, 6], the recipe says float32[25, 6]",
    20: "it returned pose; declared are index, pose",
    21: "SystemExit: enough",
    22: "it ended its process (exit code 3)",
    23: "it was not made within 2 s (deadline_s)",
    24: "Unable to allocate 745. GiB",
    25: "it ended its process (SIGKILL)",
    26: "TypeError: index is no array of numbers: object",
    27: "ValueError: all input arrays must have the same shape (simulator.py, line 40)",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    root = tmp_path_factory.mktemp("generated")
    write_functions(root)
    (root / "keyless.py").write_text("LOG = open('/dev/null')\n\n\ndef make(index, seed):\n    return LOG\n")
    environ = {"SIM_CALLS": str(root / "calls"), "SIM_IMPORTS": str(root / "imports")}
    place = Place(root, environ)
    limits = "deadline_s = 2\nmemory_mb = 3000"
    place.configure(
        generated(count=30, seed=7, args="{ scale = 1.5 }", recipe=limits)
        + generated("varied", count=4, variants=3, args="{ bad = false }")
        + generated("lost", source='"python:nowhere:make"')
        + generated("keyless", source='"python:keyless:make"')
    )
    with place.service():
        yield place


def expected(index: int, seed: int, scale: float, variant: int = 0) -> Any:
    rng = np.random.default_rng([seed, index, variant])
    return (rng.standard_normal((25, 6)) * (scale * 2.0)).astype("float32")


def test_each_sample_is_what_its_function_returned_and_what_fails_fails_alone(place: Place) -> None:
    told = place.json("prefetch", "motion", code=3)
    assert (told["staged"], told["failed"]) == (30 - len(BAD), len(BAD))
    failures = {row["index"]: row for row in place.json("ls", "--failed", "motion")}
    assert set(failures) == set(BAD)
    for index, detail in BAD.items():
        assert failures[index]["reason"] == "function"
        assert detail in failures[index]["detail"], index
    data = StagedArrays("motion", 7, service=str(place.socket), skip_failed=True)
    read = [(fields["index"], fields["pose"]) for fields, _ in data]
    indexes = np.concatenate([index for index, _ in read]).tolist()
    assert indexes == [index for index in range(30) if index not in BAD]
    for index, pose in zip(indexes, np.concatenate([poses for _, poses in read]), strict=True):
        np.testing.assert_array_equal(pose, expected(index, 7, 1.5))
    calls = (place.root / "calls").read_text().split()
    twice = {"25"}  # somebody else may have ended its process
    assert sorted(set(calls)) == sorted(map(str, range(30)))
    assert {call for call in calls if calls.count(call) > 1} <= twice
    imports = (place.root / "imports").read_text().split()
    enders = 4  # exit, hang, SIGKILL twice
    assert len(imports) <= 1 + len(os.sched_getaffinity(0)) + enders + 1


def test_a_training_may_start_at_once_and_each_variant_is_a_sample(place: Place) -> None:
    data = StagedArrays("varied", 12, service=str(place.socket))
    ((fields, labels),) = list(data)
    assert data.loader.samples.key(5) == "1/2"
    assert labels.tolist() == [0] * 12
    for row, pose in enumerate(fields["pose"]):
        index, variant = divmod(row, 3)
        assert fields["index"][row] == index
        np.testing.assert_array_equal(pose, expected(index, 0, 1.0, variant))
    assert place.json("why", "varied", "1/2")["index"] == 5


def test_a_function_that_cannot_be_imported_is_one_line_and_usage(place: Place) -> None:
    done = place.run("prefetch", "lost")
    assert done.returncode == 2
    assert "nowhere:make cannot be imported: ModuleNotFoundError: No module named 'nowhere'" in done.stderr
    assert str(place.root) in done.stderr
    assert "Traceback" not in done.stderr


def test_a_function_that_has_no_key_is_refused_by_the_name_of_what_has_none(place: Place) -> None:
    done = place.run("prefetch", "keyless")
    assert done.returncode == 2
    assert "LOG" in done.stderr.splitlines()[0]
    assert "Traceback" not in done.stderr


def test_the_example_makes_its_samples_and_a_network_learns_of_them(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples/generate.py"), str(tmp_path), "--count", "200"]
    told = subprocess.check_output(command, text=True, timeout=120, stderr=subprocess.STDOUT)
    assert "200 staged, 0 already there, 0 failed, of 200" in told
    losses = [float(line.split()[-1]) for line in told.splitlines() if line.startswith("epoch")]
    assert len(losses) == 3
    assert losses[2] < losses[0]
