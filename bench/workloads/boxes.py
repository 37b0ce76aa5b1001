"""Boxes: three pictures a sample, cropped by a box, in TensorFlow, from a source with 5 ms a file."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from bench.environments import PEERS, ROOT
from bench.process import run_group
from bench.report import Section
from bench.rounds import Answer, Entry
from bench.servers import Service
from bench.workloads.workload import Place, Workload

NAME: Final = "boxes"
DELAY_MS: Final = 5.0
FOLDS: Final = (0, 1, 2)
SAMPLES, SAMPLES_QUICK, SCENES = 2_700, 192, 60
OWN_STEPS: Final = 16  # of an epoch, in which the user's own way goes at one pace
FIELD: Final = """[datasets.wounds.recipe.{name}]
path = "{name}/{{{name}}}"
box = ["xmin", "ymin", "xmax", "ymax"]
resize = [128, 128]
{more}
"""
CONFIG: Final = """[datasets.wounds]
source = "{folder}"
layout = "table"
table = "samples.csv"
label = "phase"
"""
SECTION: Final = Section(
    NAME,
    "Boxes: three pictures of 128x128, cropped by a box, in TensorFlow, 5 ms a file",
    "Steps/s of batches of 32, three pictures a sample (JPEG, PNG, PNG of 16 bits; 640x480), train on two of "
    "three folds of 2,700 samples. The user's own way is `tf.data` with a Python function for each row, "
    "under the GIL; also with `num_parallel_calls=AUTOTUNE`. It does the same in each epoch, so 16 of its "
    "steps are measured, for both. stager starts with an empty cache: the scan is in its first batch. Then "
    "all folds are read once, and the source is counted. The sums of all pixels are compared.",
    (
        ("rate_epoch_0", "epoch 0, steps/s"),
        ("rate", "epoch 1, steps/s"),
        ("first_batch_s", "first batch, s"),
        ("later_fold_reads", "source reads of later folds"),
    ),
)


def measure(place: Place) -> None:
    environments = place.peers("tensorflow")
    if not environments:
        place.notes.append(f"{NAME}: left out, TensorFlow is not installed")
        return
    python, folder = environments[0].python, place.work / "wounds"
    samples = SAMPLES_QUICK if place.is_quick else SAMPLES
    generator = [sys.executable, str(ROOT / "examples" / "boxes_data.py"), str(folder)]
    subprocess.run([*generator, "--samples", str(samples), "--scenes", str(SCENES)], check=True)
    slow = place.slow_files(folder, DELAY_MS)
    sums: set[int] = set()

    def child(task: dict[str, Any], **env: str) -> Answer:
        answer = place.child("boxes_tensorflow", {"parallel": False, "steps": 0, **task}, python, **env)
        if "pixel_sums" in answer:
            sums.add(answer.pop("pixel_sums")[0])
        return answer

    def own(parallel: bool) -> Answer:
        task = {"way": "own", "folder": str(folder), "parallel": parallel, "folds": [0]}
        answer = child({**task, "steps": OWN_STEPS, "epochs": 1}, **slow)
        return {**answer, "rate": answer["rate_epoch_0"]} if "rate_epoch_0" in answer else answer

    def staged() -> Answer:
        with place.service(f"boxes-{place.round}", config(folder), **slow) as service:
            answer = child({"way": "stager", "folds": [0], "epochs": 2}, **service.environ())
            if answer.get("problem"):
                return answer
            service.prefetch("wounds")  # the fold that is tested on
            before = reads(service)
            later = child({"way": "stager", "folds": FOLDS, "sums": True}, **service.environ())
            again = reads(service) - before
            return {**answer, "rate": answer["rate_epoch_1"], "later_fold_reads": again, **_problem(later)}

    place.alternate(
        NAME,
        [
            Entry("tf.data, a Python function", "tensorflow", lambda: own(False)),
            Entry("tf.data, AUTOTUNE", "tensorflow", lambda: own(True), rounds=1),
            Entry("stager", "stager", staged),
        ],
    )
    child({"way": "own", "folder": str(folder), "parallel": True, "folds": FOLDS[:1], "sums": True})
    are_same = len(sums) == 1
    told = "the same, in all ways" if are_same else f"{sorted(sums)}: they differ"
    place.notes.append(f"{NAME}: the pixels of the first fold's training sum to {told}")


def config(folder: Path) -> str:
    more = {"photo": "", "depth_rgb": "", "depth": 'dtype = "uint16"'}
    fields = "".join(FIELD.format(name=name, more=text) for name, text in more.items())
    return CONFIG.format(folder=folder) + fields


def reads(service: Service) -> int:
    """How often the source was read so far."""
    command = [sys.executable, "-m", "stager", "stats", "--json"]
    done = run_group(command, 60.0, service.environ(), ROOT)
    return int(json.loads(done.stdout)["datasets"]["wounds"]["origin_reads"])


def _problem(answer: Answer) -> Answer:
    return {"problem": answer["problem"]} if answer.get("problem") else {}


BOXES: Final = Workload(SECTION, measure, (PEERS["tensorflow"],))
