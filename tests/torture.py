"""Flips, power losses and S3 faults, seeded, side by side; counts and seeds at the end.

    python tests/torture.py [--seconds 1800] [--seed 1] [--part flips|ext4|xfs|faults] [--quick]

Exit code 1 if a byte was wrong, a start failed, an acknowledged sample was lost, or anything was told but a
clear error. A part that cannot run here says why.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from torture_faults import run_faults
from torture_flips import run_flips
from torture_power import FILE_SYSTEMS, run_power, why_not

SHOWN = 15  # failures of each part
FAULT_SHARES = 3  # they mostly wait: side by side, each case once
MEMORY = Path("/dev/shm")  # flips need no disk, and are faster without


def run_part(part: str, seed: int, seconds: float, quick: bool, share: int) -> dict[str, Any]:
    """One part in this process: {"part", "seed", "counts", "failures"}, or {"part", "skipped"}."""
    if part in FILE_SYSTEMS and (why := why_not(part)):
        return {"part": part, "skipped": why}
    memory = MEMORY if part == "flips" and os.access(MEMORY, os.W_OK) else None
    root = Path(tempfile.mkdtemp(prefix=f"stager-{part}-", dir=memory))
    os.environ["STAGER_CONFIG"] = str(root / "stager.toml")
    try:
        if part == "flips":
            done: Any = run_flips(root, seed, seconds, least=20)
        elif part == "faults":
            done = run_faults(root, seed, seconds, not quick, (share, FAULT_SHARES))
        else:
            done = run_power(root, seed, seconds, part)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return {"part": part, "seed": seed, "counts": dict(done.counts), "failures": done.failures}


def start(part: str, seed: int, seconds: float, quick: bool, share: int) -> "subprocess.Popen[str]":
    """The same in a process of its own: it forks, so it has no threads."""
    command = [sys.executable, __file__, "--part", part, "--seed", str(seed), "--seconds", str(seconds)]
    command += ["--share", str(share)]
    return subprocess.Popen([*command, *(["--quick"] if quick else [])], stdout=subprocess.PIPE, text=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--part", choices=("flips", "faults", *FILE_SYSTEMS))
    parser.add_argument("--quick", action="store_true", help="without the faults that take minutes each")
    parser.add_argument("--share", type=int, default=0, help="which share of the S3 faults")
    options = parser.parse_args()
    if options.part:
        told = run_part(options.part, options.seed, options.seconds, options.quick, options.share)
        print(json.dumps(told))
        sys.exit(bool(told.get("failures")))
    parts = [("flips", options.seed, 0), ("flips", options.seed + 1, 0)]
    parts += [("faults", options.seed, share) for share in range(FAULT_SHARES)]
    parts += [(kind, options.seed, 0) for kind in FILE_SYSTEMS]
    print(f"seed {options.seed}, {options.seconds:.0f} s, of each part", flush=True)
    running = [start(part, seed, options.seconds, options.quick, share) for part, seed, share in parts]
    failed = Counter[str]()
    for (part, seed, _), process in zip(parts, running, strict=True):
        out, _ = process.communicate()
        if process.returncode not in (0, 1) or not out:
            failed[f"{part} {seed}: ended with {process.returncode}"] += 1
            continue
        told = json.loads(out.splitlines()[-1])
        print(json.dumps({name: told[name] for name in told if name != "failures"}))
        for failure in told.get("failures", [])[:SHOWN]:
            print(f"FAILED ({part}, seed {seed}): {failure}")
        failed[part] += len(told.get("failures", []))
    print(json.dumps({"failures": dict(failed)}))
    sys.exit(bool(failed.total()))


if __name__ == "__main__":
    main()
