"""docs/BOXES.md, run: three cropped pictures a sample, in three folds, from a source that is read once."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from running import Place
from stager_client.augment import HorizontalFlip, RandomCrop
from stager_client.numpy import StagedArrays

ROOT = Path(__file__).parent.parent
SAMPLES = 18
FIELDS = ("photo", "depth_rgb", "depth")


def made_at(root: Path) -> Place:
    """The data of examples/boxes_data.py, and the config of docs/BOXES.md."""
    source = root / "wounds"
    command = [sys.executable, str(ROOT / "examples/boxes_data.py"), str(source), "--samples", str(SAMPLES)]
    subprocess.run(command, check=True, timeout=120)
    (config,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs/BOXES.md").read_text(), re.DOTALL)
    return Place(root).configure(config.replace("/mnt/lab/wounds", os.fspath(source)))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    place = made_at(tmp_path_factory.mktemp("wounds"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STAGER_CONFIG", str(place.config))
        with place.service():
            yield place


def reads(place: Place) -> int:
    return int(place.json("stats")["datasets"]["wounds"]["origin_reads"])


def read(where: str) -> dict[int, dict[str, np.ndarray]]:
    """Every sample of a subset, by its age, which tells them apart."""
    arrays = StagedArrays("wounds", 4, where=where, shuffle=True, timeout_s=60)
    return {
        int(values["age"][at]): {name: values[name][at] for name in (*FIELDS, "fold", "xmin")}
        for values, labels in arrays
        for at in range(len(labels))
    }


def test_three_folds_and_their_complements_share_what_is_staged_and_the_source_is_read_once(
    place: Place,
) -> None:
    train = read("fold != 0")  # nothing was staged before: a reader comes, and that is all
    assert reads(place) == 3 * len(train)
    test = read("fold = 0")
    assert len(train) + len(test) == SAMPLES
    assert reads(place) == 3 * SAMPLES
    for fold in (1, 2):
        others, own = read(f"fold != {fold}"), read(f"fold = {fold}")
        assert {int(sample["fold"]) for sample in own.values()} == {fold}
        assert len(others) + len(own) == SAMPLES
        for age, sample in (others | own).items():
            for name in FIELDS:
                np.testing.assert_array_equal(sample[name], (train | test)[age][name])
    assert reads(place) == 3 * SAMPLES
    again = place.json("prefetch", "wounds", "--where", "fold != 2")
    assert (again["staged"], again["already"]) == (0, len(train))


def test_a_depth_map_keeps_its_16_bits_and_all_three_are_cropped_by_one_box(place: Place) -> None:
    source = place.root / "wounds"
    lines = (source / "samples.csv").read_text().splitlines()[1:]
    samples = read("fold != 9")
    for line in lines:
        *names, left, top, right, bottom, _, _, age = line.split(",")
        box = int(left), int(top), int(right), int(bottom)
        for folder, name in zip(FIELDS, names, strict=True):
            with Image.open(source / folder / name) as image:
                part = image.crop(box).resize((128, 128), Image.Resampling.BILINEAR)
            found = samples[int(age)][folder]
            np.testing.assert_array_equal(found if folder != "depth" else found[:, :, 0], np.asarray(part))
    assert int(max(sample["depth"].max() for sample in samples.values())) > 600


def test_the_three_pictures_are_augmented_alike_and_the_same_after_a_resume(place: Place) -> None:
    changes = {"augment": [RandomCrop(100), HorizontalFlip()], "shuffle": True, "seed": 2}
    loader = StagedArrays("wounds", 4, **changes)
    whole = [values for values, _ in loader]
    assert {values[name].shape[1:3] for values in whole for name in FIELDS} == {(100, 100)}
    again = StagedArrays("wounds", 4, **changes)
    batches = iter(again)
    next(batches)
    state = again.state_dict()
    del batches
    resumed = StagedArrays("wounds", 4, **changes)
    resumed.load_state_dict(state)
    for (values, _), expected in zip(resumed, whole[1:], strict=True):
        for name in FIELDS:
            np.testing.assert_array_equal(values[name], expected[name])
