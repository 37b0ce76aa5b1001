"""Seeded bugs are caught: each day some others of those whose gates are quick. `make mutants` tries them all.

STAGER_SEED chooses which.
"""

import os
import random
import re
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from mutants import MUTANTS, Mutant
from mutating import CAUGHT, NOT_TRIED, ROOT, Copy, copied, gates_that_fail, verdict, why_it_does_not_apply

MOST = 6
SECONDS = 25.0  # then no further one is begun
SEED = int(os.environ.get("STAGER_SEED", str(datetime.now(UTC).toordinal())))


def quick() -> list[Mutant]:
    """Those of today: what needs a compiler, only if there is one."""
    fit = [
        mutant for mutant in MUTANTS if not mutant.is_slow and (shutil.which("cc") or ".py" in mutant.file)
    ]
    return random.Random(SEED).sample(fit, MOST)


def test_every_mutant_is_of_the_code_as_it_is_now() -> None:
    moved = [why for mutant in MUTANTS if (why := why_it_does_not_apply(mutant))]
    assert not moved, "\n".join(moved)


def test_every_mutant_has_a_name_of_its_own_and_a_gate_that_is_there() -> None:
    assert max(Counter(mutant.name for mutant in MUTANTS).values()) == 1
    for mutant in MUTANTS:
        for test in mutant.tests:
            path, name = test.partition("[")[0].split("::")
            assert re.search(rf"(?m)^def {name}\(", (ROOT / path).read_text()), test


def test_a_mutant_whose_code_has_moved_is_told(tmp_path: Path) -> None:
    mutant = Mutant("moved", "some.py", "a = 1\n", "a = 2\n", "tests/test_some.py::test_a")
    for text, count in (("", 0), ("a = 1\n", 1), ("a = 1\na = 1\n", 2)):
        (tmp_path / "some.py").write_text(text)
        told = why_it_does_not_apply(mutant, tmp_path)
        assert told == "" if count == 1 else f"{count} times in some.py: it has moved" in told


@pytest.fixture(scope="module")
def copy() -> Iterator[Copy]:
    with copied() as copy:
        yield copy


def test_seeded_bugs_are_caught(copy: Copy) -> None:
    mutants, began = quick(), time.monotonic()
    print(f"STAGER_SEED={SEED}")
    assert not (told := gates_that_fail(copy, mutants)), told
    for number, mutant in enumerate(mutants):
        if number and time.monotonic() - began > SECONDS:
            break  # the machine is busy
        print(mutant.name)
        became = verdict(copy, mutant)
        assert became == CAUGHT or (became.startswith(NOT_TRIED) and not os.environ.get("CI")), mutant


@pytest.mark.parametrize(
    ("new", "said"),
    [
        ("    assert SHARDS_MAX < 0\n", CAUGHT),
        ("    # nothing is different\n", "survived"),
        ("    1 = 2\n", "broken"),
        ("    raise KeyError(shard)\n", "failed by something else"),
    ],
    ids=["caught", "survived", "no Python", "another error"],
)
def test_a_verdict_is_of_the_gate_and_not_of_any_failure(new: str, said: str, copy: Copy) -> None:
    old = "    if not 0 <= shard < SHARDS_MAX:\n"
    gate = "tests/test_index.py::test_a_word_is_laid_out_as_the_format_says"
    assert verdict(copy, Mutant("a trial", "stager/reader/index.py", old, new + old, gate)).startswith(said)
