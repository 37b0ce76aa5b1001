"""Mutated bytes for whatever reads bytes: `python tests/fuzzing.py jpeg --seconds 60 --seed 7`.

An input that ends, hangs or fails the process is left in --keep; `--replay FILE` tries it again. With
--sanitize, the C code is compiled with AddressSanitizer and UndefinedBehaviorSanitizer for it.
"""

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Final

HANGS_S: Final = 60  # for one input: none takes more than a second of CPU time
BYTES_MOST: Final = 64 << 10
TELLING: Final = (0x00, 0x01, 0x7F, 0x80, 0xFE, 0xFF)


class Target:
    """Something that reads bytes. `words`: bytes that mean something to it."""

    corpus: Sequence[bytes]
    words: Sequence[bytes] = (b"\0\0\0\0", b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f")

    def check(self, data: bytes) -> str:
        """Raise if it breaks a promise. Return in a word what became of it."""
        raise NotImplementedError

    def mend(self, data: bytes, rng: random.Random) -> bytes:
        """Let a mutated input get further, as by a checksum that fits."""
        return data


def mutated(rng: random.Random, target: Target) -> bytes:
    """One of the corpus, changed in a few places."""
    data = bytearray(rng.choice(target.corpus))
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        at = rng.randrange(len(data) + 1)
        end = min(len(data), at + 1 + int(rng.expovariate(0.1)))
        rng.choice(MUTATIONS)(data, at, end, rng, target)
    return target.mend(bytes(data[:BYTES_MOST]), rng)


Mutation = Callable[[bytearray, int, int, random.Random, Target], None]


def _flip(data: bytearray, at: int, end: int, rng: random.Random, _: Target) -> None:
    data[at : at + 1] = bytes(byte ^ 1 << rng.randrange(8) for byte in data[at : at + 1])


def _set(data: bytearray, at: int, end: int, rng: random.Random, _: Target) -> None:
    data[at : at + 1] = bytes([rng.choice(TELLING)])


def _cut_out(data: bytearray, at: int, end: int, rng: random.Random, _: Target) -> None:
    del data[at:end]


def _repeat(data: bytearray, at: int, end: int, rng: random.Random, _: Target) -> None:
    data[at:at] = data[at:end] * rng.choice((1, 1, 2, 30))


def _scramble(data: bytearray, at: int, end: int, rng: random.Random, _: Target) -> None:
    data[at:end] = rng.randbytes(end - at)


def _say(data: bytearray, at: int, end: int, rng: random.Random, target: Target) -> None:
    word = rng.choice(target.words)
    data[at : at + rng.choice((0, len(word)))] = word


def _truncate(data: bytearray, at: int, end: int, rng: random.Random, _: Target) -> None:
    del data[at:]


def _splice(data: bytearray, at: int, end: int, rng: random.Random, target: Target) -> None:
    other = rng.choice(target.corpus)
    data[at:] = other[min(at, len(other)) if rng.random() < 0.5 else rng.randrange(len(other) + 1) :]


MUTATIONS: Final[tuple[Mutation, ...]] = (
    *(_flip, _flip, _flip, _set, _set, _cut_out, _repeat, _scramble, _say, _say, _truncate, _splice),
)


def run(target: Target, seed: int, executions: int, seconds: float, keep: Path) -> Counter[str]:
    """Try inputs until there were so many, or it took so long. What is tried lies in `keep` meanwhile."""
    became: Counter[str] = Counter()
    deadline = time.monotonic() + seconds
    current = os.open(keep, os.O_RDWR | os.O_CREAT, 0o600)
    for number in count():
        if number >= executions or time.monotonic() >= deadline:
            break
        data = mutated(random.Random(f"{seed}/{number}"), target)
        os.ftruncate(current, len(data))
        os.pwrite(current, data, 0)
        signal.alarm(HANGS_S)
        became[target.check(data)] += 1
    signal.alarm(0)
    os.close(current)
    keep.unlink()
    return became


def sanitized(folder: Path) -> dict[str, str]:
    """Compile the C code with sanitizers; the environment in which it runs."""
    here = Path(__file__).parent.parent / "stager/recipes/image/c"
    names = ("resize.c", "vnni.c", "trial.c", "png.c", "jpeg.c", "huffman.c")
    flags = ("-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-shared", "-fPIC")
    made = folder / "sanitized.so"
    sources = [str(here / name) for name in names]
    subprocess.run(["gcc", *flags, *sources, "-ljpeg", "-lm", "-o", str(made)], check=True)
    runtime = subprocess.check_output(["gcc", "-print-file-name=libasan.so"], text=True).strip()
    return {
        "LD_PRELOAD": runtime,
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONMALLOC": "malloc",  # so that each buffer has its own bounds
        "STAGER_FUZZED_LIBRARY": str(made),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--executions", type=int, default=sys.maxsize)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--keep", type=Path, default=None)
    parser.add_argument("--replay", type=Path, default=None)
    parser.add_argument("--sanitize", action="store_true")
    given = parser.parse_args()
    if given.sanitize and "STAGER_FUZZED_LIBRARY" not in os.environ:
        folder = Path(tempfile.mkdtemp(prefix="stager-fuzz-"))
        try:
            environ = {**os.environ, **sanitized(folder)}
            sys.exit(subprocess.run([sys.executable, *sys.argv], env=environ, check=False).returncode)
        finally:
            shutil.rmtree(folder)
    from fuzz_targets import TARGETS

    target = TARGETS[given.target]()
    if given.replay:
        print(target.check(given.replay.read_bytes()))
        return
    keep = given.keep or Path(".fuzz") / f"{given.target}-{given.seed}"
    keep.parent.mkdir(exist_ok=True)
    print(f"{given.target}: seed {given.seed}", flush=True)
    became = run(target, given.seed, given.executions, given.seconds, keep)
    print(f"{given.target}: {became.total()} executions: {dict(sorted(became.items()))}")


if __name__ == "__main__":
    main()
