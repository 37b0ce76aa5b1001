"""A slow mount, without a mount: the openings of files come late."""

import os
from pathlib import Path

from bench.environments import BENCH, ROOT
from bench.process import run_group


def slow_environ(folder: Path, delay_ms: float) -> dict[str, str]:
    """Variables of a process that is to find each opening of a file below a folder late by so much."""
    return {
        "LD_PRELOAD": str(_compiled()),
        "STAGER_SLOW_ROOT": str(folder.resolve()),
        "STAGER_SLOW_US": str(round(delay_ms * 1000)),
    }


def _compiled() -> Path:
    source, library = Path(__file__).with_suffix(".c"), BENCH / "slow_files.so"
    if not library.exists() or library.stat().st_mtime < source.stat().st_mtime:
        command = ["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
        done = run_group(command, 60, dict(os.environ), ROOT)
        if done.problem:
            raise RuntimeError(f"slow_files.c does not compile: {done.problem}")
    return library
