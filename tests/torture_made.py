"""What is tortured beside staged images: samples that a function makes, and results that a memo keeps."""

import os
import signal
import time
from collections import Counter
from typing import Any, Final

import numpy as np

from functions import generated, write_functions
from running import Place
from sets import manifest_at
from stager.errors import StagerError, WaitTimeout
from stager.functions.made import MadeSamples
from stager.interfaces import Made
from stager.reader.record import DatasetRecord
from stager_client.memo import memo

COUNT: Final = 24
TABLE: Final = generated(count=COUNT, args="{ bad = false }")
FOLDS: Final = 5


def scores(fold: int) -> dict[str, Any]:
    return {"fold": fold, "scores": np.random.default_rng(fold).random(50), "notes": [f"fold {fold}", None]}


def build(place: Place) -> None:
    """Some samples in shards, some made and in no shard yet, some heat, and results of each fold."""
    write_functions(place.root)
    run = place.run("prefetch", "motion", "--fraction", "0.5")
    assert run.returncode == 0, run.stderr
    process = place.start_service()
    environ = os.environ.get("STAGER_CONFIG")
    os.environ["STAGER_CONFIG"] = str(place.config)
    try:
        _read_once()
        _stop(process, signal.SIGTERM)  # so heat is written
        for fold in range(FOLDS):
            memo(scores)(fold)
    finally:
        os.environ.pop("STAGER_CONFIG")
        if environ is not None:
            os.environ["STAGER_CONFIG"] = environ
    _keep_some(place)
    missing = [
        name
        for name in ("made/*", "memo/*/*/record.json", "datasets/*/heat-*")
        if not any(place.cache.glob(name))
    ]
    assert not missing, f"nothing to torture in {missing}"


def _keep_some(place: Place) -> None:
    """As a worker that was killed leaves them: made, and in no shard yet."""
    record = DatasetRecord.read(place.cache / "datasets/motion")
    records = manifest_at(place, "motion").records
    kept = MadeSamples(place.cache / "made", record.recipe, record.fields)
    for number in range(0, COUNT, 3):
        made = {"pose": pose_of(number), "index": np.int64(number)}
        kept.keep(records.tag(number), Made({name: np.asarray(of) for name, of in made.items()}, 0.1))


def pose_of(index: int) -> Any:
    """What the function makes: `sequence` of functions.py."""
    return (np.random.default_rng([0, index, 0]).standard_normal((25, 6)) * 2.0).astype("float32")


def _read_once() -> None:
    from stager_client.torch import StagedDataset

    for name in ("data", "motion"):
        data = StagedDataset(name, timeout_s=30)
        for position in range(0, len(data), 2):
            try:
                data[position]
            except StagerError:
                continue
    time.sleep(1.5)  # counts are told once a second


def _stop(process: Any, how: int) -> None:
    process.send_signal(how)
    process.wait(60)


def what_is_wrong(staged: bool, timeout_s: float, told: Counter[str]) -> list[str]:
    """Read every sample and call for every fold: right values, a told miss, or a clear error."""
    return [*_wrong_samples(staged, timeout_s, told), *_wrong_results(told)]


def _wrong_samples(staged: bool, timeout_s: float, told: Counter[str]) -> list[str]:
    from stager_client.torch import StagedDataset

    wrong: list[str] = []
    try:
        data = StagedDataset("motion", timeout_s=timeout_s)
        if len(data) != COUNT:
            wrong.append(f"motion: {len(data)} samples, there are {COUNT}")
        for position in range(len(data)):
            try:
                fields, _ = data[position]
            except WaitTimeout as error:
                told["missed"] += 1
                wrong += [f"motion {position}: {error}"] if staged else []
                continue
            except StagerError as error:
                told["refused"] += 1
                wrong += [f"motion {position}: {error}"] if staged else []
                continue
            told["right"] += 1
            right = np.array_equal(fields["pose"].numpy(), pose_of(position))
            if int(fields["index"]) != position or not right:
                wrong.append(f"motion {position}: it is not what its function makes")
    except StagerError as error:
        told["not opened"] += 1
        wrong += [f"motion cannot be opened: {error}"] if staged else []
    return wrong


def _wrong_results(told: Counter[str]) -> list[str]:
    kept = memo(scores)
    wrong = []
    for fold in range(FOLDS):
        found, right = kept(fold), scores(fold)
        if not np.array_equal(found.pop("scores"), right.pop("scores")) or found != right:
            wrong.append(f"the result of fold {fold} is another one")
    told["results loaded"] += kept.counts.loaded  # type: ignore[attr-defined]
    told["results computed"] += kept.counts.computed  # type: ignore[attr-defined]
    return wrong
