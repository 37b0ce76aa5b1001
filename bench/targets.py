"""Which targets of targets.toml a run meets."""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from bench.rounds import Prepared

FILE: Final = Path(__file__).with_name("targets.toml")
OURS: Final = ("stager", "limit")


@dataclass(frozen=True, slots=True)
class Verdict:
    """One target: what it is, what came, and against whom. `value` is None if it could not be measured.

    It is the median of the rounds; `spread`: the lowest and the highest of them.
    """

    name: str
    wanted: str
    value: float | None
    against: str = ""
    met: bool = False
    spread: tuple[float, float] | None = None

    @property
    def word(self) -> str:
        return "not measured" if self.value is None else "met" if self.met else "MISSED"


def verdicts(rows: Sequence[Prepared], scenarios: Sequence[str], file: Path = FILE) -> list[Verdict]:
    """Every target of the scenarios that were run."""
    targets = tomllib.loads(file.read_text()).get("target", [])
    return [judge(target, rows) for target in targets if target["scenario"] in scenarios]


def judge(target: dict[str, Any], rows: Sequence[Prepared]) -> Verdict:
    limit, is_least = (target["at_least"], True) if "at_least" in target else (target["at_most"], False)
    wanted = f"{'at least' if is_least else 'at most'} {limit:g}"
    figure = target.get("figure", "rate")
    here = [row for row in rows if row.scenario == target["scenario"]]
    ours = next((row for row in here if row.who == target["ours"]), None)
    values = ours.figures.get(figure, []) if ours else []
    if not values:
        return Verdict(target["name"], wanted, None)
    against = ""
    if "of" in target or target.get("of_peers"):
        other = _best(target, here, target.get("of_figure", figure), is_least)
        if other is None:
            return Verdict(target["name"], wanted, None)
        against, theirs = other
        values = _ratios(values, theirs)
    value, spread = median(values), (min(values), max(values))
    is_met = value >= limit if is_least else value <= limit
    return Verdict(target["name"], wanted, value, against, is_met, spread if len(values) > 1 else None)


def _best(
    target: dict[str, Any], rows: Sequence[Prepared], figure: str, is_least: bool
) -> tuple[str, list[float]] | None:
    """The strongest of those we are compared with, and its figures."""
    others = [
        row
        for row in rows
        if row.figures.get(figure)
        and (row.peer not in OURS if target.get("of_peers") else row.who in target["of"])
    ]
    if not others:
        return None
    best = (max if is_least else min)(others, key=lambda row: row.figure(figure) or 0.0)
    return best.who, best.figures[figure]


def _ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Round by round, where both ran in the same rounds; else of the medians."""
    if len(ours) == len(theirs):
        return [a / b for a, b in zip(ours, theirs, strict=True)]
    return [median(ours) / median(theirs)]
