"""A few tests in each of the other environments that are there; `make everything` runs all of them.

Where no compiler is, test_dist.py has been.
"""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PYTEST = ("-m", "pytest", "-q")
SHORT = {
    "simd": (".venv-simd", (*PYTEST, "tests/test_depth.py", "tests/test_resize.py", "-k", "depth or Simd")),
    "tensorflow": (".venv-tf", (*PYTEST, "tests/test_tensorflow.py", "-k", "without_a_copy")),
    "frameworks": (".venv-frameworks", ("-m", "frameworks", "--only", "torchdata,jax")),
}


@pytest.mark.parametrize("target", SHORT)
def test_a_few_tests_pass_there_too(target: str) -> None:
    folder, arguments = SHORT[target]
    python = ROOT / folder / "bin/python"
    if not python.exists():
        pytest.skip(f"{folder} is not there: make {target}")
    # Its pytest is not one of this one's workers.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environ |= {"PYTHONPATH": str(ROOT / "tests")}
    done = subprocess.run(
        [python, *arguments],
        cwd=ROOT, env=environ, capture_output=True, text=True, timeout=170, check=False,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert " passed" in done.stdout + done.stderr
