"""A run is started, and what it saw is counted."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Final

from frameworks.known import Run
from frameworks.numbered import SAMPLES, SEEN_IN, make_source
from running import Place

RUN_S: Final = 300.0  # of a machine on which much else runs
HEAD: Final = ("framework", "version", "run", "ranks", "samples in each epoch, by rank")


@dataclass(frozen=True, slots=True)
class Told:
    """How a run went. `wrong`: what does not hold; empty if each sample came exactly once an epoch."""

    run: Run
    samples: str
    wrong: str = ""

    @property
    def row(self) -> tuple[str, ...]:
        return self.run.package, version(self.run.package), self.run.what, str(self.run.ranks), self.samples


@contextmanager
def numbered_place(root: Path) -> Iterator[Place]:
    """A service, and numbered images that it has not staged yet: the first run waits for them."""
    place = Place(root, {"PYTHONPATH": str(Path(__file__).parent.parent)})
    place.configure(make_source(root / "source"))
    with place.service():
        yield place


def tell(runs: Iterable[Run], place: Place) -> Iterator[Told]:
    """Run them, and look at what their ranks saw. Those that are started alike share their processes."""
    for (file, by, _), alike in groupby(runs, lambda run: (run.file, run.by, run.is_alone and run)):
        some, folder = list(alike), Path(tempfile.mkdtemp(dir=place.root))
        command = [sys.executable, "-m", *by, f"frameworks.{file}", *(run.function for run in some)]
        said = _run(command, place.env() | {SEEN_IN: str(folder)}, folder)
        for run in some:
            seen = [json.loads(path.read_text()) for path in sorted(folder.glob(f"{run.function}.*.json"))]
            told = _judge(run, seen)
            if said and (told.wrong or run is some[-1]):
                told = replace(told, wrong=f"{told.wrong}\n{said}".strip())
            yield told


def tell_recipes(place: Place) -> str:
    """Run the Python of docs/FRAMEWORKS.md. Return what went wrong."""
    folder = Path(tempfile.mkdtemp(dir=place.root))
    return _run([sys.executable, "-m", "frameworks.recipes"], place.env(), folder)


def _run(command: list[str], environ: dict[str, str], folder: Path) -> str:
    """Run a program. Return the last that it and its processes said, if it failed or hung."""
    with (folder / "said").open("w+") as said:
        process = subprocess.Popen(
            command, env=environ, cwd=folder, stdout=said, stderr=said, start_new_session=True
        )
        try:
            code = process.wait(RUN_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
        said.seek(0)
        return f"exit code {code}\n{said.read()[-3000:]}" if code else ""


def _judge(run: Run, seen: list[dict[str, list[int]]]) -> Told:
    epochs = sorted({epoch for rank in seen for epoch in rank})
    shares = {" + ".join(str(len(rank.get(epoch, []))) for rank in seen) for epoch in epochs}
    samples = f"{'; '.join(sorted(shares))}, in {len(epochs)} epochs"
    wrong = [f"{len(seen)} ranks told what they saw"] if len(seen) != run.ranks else []
    if len(epochs) < 2:
        wrong.append("a single epoch is too little")
    for epoch in epochs:
        times = Counter(number for rank in seen for number in rank.get(epoch, []))
        if off := {number: times[number] for number in range(SAMPLES) if times[number] != 1}:
            wrong.append(f"epoch {epoch}: so often came these samples: {off}")
    return Told(run, samples, "; ".join(wrong))
