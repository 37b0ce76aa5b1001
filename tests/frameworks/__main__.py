"""Every run of every framework, as a table: make frameworks

Each run trains for two epochs on 60 images that say which they are. Each must come exactly once an epoch,
with the pixels and the label of its source, whatever the number of ranks. It fails if any does not.
Then it runs the Python of docs/FRAMEWORKS.md.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from frameworks.known import RUNS
from frameworks.told import HEAD, numbered_place, tell, tell_recipes

RECIPES = "recipes"  # of docs/FRAMEWORKS.md


def main() -> int:
    files = [*dict.fromkeys(run.file for run in RUNS), RECIPES]
    parser = argparse.ArgumentParser("frameworks", description=__doc__)
    parser.add_argument("--only", default=",".join(files), help=f"some of {','.join(files)}")
    chosen = parser.parse_args().only.split(",")
    if unknown := set(chosen) - set(files):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    ran = failed = 0
    with tempfile.TemporaryDirectory() as root, numbered_place(Path(root)) as place:
        for cells in (HEAD, ["---"] * len(HEAD)):
            print(f"| {' | '.join(cells)} |", flush=True)
        for told in tell((run for run in RUNS if run.file in chosen), place):
            print(f"| {' | '.join(told.row)} |", flush=True)
            ran += 1
            if told.wrong:
                failed += 1
                print(f"frameworks: {told.run.function} of {told.run.file}: {told.wrong}", file=sys.stderr)
        if RECIPES in chosen:
            ran += 1
            if wrong := tell_recipes(place):
                failed += 1
                print(f"frameworks: docs/FRAMEWORKS.md: {wrong}", file=sys.stderr)
    print(f"frameworks: {ran - failed} passed, {failed} failed", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
