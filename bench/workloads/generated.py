"""Generated samples: a simulator in the training loop, and the same samples by stager."""

import json
import sys
import time
from typing import Any, Final

import numpy as np

from bench.report import Section
from bench.rounds import Answer, Entry
from bench.servers import Service
from bench.workloads.motion import BODIES, FRAMES, sequence
from bench.workloads.workload import Place, Workload

SAMPLES, BATCH = 200, 20
QUICK_SAMPLES: Final = 60
WARM_S: Final = 2.0
TABLE: Final = """
[datasets.motion{round}]
source = "python:bench.workloads.motion:sequence"
count = {count}
seed = {round}
[datasets.motion{round}.recipe]
fields = {{ pose = {{ dtype = "float32", shape = [{frames}, {bodies}, 3] }} }}
"""
SECTION: Final = Section(
    "generated",
    "Generated: motion sequences of a simulator, about 0.2 s each, some five times as long as others",
    "The user calls the simulator in the training loop, on one core, in each epoch. With stager the clock of "
    "the cold epoch runs from the opening of the data set: the scan, which imports the simulator, is in it. "
    "The plan is that of `stager prefetch --plan`, which makes five samples: what it says, and 1 if what it "
    "took is within.",
    (
        ("rate", "samples/s"),
        ("first_batch_s", "first batch, s"),
        ("plan_low_s", "plan: from, s"),
        ("plan_high_s", "to, s"),
        ("took_s", "it took, s"),
        ("plan_held", "within"),
    ),
)


def measure(place: Place) -> None:
    count = QUICK_SAMPLES if place.is_quick else SAMPLES
    sizes = {"frames": FRAMES, "bodies": BODIES}
    tables = [TABLE.format(round=number, count=count, **sizes) for number in range(place.rounds)]
    with place.service("generated", "".join(tables)) as service:
        entries = [
            Entry("the user's own loop", "limit", lambda: _child(place, service, "own", count)),
            Entry("stager, cold", "stager", lambda: _cold(place, service, count)),
            Entry("stager, warm", "stager", lambda: _child(place, service, "warm", count)),
        ]
        place.alternate(SECTION.name, entries)


def _child(place: Place, service: Service, verb: str, count: int) -> Answer:
    return place.child("generated", {"verb": verb, "round": place.round, "count": count}, **service.environ())


def _cold(place: Place, service: Service, count: int) -> Answer:
    plan = service.prefetch(f"motion{place.round}", "--plan")
    if "problem" in plan:
        return plan
    answer = _child(place, service, "cold", count)
    if "problem" in answer:
        return answer
    low, high = plan["seconds"]["low"], plan["seconds"]["high"]
    held = float(low <= answer["took_s"] <= high)
    return {**answer, "plan_low_s": low, "plan_high_s": high, "plan_held": held}


def own(task: dict[str, Any]) -> Answer:
    """As it was: one sample after the other, when the loop needs it. All, for they differ by five times."""
    began = time.perf_counter()
    indexes = range(task["count"])
    for index in indexes:
        sequence(index, task["round"])
    return {"rate": len(indexes) / (time.perf_counter() - began)}


def cold(task: dict[str, Any]) -> Answer:
    """One epoch, while it is staged; and that the samples are the simulator's."""
    from stager_client.numpy import StagedArrays

    began = time.perf_counter()
    data = StagedArrays(f"motion{task['round']}", BATCH, shuffle=True)
    first_s, seen = 0.0, 0
    for fields, _ in data:
        first_s = first_s or time.perf_counter() - began
        seen += len(fields["pose"] if isinstance(fields, dict) else fields)
    took_s = time.perf_counter() - began
    wrong = [at for at in (0, 7, task["count"] - 1) if not _is_right(data, at, task["round"])]
    if seen != task["count"] or wrong:
        return {"problem": f"{seen} samples of {task['count']}, {len(wrong)} of them wrong"}
    return {"rate": seen / took_s, "took_s": took_s, "first_batch_s": first_s}


def _is_right(data: Any, at: int, seed: int) -> bool:
    (row,) = data.loader.samples.read([at])
    return bool(np.array_equal(row["pose"], sequence(at, seed)["pose"]))


def warm(task: dict[str, Any]) -> Answer:
    """Later epochs."""
    from stager_client.numpy import StagedArrays

    data = StagedArrays(f"motion{task['round']}", BATCH, shuffle=True)
    for _ in data:  # the first epoch compares checksums
        pass
    began, seen = time.perf_counter(), 0
    while time.perf_counter() - began < WARM_S:
        for _, labels in data:
            seen += len(labels)
    return {"rate": seen / (time.perf_counter() - began)}


GENERATED: Final = Workload(SECTION, measure)

if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    print(json.dumps({"own": own, "cold": cold, "warm": warm}[given["verb"]](given)))
