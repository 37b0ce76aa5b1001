"""Whatever bytes come, a reader of bytes keeps its promise: a little of `make fuzz`, the same each time."""

import base64
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz_targets import TARGETS
from stager.recipes.image import native

HERE = Path(__file__).parent
SEED = 16
EXECUTIONS = {
    **{"jpeg": 60_000, "png": 8_000, "arrow": 8_000, "lmdb": 8_000, "listing": 1_500, "where": 30_000},
    **{
        "tar": 150,
        "parquet": 100,
        "table": 300,
        "volume": 1_000,
        "sound": 1_000,
        "array": 3_000,
        "kept": 3_000,
    },
}
SANITIZED_EXECUTIONS = {"jpeg": 20_000, "png": 4_000}

# What came out of something once, and was no error of ours.
FOUND = {
    "listing: a size that is none": ("listing", b"<Size>1204<", b"<Size>12s04<"),
    "listing: an object without its size": ("listing", b"<Size>1204</Size>", b""),
    "listing: an object without its key": ("listing", b"<Key>data/a/1.jpg</Key>", b""),
    "listing: less than nothing": ("listing", b"<Size>1204<", b"<Size>-1204<"),
    "listing: two etags": ("listing", b'<ETag>"abc"<', b'<ETag>"ab"</ETag><ETag>"abc"<'),
    "where: no UTF-8": ("where", b"cat", b"\xff"),
    "arrow: no JSON": ("arrow", b'"places":[', b'"places";['),
    "arrow: a part is missing": ("arrow", b'"places":[', b'"place!":['),
    "arrow: no pair": ("arrow", b'"places":[[', b'"places":[{'),
    "arrow: no numbers": ("arrow", b"[1832,3500]", b"[[],[]]"),
    "arrow: far behind its end": ("arrow", b"[1664,54]", b"[99999999999999999999,54]"),
    "lmdb: a field without its shape": ("lmdb", b'"shape"', b'"shapf"'),
}


def test_make_fuzz_has_every_target() -> None:
    told = re.search(r"(?m)^FUZZED = (.*)$", (HERE.parent / "Makefile").read_text())
    assert told
    assert told[1].split() == list(TARGETS)


def needs_the_decoder() -> None:
    if not native.decodes_jpeg():
        pytest.skip("stager/recipes/image/c/jpeg.c was not compiled")


def fuzz(target: str, tmp_path: Path, *options: str) -> str:
    """Run it in a process of its own, which an input may end. Return what it says."""
    keep = tmp_path / "input"
    command = [sys.executable, "-W", "error", str(HERE / "fuzzing.py"), target]
    done = subprocess.run(
        [*command, "--seed", str(SEED), "--seconds", "150", "--keep", str(keep), *options],
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    if done.returncode:
        data = keep.read_bytes() if keep.exists() else b""
        kept = f"the input, in base64: {base64.b64encode(data).decode()}"
        pytest.fail(f"{target} ended with {done.returncode}\n{done.stderr[-3000:]}\n{kept}", pytrace=False)
    return done.stdout


@pytest.mark.parametrize("target", TARGETS)
def test_whatever_bytes_come_the_promise_is_kept(target: str, tmp_path: Path) -> None:
    if target in ("jpeg", "png"):
        needs_the_decoder()
    assert "executions" in fuzz(target, tmp_path, "--executions", str(EXECUTIONS[target]))


@pytest.mark.parametrize("target", ["jpeg", "png"])
def test_our_decoder_touches_no_memory_that_is_not_its_own(target: str, tmp_path: Path) -> None:
    needs_the_decoder()
    if shutil.which("gcc") is None or not Path(runtime_of_sanitizer()).is_absolute():
        pytest.skip("gcc with AddressSanitizer is not installed")
    said = fuzz(target, tmp_path, "--sanitize", "--executions", str(SANITIZED_EXECUTIONS[target]))
    assert "decoded alike" in said


def runtime_of_sanitizer() -> str:
    return subprocess.check_output(["gcc", "-print-file-name=libasan.so"], text=True).strip()


@pytest.mark.parametrize("found", FOUND)
def test_what_was_found_once_is_an_error_of_ours_now(found: str) -> None:
    name, old, new = FOUND[found]
    target = TARGETS[name]()
    seeds = [data for data in target.corpus if old in data]
    assert seeds
    for data in seeds:
        changed = data.replace(old, new)
        target.check(target.mend(changed, random.Random(0)))  # 0: the checksum is made to fit
