"""The house of all scenarios: who takes part, in which order, and what came of it."""

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

from bench.data import Data
from bench.environments import BENCH, ROOT, Environment
from bench.memory import backed_memory
from bench.process import run_group
from bench.servers import environ, running_service, slow_s3

Answer = dict[str, Any]
RUN_S: Final = 240.0  # a run that takes longer is given up
PIXEL_TOLERANCE: Final = 0.002  # decoders differ in the last bit
RAW_BYTES, JPEG_BYTES = 150_528, 111_000  # of a sample, about
CHECKED: Final = ("samples", "label_sum", "pixel_sum", "by_label")


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured."""

    rounds: int
    warm_samples: int
    cold_samples: int  # also of `prepare`
    augment_samples: int
    budget_samples: int
    budgets: tuple[int, ...]  # per cent of the data
    gets: int
    seconds_min: float  # of one warm measurement
    peer_minutes: float  # then no further round of a peer is begun; in a quick run, no further peer


FULL: Final = Scale(3, 10_000, 6_000, 4_000, 1_000, (10, 25, 50, 75, 90), 6_000, 2.0, 17.0)
QUICK: Final = Scale(1, 2_000, 800, 800, 500, (50,), 2_000, 0.5, 1.5)


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


@dataclass(slots=True)
class Bench:
    """One run of the bench."""

    data: Data
    scale: Scale
    environments: dict[str, Environment]  # the peers that are there
    left_out: dict[str, str]  # the others, and why
    rows: list[Prepared] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    shards: dict[tuple[str, str, int], tuple[Path, float]] = field(default_factory=dict)
    other_load: list[float] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    peers_until: float = 0.0
    round: int = 0

    @property
    def work(self) -> Path:
        return BENCH / "work"

    @property
    def is_quick(self) -> bool:
        return self.scale.peer_minutes == QUICK.peer_minutes

    def peers(self, *names: str) -> list[Environment]:
        """Of these peers, those that can run."""
        return [self.environments[name] for name in names if name in self.environments]

    # Runs

    def run(self, module: str, python: Path | str, task: Mapping[str, Any], **env: str) -> Answer:
        """Run one task in a process of its own."""
        task = {**task, "memory": self.round == 0}  # once is enough, and it takes an epoch more
        command = [str(python), "-m", f"bench.peers.{module}", json.dumps(task)]
        done = run_group(command, RUN_S, environ(**env), ROOT, until_answer=True)
        return done.answer()

    def ours(self, verb: str, **task: Any) -> Answer:
        """Run one of our own tasks: stager's, or a limit's."""
        env = task.pop("env", {})
        return self.run("stager", sys.executable, {"verb": verb, **task}, **env)

    def alternate(self, scenario: str, entries: Sequence[Entry], rounds: int | None = None) -> list[Prepared]:
        """Run all entries in turn, round by round, so that a slow minute of the machine hits all alike."""
        rows = [Prepared(scenario, entry.who, entry.peer, entry.setting) for entry in entries]
        for number in range(rounds or self.scale.rounds):
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
                _tell(f"{scenario} {number}: {_shown(row)} ({time.monotonic() - began:.0f} s)")
        kept = _best_settings(rows)
        best = [row for at, row in enumerate(rows) if at in kept]
        self.rows += best
        return best

    def _is_late(self, entry: Entry) -> bool:
        may_be_cut = self.is_quick or self.round > 0
        is_peer = entry.peer not in ("stager", "limit")
        return is_peer and may_be_cut and time.monotonic() > self.peers_until

    def check(self, rows: Sequence[Prepared], expected: Mapping[str, Any], tolerance: float = 0.0) -> None:
        """Mark those that did not deliver the same samples."""
        for row in rows:
            if row.problem or "samples" not in row.told:
                continue
            wrong = [
                f"{name} {row.told[name]:,} for {expected[name]:,}"
                for name in CHECKED
                if abs(row.told[name] - expected[name])
                > (tolerance * expected[name] if name in ("pixel_sum", "by_label") else 0)
            ]
            row.told["check"] = "; ".join(wrong) or "same samples"
            if wrong:
                self.notes.append(f"{row.scenario}, {row.who}: delivered other samples: {'; '.join(wrong)}")

    # What several scenarios need

    def task(self, data: Data, **more: Any) -> dict[str, Any]:
        return {"list": str(data.list_file()), "samples": len(data), **more}

    @contextmanager
    def staged(
        self, data: Data, name: str, recipe: str = ""
    ) -> Iterator[tuple[dict[str, str], dict[str, Any]]]:
        """A service with all of `data` staged, and the same pixels in a file: (its variables, the files)."""
        root = self.work / name
        with slow_s3(data.objects()) as s3, running_service(root, s3.endpoint_url, recipe) as service:
            told = service.prefetch()
            if told.get("problem") or told.get("staged", 0) + told.get("already", 0) != len(data):
                raise RuntimeError(f"staging failed: {told}")
            files = {"pixels": str(root / "pixels.npy"), "labels": str(root / "labels.npy")}
            env = service.environ()
            seen = self.ours("export", **files, env={"STAGER_CONFIG": env["STAGER_CONFIG"]})
            if seen.get("problem"):
                raise RuntimeError(f"export: {seen['problem']}")
            yield (
                {"STAGER_CONFIG": env["STAGER_CONFIG"]},
                {**files, "seen": seen, "root": str(root / "cache")},
            )
        shutil.rmtree(root, ignore_errors=True)

    def memory_for(self, data: Data) -> AbstractContextManager[None]:
        """Whoever prepares these samples meanwhile finds memory for them, raw and as they came."""
        return backed_memory(len(data) * (RAW_BYTES + JPEG_BYTES))

    def make_shards(self, peer: Environment, store: str, data: Data, **more: Any) -> Answer:
        """Have a peer prepare its own files; `pixels` in `more`: from pixels, else from the JPEGs."""
        out = self.work / "shards" / f"{peer.peer.name}-{store}-{len(data)}"
        task = self.task(data, verb="prepare", store=store, out=str(out), **more)
        with self.memory_for(data):
            answer = self.run(peer.peer.module, peer.python, task)
        if not answer.get("problem"):
            self.shards[peer.peer.name, store, len(data)] = out, float(answer["seconds"])
        return answer

    def shards_of(self, peer: Environment, store: str, data: Data, **more: Any) -> tuple[Path, float]:
        """A peer's files, and the seconds their preparation took; made now if they are not there."""
        key = (peer.peer.name, store, len(data))
        if key not in self.shards:
            _tell(f"{peer.peer.title}: preparing {len(data):,} samples, {store}")
            answer = self.make_shards(peer, store, data, **more)
            if answer.get("problem"):
                raise RuntimeError(f"preparing: {answer['problem']}")
        return self.shards[key]

    def drop_shards(self) -> None:
        """Remove all that peers have prepared."""
        self.shards.clear()
        shutil.rmtree(self.work / "shards", ignore_errors=True)

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


def _tell(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


def _busy_s() -> float:
    """CPU seconds that all cores together have been busy."""
    user, nice, system, _, _, irq, soft = (int(x) for x in Path("/proc/stat").read_text().split()[1:8])
    return (user + nice + system + irq + soft) / 100
