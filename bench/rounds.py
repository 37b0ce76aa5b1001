"""What is measured in turn, round by round, and what came of it."""

import json
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

from bench.environments import BENCH, ROOT, Environment
from bench.process import run_group
from bench.servers import environ

Answer = dict[str, Any]
RUN_S: Final = 240.0  # a run that takes longer is given up
CHECKED: Final = ("samples", "label_sum", "pixel_sum", "by_label")


@dataclass(frozen=True, slots=True)
class Entry:
    """One who takes part in a scenario. Of several settings of one, the best of the first round goes on."""

    who: str
    peer: str  # "stager", "limit", or the name of a peer
    run: Callable[[], Answer]
    setting: str = ""
    rounds: int | None = None  # fewer than the others, for one that is slow and far behind


@dataclass(slots=True)
class Prepared:
    """What came of one entry: a list of figures, one a round."""

    scenario: str
    who: str
    peer: str
    setting: str = ""
    figures: dict[str, list[float]] = field(default_factory=dict)
    told: dict[str, Any] = field(default_factory=dict)
    problem: str = ""

    def figure(self, name: str = "rate") -> float | None:
        values = self.figures.get(name)
        return median(values) if values else None

    def add(self, answer: Mapping[str, Any]) -> None:
        if answer.get("problem"):
            self.problem = str(answer["problem"])
            return
        for name, value in answer.items():
            if isinstance(value, int | float) and name not in CHECKED:
                self.figures.setdefault(name, []).append(float(value))
            else:
                self.told[name] = value


@dataclass(slots=True, kw_only=True)
class Rounds:
    """One run: who takes part, in which order, and what came of it."""

    rounds: int
    is_quick: bool
    environments: dict[str, Environment]  # the peers that are there
    left_out: dict[str, str]  # the others, and why
    rows: list[Prepared] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    other_load: list[float] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    peers_until: float = 0.0
    round: int = 0

    @property
    def work(self) -> Path:
        return BENCH / "work"

    def peers(self, *names: str) -> list[Environment]:
        """Of these peers, those that can run."""
        return [self.environments[name] for name in names if name in self.environments]

    def run(self, module: str, python: Path | str, task: Mapping[str, Any], **env: str) -> Answer:
        """Run one task in a process of its own."""
        task = {**task, "memory": self.round == 0}  # once is enough, and it takes an epoch more
        command = [str(python), "-m", module, json.dumps(task)]
        done = run_group(command, RUN_S, environ(**env), ROOT, until_answer=True)
        return done.answer()

    def alternate(self, scenario: str, entries: Sequence[Entry], rounds: int | None = None) -> list[Prepared]:
        """Run all entries in turn, round by round, so that a slow minute of the machine hits all alike."""
        rows = [Prepared(scenario, entry.who, entry.peer, entry.setting) for entry in entries]
        for number in range(rounds or self.rounds):
            self.round = number
            goes_on = _best_settings(rows) if number else set(range(len(rows)))
            for at, (entry, row) in enumerate(zip(entries, rows, strict=True)):
                if at not in goes_on or row.problem or (entry.rounds and number >= entry.rounds):
                    continue
                if self._is_late(entry):
                    row.problem = "" if row.figures else "left out: no time was left"
                    continue
                began = time.monotonic()
                try:
                    row.add(entry.run())
                except (OSError, RuntimeError) as error:
                    told = getattr(error, "strerror", None) or error  # without the path of this machine
                    row.problem = f"{type(error).__name__}: {told}"
                tell(f"{scenario} {number}: {_shown(row)} ({time.monotonic() - began:.0f} s)")
        kept = _best_settings(rows)
        best = [row for at, row in enumerate(rows) if at in kept]
        self.rows += best
        return best

    def _is_late(self, entry: Entry) -> bool:
        may_be_cut = self.is_quick or self.round > 0
        is_peer = entry.peer not in ("stager", "limit")
        return is_peer and may_be_cut and time.monotonic() > self.peers_until

    def note_load(self) -> None:
        """How many cores others use while nothing of ours runs."""
        before = _busy_s()
        time.sleep(1.0)
        self.other_load.append(_busy_s() - before)


def fresh_work() -> None:
    """Begin with an empty work folder: a run that was killed leaves its own behind."""
    shutil.rmtree(BENCH / "work", ignore_errors=True)
    for name in ("tmp", "home"):
        (BENCH / "work" / name).mkdir(parents=True)


def _best_settings(rows: Sequence[Prepared]) -> set[int]:
    """The places of the best setting of each entry."""
    best: dict[str, int] = {}
    for at, row in enumerate(rows):
        held = best.get(row.who)
        if held is None or (row.figure() or 0.0) > (rows[held].figure() or 0.0):
            best[row.who] = at
    return set(best.values())


def _shown(row: Prepared) -> str:
    name = f"{row.who} [{row.setting}]" if row.setting else row.who
    if row.problem:
        return f"{name}: {row.problem}"
    values = row.figures.get("rate")
    return f"{name}: {values[-1]:,.0f}/s" if values else f"{name}: done"


def tell(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


def _busy_s() -> float:
    """CPU seconds that all cores together have been busy."""
    user, nice, system, _, _, irq, soft = (int(x) for x in Path("/proc/stat").read_text().split()[1:8])
    return (user + nice + system + irq + soft) / 100
