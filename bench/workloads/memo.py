"""Results that are kept: a forest that was trained anew for every fold, since a cache never loaded."""

import hashlib
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from bench.environments import ROOT
from bench.report import Section
from bench.rounds import Entry
from bench.servers import Service
from bench.workloads.workload import Place, Workload

TREES: Final = 300  # the user had 1,292
TREES_QUICK: Final = 20
OWN: Final = "trained for every fold"
FIRST: Final = "memo, the first time"
AGAIN: Final = "memo, a later process"

SECTION: Final = Section(
    "memo",
    "Results that are kept",
    "A random forest of 300 trees (NumPy's, of examples/memo_folds.py) over a table of 2,700 rows. The "
    "user's own way trains it in each process that needs it. Each row is one call in a process of its own, "
    "imports not counted; the check is a digest of the forest, the same in all rows of a round. A service "
    "runs, and makes room in the budget.",
    (("fold_s", "a forest, s"), ("cpu_s", "CPU, s"), ("trained", "trained"), ("loaded", "loaded")),
)


def measure(place: Place) -> None:
    folder = place.work / "memo"
    folder.mkdir(parents=True)
    with place.service("memo-service", "") as service:
        entries = [_entry(place, service, folder, who) for who in (OWN, FIRST, AGAIN)]
        place.alternate("memo", entries)


def _entry(place: Place, service: Service, folder: Path, who: str) -> Entry:
    def run() -> dict[str, Any]:
        trees = TREES_QUICK if place.is_quick else TREES
        task = {"who": who, "trees": trees, "folder": str(folder), "without": place.round + 1}
        return place.child("memo", task, **service.environ())

    return Entry(who, "own" if who == OWN else "stager", run)


def act(task: Mapping[str, Any]) -> dict[str, Any]:
    """One call. A round leaves out a fold that no round before did: its first forest is not kept yet."""
    sys.path.insert(0, str(ROOT / "examples"))
    import memo_folds

    table = Path(task["folder"]) / "samples.csv"
    if not table.exists():
        memo_folds.make_table(table)
    train = memo_folds.train.__wrapped__ if task["who"] == OWN else memo_folds.train
    began, began_cpu = time.monotonic(), time.process_time()
    forest = train(table, task["trees"], task["without"])
    took_s, cpu_s = time.monotonic() - began, time.process_time() - began_cpu
    digest = hashlib.blake2b(b"".join(forest[name].tobytes() for name in sorted(forest)), digest_size=4)
    counts = memo_folds.train.counts
    told = {"trained": 1 if task["who"] == OWN else counts.computed, "loaded": counts.loaded}
    return {"fold_s": took_s, "cpu_s": cpu_s, **told, "check": digest.hexdigest()}


MEMO: Final = Workload(SECTION, measure)

if __name__ == "__main__":
    print(json.dumps(act(json.loads(sys.argv[1]))))
