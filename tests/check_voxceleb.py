"""`loadWAV` of staged clips against voxceleb_trainer's, over a folder of WAV files: a folder a speaker.

python tests/check_voxceleb.py FOLDER --seeds 1000
"""

import argparse
import os
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import trainer
from running import Place
from sets import table

MAX_FRAMES = (0, 1, 30, 100, 200, 400)


def compare(paths: Sequence[Path], seeds: range) -> int:
    """Assert that every bit is the same, and the random numbers after it. Return how many segments."""
    from stager_client.voxceleb import loadWAV, loadWAV_2020

    segments = 0
    for seed in seeds:
        choose = random.Random(seed)
        path, max_frames, num_eval = choose.choice(paths), choose.choice(MAX_FRAMES), choose.randint(1, 12)
        for ours, theirs in ((loadWAV, trainer.load), (loadWAV_2020, trainer.load_before)):
            for evalmode in (False, True):
                told: list[Any] = []
                for load in (ours, theirs):
                    random.seed(seed)
                    np.random.seed(seed)
                    array = np.asarray(load(path, max_frames, evalmode, num_eval))
                    told.append((array, type(array), random.random(), np.random.random()))
                (found, *after), (expected, *after_theirs) = told
                about = f"{path.name}, max_frames {max_frames}, evalmode {evalmode}, seed {seed}"
                assert found.dtype == expected.dtype, about
                assert np.array_equal(found, expected), about
                assert after == after_theirs, about
                segments += len(found)
    return segments


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=1000)
    options = parser.parse_args()
    paths = sorted(options.folder.resolve().rglob("*.wav"))
    with tempfile.TemporaryDirectory() as root:
        place = Place(Path(root)).configure(table("clips", options.folder.resolve(), 'kind = "audio"\n'))
        with place.service():
            staged = place.json("prefetch", "clips")
            os.environ["STAGER_CONFIG"] = str(place.config)
            segments = compare(paths, range(options.seeds))
    print(f"{staged['staged']:,} clips, {options.seeds:,} seeds: {segments:,} segments, all the same")


if __name__ == "__main__":
    sys.exit(main())
