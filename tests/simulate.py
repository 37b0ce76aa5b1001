"""Run simulated worlds at length: python tests/simulate.py --seeds 20000. `make simulate` does."""

import argparse
import logging
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from random import Random

from world import World
from world_events import EVENTS

STEPS = 300
PART = 50  # seeds that a process does at once
TOLD_EVERY = 500  # seeds


class Failed(Exception):
    """A world broke a promise: the seed, the step, and what happened before."""


@contextmanager
def temporary_directory() -> Iterator[Path]:
    """In memory: nothing is synced, and blocks can be given back."""
    directory = Path(tempfile.mkdtemp(prefix=f"stager-world-{os.getpid()}-", dir="/dev/shm"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def run_seed(seed: int, steps: int) -> Counter[str]:
    """One world from its seed; what happened in it. Raise Failed if a promise was broken."""
    with temporary_directory() as directory:
        world = World(Random(seed), directory)
        try:
            world.run(steps)
        except Exception as error:
            told = "".join(traceback.format_exception(error, limit=-8))
            events = "\n".join(world.last)
            raise Failed(f"seed {seed} step {world.steps} of {steps}:\n{events}\n{told}") from None
        finally:
            world.close()
        return world.counts + Counter(steps=world.steps)


def run_part(seeds: range, steps: int) -> tuple[Counter[str], list[str]]:
    logging.disable(logging.CRITICAL)
    counts: Counter[str] = Counter()
    failures = []
    for seed in seeds:
        try:
            counts += run_seed(seed, steps)
        except Failed as failed:
            failures.append(str(failed))
        counts["seeds"] += 1
    return counts, failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    asked = parser.parse_args()
    first, end = (
        (asked.first, asked.first + asked.seeds) if asked.seed is None else (asked.seed, asked.seed + 1)
    )
    parts = [range(at, min(at + PART, end)) for at in range(first, end, PART)]
    began = time.monotonic()
    counts: Counter[str] = Counter()
    failures: list[str] = []
    with ProcessPoolExecutor(asked.jobs) as pool:
        for done in as_completed([pool.submit(run_part, part, asked.steps) for part in parts]):
            more, failed = done.result()
            counts += more
            failures += failed
            for text in failed:
                print(text, flush=True)
            if counts["seeds"] % TOLD_EVERY == 0:
                took = time.monotonic() - began
                print(f"{counts['seeds']:,} seeds in {took:.0f} s, {len(failures)} failed", file=sys.stderr)
    seconds = time.monotonic() - began
    told = ("seeds", "steps", "compared", "misses", "read_errors", "refused", "answers")
    print(", ".join(f"{name} {counts[name]}" for name in told), f"in {seconds:.0f} s")
    print("events: " + ", ".join(f"{name} {counts[name]}" for name in (*EVENTS, "killed")))
    print(f"failed: {len(failures)} seeds of {first} to {end - 1}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
