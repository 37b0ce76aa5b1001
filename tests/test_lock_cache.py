"""The marker of a new cache is durable before anything else is in it."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

LOCK = """
import sys, pathlib
from stager.cache.start.lock import lock_cache
lock_cache(pathlib.Path(sys.argv[1]), "a test")
"""


def test_the_marker_is_on_the_disk_before_anything_else_is_made(tmp_path: Path) -> None:
    """A power cut in the first second of a cache left it empty, and no start took it for a cache."""
    if not shutil.which("strace"):
        assert not os.environ.get("CI"), "strace is not installed"
        pytest.skip("strace is not installed")
    root, trace = tmp_path / "disk", tmp_path / "trace"
    root.mkdir()
    traced = ["strace", "-y", "-o", str(trace), "-e", "trace=fsync,rename,mkdir"]
    subprocess.run([*traced, sys.executable, "-c", LOCK, str(root / "cache")], check=True, timeout=60)
    steps = []
    for line in trace.read_text().splitlines():
        paths = re.findall(r'[<"]([^<>"]+)[>"]', re.sub(r"CACHE\.\d+", "scratch name", line))
        if paths and paths[0].startswith(str(root)):
            steps.append([line.partition("(")[0], *(path.removeprefix(str(root)) for path in paths)])
    assert steps == [
        ["mkdir", "/cache"],
        ["fsync", "/cache/scratch name"],
        ["rename", "/cache/scratch name", "/cache/CACHE"],
        ["fsync", "/cache"],
        ["fsync", ""],
        ["mkdir", "/cache/scratch"],
        ["mkdir", "/cache/datasets"],
    ]
