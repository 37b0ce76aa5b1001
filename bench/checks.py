"""What it costs to compare each read with its checksum: python -m bench.checks [--rounds 5]

Warm epochs of a StagedLoader, in turns with check="first" and check="always"; the least of all rounds counts.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Final

from bench.stopped import SIDE, serving
from stager_client.torch import StagedDataset, StagedLoader

BATCH: Final = 64


def main() -> None:
    parser = argparse.ArgumentParser("bench.checks", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--samples", type=int, default=1500)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stager-bench-") as root, serving(Path(root), options):
        print(f"| check | threads | us a sample of {SIDE} x {SIDE} |\n| --- | --- | --- |")
        for threads in (1, 2):
            loaders = {
                check: StagedLoader(StagedDataset("data", check=check), BATCH, threads=threads)
                for check in ("first", "always")
            }
            took: dict[str, list[float]] = {check: [] for check in loaders}
            for _ in range(options.rounds):
                for check, loader in loaders.items():
                    took[check].append(epoch_us(loader))
            for check, found in took.items():
                print(f"| {check} | {threads} | {min(found):.1f} |")


def epoch_us(loader: StagedLoader) -> float:
    """Of one epoch, a sample."""
    began = time.perf_counter()
    samples = sum(len(labels) for _, labels in loader)
    return (time.perf_counter() - began) / samples * 1e6


if __name__ == "__main__":
    main()
